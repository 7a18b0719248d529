"""The training loop: steps, schedule and optimiser, checkpoints, and the directory of a run."""
