"""`swiftlet bench`: CPU engines side by side on one core."""
