"""The detector: a backbone, a pyramid and an anchor-free head; assignment, losses, decoding."""
