"""The vocabulary of a new model: trained on a corpus, or a part of its teacher's."""
