"""Pre-training of a model on a corpus: sequences, objectives and losses."""
