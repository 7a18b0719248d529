"""The HTTP service: text in, answers out."""
