"""The parts of semi-supervised learning; they see tensors and types, never detector modules."""
