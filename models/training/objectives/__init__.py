"""What pre-training learns from: one objective a file, each a pure function of rows and of a generator's draws."""
