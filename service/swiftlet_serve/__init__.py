"""Serves small text encoders over HTTP."""
