"""Load tests and measurements over HTTP. Each module with a command runs as `python -m loadtest.NAME`."""
