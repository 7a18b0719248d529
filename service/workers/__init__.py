"""Runs batches: executors, engine processes and their supervision."""
