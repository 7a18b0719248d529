"""Runtimes that a network can run in, one file each; imported only when chosen."""
