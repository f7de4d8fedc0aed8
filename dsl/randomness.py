"""All randomness of the project: a pure function of (seed, stream, position).

Loader workers, prefetching, resuming and the number of processes therefore cannot change what is
drawn: sample number `position` is the same wherever and whenever it is made.
"""

import hashlib

import numpy as np


def key_of(seed: int, stream: str, position: int) -> int:
    """64 well-mixed bits."""
    text = f"{seed}/{stream}/{position}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def generator(seed: int, stream: str, position: int) -> np.random.Generator:
    """A fresh generator for one sample."""
    return np.random.Generator(np.random.PCG64(key_of(seed, stream, position)))


def shuffled(position: int, count: int, *, seed: int, stream: str) -> int:
    """Which of `count` items stands at this position of an endless stream of shuffled epochs.

    A keyed permutation (a Feistel network that walks until it lands inside), so that an epoch of a
    million images needs no table.
    """
    epoch, place = divmod(position, count)
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    keys = [key_of(seed, f"{stream}/shuffle/{epoch}", turn) for turn in range(4)]
    while True:
        left, right = place >> half, place & mask
        for key in keys:
            mixed = ((right ^ key) * 0x9E3779B97F4A7C15 + (key >> 32)) & 0xFFFFFFFFFFFFFFFF
            left, right = right, left ^ ((mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9 >> 32 & mask)
        place = left << half | right
        if place < count:
            return place
