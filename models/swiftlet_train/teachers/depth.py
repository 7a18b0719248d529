"""Chooses the layer of a teacher that a layer of its student follows."""


def teacher_layer(layer: int, depth: int, teacher_depth: int) -> int:
    """Returns the teacher's layer at the same relative depth. Layer 0 is the embeddings."""
    return round(layer * teacher_depth / depth)
