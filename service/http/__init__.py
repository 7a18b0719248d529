"""The HTTP server and the application behind it."""
