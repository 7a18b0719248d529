"""Bulk scoring of files: `swiftlet score`.

A plan divides the input into shards. Workers lease shards, and each shard becomes one output file and one line of the
manifest. No output depends on a clock: a job that is killed and started again writes the same bytes.
"""
