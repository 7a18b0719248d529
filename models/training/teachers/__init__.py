"""Trained encoders that teach: how they are found and read."""
