"""Image files by their names: in a folder, or as a user gives them on a command line.

It judges files by their suffix alone, never opens one, and imports no torch: prediction with an
exported model starts here too.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from dsl.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")


def find_pictures(given: Sequence[str | Path]) -> list[str]:
    """All images that the arguments (files, folders, globs) name, in their order, each once."""
    names = list(dict.fromkeys(name for argument in given for name in _named(argument)))
    if not names:
        raise UserError("images: name at least one file, folder or glob")
    return names


def is_image(name: str) -> bool:
    """Whether the name is that of an image file; hidden files are none."""
    base = name.rpartition("/")[2]
    return base.lower().endswith(SUFFIXES) and not base.startswith(".")


def find_images(folder: Path) -> Iterator[str]:
    """Names of the images below the folder, relative to it, each folder visited once."""
    visited: set[tuple[int, int]] = set()
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            state = os.stat(folder / prefix)
            if (state.st_dev, state.st_ino) in visited:  # a link back, or a second way here
                continue
            visited.add((state.st_dev, state.st_ino))
            with os.scandir(folder / prefix) as entries:
                for entry in entries:
                    if is_image(entry.name) and not _is_folder(entry):
                        yield prefix + entry.name
                    elif not entry.name.startswith(".") and _is_folder(entry):
                        waiting.append(f"{prefix}{entry.name}/")
        except OSError as error:
            raise UserError(f"{folder / prefix}: cannot be listed: {error.strerror}") from error


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; whoever opens it says so
        return False


def _named(argument: str | Path) -> Iterator[str]:
    path = Path(argument)
    if path.is_file():
        yield str(path)
    elif path.is_dir():
        found = [str(path / name) for name in find_images(path)]
        if not found:
            raise UserError(f"images: {path} holds no images")
        yield from found
    else:
        matches = sorted(glob.glob(str(argument), recursive=True))
        if not matches:
            raise UserError(f"images: no such file or folder, and no match: {argument}")
        yield from matches
