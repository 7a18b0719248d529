"""The checkpoints of teachers: finding and loading them."""
