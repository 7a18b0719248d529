"""Everything about the networks: architectures, tokenizers, artifacts, and the road from one to the next.

Nothing here imports `swiftlet_serve`.
"""
