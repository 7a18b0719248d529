"""The examples of each task, read from data files or made from running text."""
