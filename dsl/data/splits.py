"""Divide one set of images in two, the same way on every machine.

It sees names only, never images, boxes or a random generator's state.
"""

import hashlib

import torch

from dsl.data.index import Index
from dsl.errors import UserError


def hold_out(index: Index, fraction: float, *, seed: int) -> tuple[Index, Index]:
    """The images for training and those held out: about `fraction` of all, at least one.

    An image's turn is the hash of seed and name, so it does not depend on the order of the file,
    and an image that is added later moves few others.
    """
    if not 0 < fraction < 1:
        raise UserError(f"hold-out fraction {fraction}: must be between 0 and 1")
    if len(index) < 2:
        raise UserError(f"{index.source}: {len(index)} image cannot be divided; give a second set")
    turns = sorted(range(len(index)), key=lambda image: _turn(seed, index.names[image]))
    count = min(max(round(fraction * len(index)), 1), len(index) - 1)
    held = torch.zeros(len(index), dtype=torch.bool)
    held[turns[:count]] = True
    note = f"{index.source}: {count:,} of {len(index):,} images held out"
    return (
        index.select((~held).nonzero().flatten(), note),
        index.select(held.nonzero().flatten(), note),
    )


def _turn(seed: int, name: str) -> bytes:
    return hashlib.blake2b(
        f"{seed}:{name}".encode("utf-8", "surrogateescape"), digest_size=8
    ).digest()
