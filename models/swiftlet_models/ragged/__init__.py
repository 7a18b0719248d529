"""Folded networks in torch, over ragged batches: the GPU path.

`network` computes a batch whose sequences come end to end, without padding. `attention` holds its attention, with a
reference for devices that have no kernel for it. `layout` makes the indices of a batch. `buckets` chooses the sizes of
static batches, and `static` runs them, as CUDA graphs where there is a GPU.
"""
