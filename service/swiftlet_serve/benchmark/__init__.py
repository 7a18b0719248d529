"""`swiftlet bench`: compares engines side by side, on one CPU core or a GPU."""
