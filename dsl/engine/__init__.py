"""The training engine: the loop, the optimizer, checkpoints and logs. Knows `methods.base` only."""
