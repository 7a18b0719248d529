"""Records, counts and reports the outcome of requests."""
