"""Swiftlet serves small text encoders over HTTP. `service` is the server, `models` the networks that it serves."""
