"""Out of memory, however a device says so; what to do about it is not decided here."""

import torch

_CPU_SAYS = "can't allocate memory"  # its allocator raises a plain RuntimeError


def is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or _CPU_SAYS in str(error)
