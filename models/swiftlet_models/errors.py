"""The base of all errors about the files that a model is made of."""


class ModelError(Exception):
    """Raised when a file or directory cannot be used. The message is one sentence, which names the cause."""
