"""Measures engines side by side."""
