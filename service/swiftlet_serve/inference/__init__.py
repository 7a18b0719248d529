"""The way of a request through one model: choice of the version, tokens, queue, rows and the answer."""
