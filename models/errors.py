"""What can be wrong with the files a model is made of."""


class ModelError(Exception):
    """A file or directory cannot be used. Every message is one sentence for a person, and names the culprit."""
