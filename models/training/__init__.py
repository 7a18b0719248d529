"""From text to a trained model. The commands are in `recipes/`; `swiftlet train RECIPE` runs one."""
