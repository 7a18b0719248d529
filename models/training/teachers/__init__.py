"""Trained encoders that teach: their checkpoints, and the transfer of their knowledge to a student."""
