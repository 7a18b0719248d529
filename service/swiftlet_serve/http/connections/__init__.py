"""Sockets of clients: HTTP/1.1 is read and written here, within limits of time and memory."""
