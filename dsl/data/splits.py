"""Divide one set of images in two, the same way on every machine.

It sees names, and which classes an image shows, never pixels or a random generator's state: an
image's turn is a hash of the seed and its name.
"""

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dsl.data.index import Index
from dsl.errors import UserError
from dsl.types import Annotations


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


def labeled_count(percent: float, total: int) -> int:
    """percent * total / 100, rounded to the nearest whole number, halves up; at least one image on
    either side."""
    if not 0 < percent < 100:
        raise UserError(f"--percent {percent:g}: must be above 0 and below 100")
    if total < 2:
        raise UserError(f"--percent {percent:g}: {total} image cannot be divided")
    exact = Fraction(str(percent)) * total / 100  # .1 means a tenth, not its binary neighbour
    return min(max(int(exact + Fraction(1, 2)), 1), total - 1)


def draw_labeled(
    names: Sequence[str], count: int, *, seed: int, annotations: Annotations | None = None
) -> Tensor:
    """(N,) bool: the `count` images that are labeled.

    Equal seeds nest: more images of one seed include the fewer. With `annotations` every class
    that has a box has an image among them.
    """
    # The name behind the hash and the place behind the name: the order is total.
    turns = sorted(range(len(names)), key=lambda image: (_turn(seed, names[image]), names[image]))
    needed = [] if annotations is None else _one_of_each_class(annotations, turns)
    if len(needed) > count:
        raise UserError(
            f"--stratified: {count} labeled images cannot show every class, {len(needed)} are "
            "needed; raise --percent"
        )
    labeled = torch.zeros(len(names), dtype=torch.bool)
    labeled[needed] = True
    rest = (image for image in turns if not labeled[image])
    labeled[list(islice(rest, count - len(needed)))] = True
    return labeled


def _one_of_each_class(annotations: Annotations, turns: Sequence[int]) -> list[int]:
    """Images that show every class, rare classes first: for each the image whose turn is first.

    Where the first turns show every class anyway, these images are among them.
    """
    places = np.empty(len(turns), np.int64)
    places[list(turns)] = np.arange(len(turns))
    owners, labels = _shown(annotations)
    found, covered = [], set()
    counts = np.bincount(labels)
    for label in sorted(np.flatnonzero(counts).tolist(), key=lambda label: (counts[label], label)):
        if label in covered:
            continue
        candidates = owners[labels == label]
        image = int(candidates[places[candidates].argmin()])
        found.append(image)
        covered |= set(labels[owners == image].tolist())
    return found


def _shown(annotations: Annotations) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Images and the classes that they show, each pair once; ignored boxes show nothing."""
    owners = np.repeat(np.arange(len(annotations)), annotations.offsets.diff().numpy())
    labels, real = annotations.labels.numpy(), ~annotations.ignored.numpy()
    classes = int(labels.max(initial=0)) + 1
    pairs = np.unique(owners[real] * classes + labels[real])
    return pairs // classes, pairs % classes


def _turn(seed: int, name: str) -> bytes:
    return hashlib.blake2b(
        f"{seed}:{name}".encode("utf-8", "surrogateescape"), digest_size=8
    ).digest()
