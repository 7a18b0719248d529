"""Decides which sequences run when, and which requests are admitted."""
