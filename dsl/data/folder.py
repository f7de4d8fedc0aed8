"""Open images without annotations: a folder of image files, or a text file that lists them.

It judges files by their suffix alone and never opens an image.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from dsl.data.columns import NameColumn
from dsl.data.files import SUFFIXES, find_images, is_image
from dsl.data.index import Index
from dsl.errors import UserError, show
from dsl.files import GIGABYTE, check_file


def read_folder(path: Path) -> Index:
    """All images in the folder and below it, sorted by name."""
    path = Path(path)
    names = sorted(find_images(path))
    if not names:
        raise UserError(f"{path}: the folder holds no images ({', '.join(SUFFIXES)})")
    return _unlabeled(path, path, names)


def read_list(path: Path) -> Index:
    """The images that a text file lists, one path per line, absolute or relative to its folder.

    Paths may lead anywhere: the list is the user's own word on where the images are.
    """
    path = Path(path)
    index = _unlabeled(path, path.parent, list_images(path))
    if not len(index):
        raise UserError(f"{path}: the list is empty; write one image path per line")
    return index


def list_images(path: Path) -> Iterator[str]:
    """The lines of a list of images, as written."""
    try:
        check_file(path, limit=GIGABYTE)
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
            for number, line in enumerate(lines, start=1):
                name = line.strip()
                if not name:
                    continue
                if "\0" in name or not is_image(name):
                    raise UserError(
                        f"{path}: line {number}: {show(name)} is no image path;"
                        f" each line must end in one of {', '.join(SUFFIXES)}"
                    )
                yield name
    except OSError as error:
        raise UserError(f"{path}: the list cannot be read: {error.strerror}") from error


def _unlabeled(source: Path, root: Path, names: Iterable[str]) -> Index:
    column = NameColumn()
    for name in names:
        column.append(name)
    count = len(column)
    return Index(
        source=source,
        root=root,
        names=column.names(),
        ids=torch.arange(1, count + 1),
        sizes=torch.zeros(count, 2, dtype=torch.int32),
        annotations=None,
        classes=(),
        category_ids=(),
    )
