"""Pre-training objectives, one per file. Each is a pure function of its inputs and a random generator."""
