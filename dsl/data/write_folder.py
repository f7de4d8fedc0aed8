"""What all writers of data sets share: the new folder, its images, and names that cannot collide.

It knows no format. Images are copied as they are, byte for byte: nothing is decoded.
"""

import os
import posixpath
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from torch import Tensor

from dsl.data.index import Index, Names
from dsl.errors import UserError
from dsl.image import Size, read_size

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Request:
    """A set to be written, and where."""

    index: Index
    folder: Path  # exists and is empty
    link: bool = False  # symbolic links to the images instead of copies
    scores: Tensor | None = None  # (B,) of boxes that a detector found; its ignored ones are unsure
    progress: Progress | None = None  # is told how many images are done

    def __post_init__(self) -> None:
        boxes = 0 if self.index.annotations is None else len(self.index.annotations.boxes)
        if self.scores is not None and self.scores.shape != (boxes,):
            raise ValueError(f"scores: expected ({boxes},), got {tuple(self.scores.shape)}")

    def size(self, position: int) -> Size:
        """Height and width of an image: what the set says, else what its header says."""
        return self.index.size(position) or read_size(self.index.path(position))

    def place(self, position: int, name: str) -> None:
        """Put an image into the folder under this name."""
        source, target = self.index.path(position), self.folder / name
        if not target.exists():  # COCO may list one file twice
            target.parent.mkdir(parents=True, exist_ok=True)
            if self.link:
                target.symlink_to(os.path.abspath(source))
            else:
                shutil.copyfile(source, target)
        if self.progress is not None:
            self.progress(position + 1)


@dataclass(frozen=True)
class Written:
    """What a writer made."""

    entry: str  # what to open, below the folder; "" is the folder itself
    notes: tuple[str, ...] = ()  # what the format could not hold, one line each
    lost_images: int = 0
    lost_boxes: int = 0


def check_new(out: Path) -> None:
    """Refuse a folder that holds something, or a file; asked before long work too."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists already and is not an empty folder; choose another name")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """An empty folder that becomes `out` when the block ends well; a failure leaves nothing."""
    check_new(out)
    out = Path(os.path.abspath(out))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as beside:
            draft = Path(beside) / "draft"
            draft.mkdir()
            yield draft
            if out.exists():
                out.rmdir()  # not every system renames onto a folder, even an empty one
            draft.rename(out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error}") from error


def relative_names(index: Index) -> list[str]:
    """The names of the images below one folder; lists and YOLO sets may have led elsewhere."""
    names = [index.names[position] for position in range(len(index))]
    if not any(os.path.isabs(name) or ".." in name.split("/") for name in names):
        return [posixpath.normpath(name) for name in names]
    rebased = below_common_folder(index)
    return [rebased.names[position] for position in range(len(index))]


def below_common_folder(index: Index) -> Index:
    """The same images, named from the deepest folder that holds all of them."""
    paths = [os.path.abspath(index.path(position)) for position in range(len(index))]
    common = os.path.commonpath([os.path.dirname(path) for path in paths])
    names = Names.of(os.path.relpath(path, common) for path in paths)
    return replace(index, root=Path(common), names=names)


def names_below_images(index: Index) -> list[str]:
    """The same for a folder images/: a set that has all its images in such a one keeps that."""
    names = relative_names(index)
    inside = all(name.startswith("images/") for name in names)
    return [name.removeprefix("images/") for name in names] if inside else names


def distinct_stems(names: Iterable[str]) -> list[str]:
    """The same names, with _2, _3, ... where folder and stem are those of an earlier one.

    A format that pairs image and labels by stem would otherwise give two images one label file.
    Case is not enough to tell two names apart: some disks do not keep it.
    """
    taken: set[str] = set()
    result = []
    for name in names:
        path = PurePosixPath(name)
        number, free = 1, path
        while str(free.with_suffix("")).casefold() in taken:
            number += 1
            free = path.with_name(f"{path.stem}_{number}{path.suffix}")
        taken.add(str(free.with_suffix("")).casefold())
        result.append(str(free))
    return result


def renamed_note(old: Iterable[str], new: Iterable[str]) -> tuple[str, ...]:
    """How many images had to get another name, and one of them."""
    changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
    if not changed:
        return ()
    first, second = changed[0]
    return (f"{len(changed):,} images have another name there ({first} is {second})",)
