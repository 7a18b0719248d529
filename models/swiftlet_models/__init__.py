"""The networks: architectures, tokenizers, artifacts, and the conversions between them.

Nothing here imports `swiftlet_serve`.
"""
