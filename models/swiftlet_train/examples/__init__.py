"""The examples of each task: what a fine-tuning reads from data files, and makes of running text."""
