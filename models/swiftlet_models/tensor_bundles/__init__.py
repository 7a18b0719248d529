"""Checkpoints in the format of TensorFlow, the tensor bundle, read without TensorFlow."""
