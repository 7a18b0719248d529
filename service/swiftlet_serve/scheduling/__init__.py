"""Admits requests, queues their sequences and dispatches them to the executor in batches."""
