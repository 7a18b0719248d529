"""The commands of `swiftlet`. Only this package imports click."""
