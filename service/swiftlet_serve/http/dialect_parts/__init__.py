"""Shared parts of the protocols of other servers: routes, texts, tensors, questions and the words of errors."""
