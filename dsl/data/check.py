"""Open the images of an index before training does, and drop those that cannot be used.

A few bad files are normal in a large set; many mean a wrong folder. It never changes an annotation
and must not know the format that the index came from.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from dsl.data.index import Index
from dsl.data.tolerance import account, is_too_many
from dsl.errors import UserError
from dsl.image import Size, read_image, read_size

MAX_DECODED = 5000  # beyond so many, headers only: minutes matter more than a rare broken tail
_DRAFT = 64  # pixels of the short side: a JPEG is decoded at 1/8, but to its end
_BLOCK = 512  # images handed to the threads at once, so that a million wait as numbers

Progress = Callable[[int], None]


def check_images(
    index: Index,
    *,
    sample: int | None = None,
    workers: int = 8,
    progress: Progress | None = None,
) -> Index:
    """The index without images that are absent, broken, or of another size than annotated.

    Opens all images, or `sample` evenly spaced ones; `progress` is told how many are done. More bad
    ones than 1 % of those opened (and than 3) are an error.
    """
    bad = find_problems(index, sample=sample, workers=workers, progress=progress)
    if not bad:
        return index
    note = _account(index, bad, checked=min(len(index), sample or len(index)))
    keep = torch.ones(len(index), dtype=torch.bool)
    keep[list(bad)] = False
    return index.select(keep.nonzero().flatten(), note)


def find_problems(
    index: Index,
    *,
    sample: int | None = None,
    workers: int = 8,
    progress: Progress | None = None,
) -> dict[int, str]:
    """Positions of the images that cannot be used, and why; all are opened, or `sample` of them."""
    positions = _spaced(len(index), sample)
    decode = len(positions) <= MAX_DECODED
    bad: dict[int, str] = {}
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(positions), _BLOCK):
            block = positions[start : start + _BLOCK]
            problems = pool.map(lambda position: _problem(index, position, decode=decode), block)
            bad.update({p: text for p, text in zip(block, problems, strict=True) if text})
            if progress:
                progress(start + len(block))
    return bad


def _spaced(count: int, sample: int | None) -> list[int]:
    if sample is None or sample >= count:
        return list(range(count))
    if sample < 1:
        raise UserError(f"sample {sample}: at least one image must be checked")
    return [(2 * turn + 1) * count // (2 * sample) for turn in range(sample)]


def _problem(index: Index, position: int, *, decode: bool) -> str | None:
    """Why this image cannot be used; None if it can."""
    expected = index.size(position)
    try:
        found = _size(index, position, decode=decode)
    except UserError as error:
        return str(error)
    if expected is not None and found != expected:
        return (
            f"{index.path(position)}: is {found[1]} x {found[0]} pixels,"
            f" but the annotations say {expected[1]} x {expected[0]}"
        )
    return None


def _size(index: Index, position: int, *, decode: bool) -> Size:
    path, expected = index.path(position), index.size(position)
    if not decode:
        return read_size(path, expected_size=expected)
    image = read_image(path, expected_size=expected, draft_short_side=_DRAFT)
    return image.height, image.width


def _account(index: Index, bad: dict[int, str], *, checked: int) -> str:
    absent = not any(index.path(position).exists() for position in bad)
    what = f"images are absent below {index.root}" if absent else "images cannot be used"
    counted = account(len(bad), checked, what=what, examples=list(bad.values()))
    if is_too_many(len(bad), checked) or len(bad) == checked:
        raise UserError(f"{index.source}: {counted}; name the right folder or mend the files")
    return f"{index.source}: {counted}; dropped"
