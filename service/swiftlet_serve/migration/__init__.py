"""Leaving another service: its answers and a candidate's, side by side, from the replay of a log."""
