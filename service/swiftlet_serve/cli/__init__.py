"""The commands of `swiftlet`. No other package of the server imports click."""
