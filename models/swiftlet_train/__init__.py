"""Training, from text to a model. `swiftlet train RECIPE` runs the recipes in `recipes/`."""
