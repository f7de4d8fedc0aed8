"""Images as a user names them on a command line: files, folders, globs."""

import glob
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from dsl.data.folder import find_images
from dsl.data.index import Index, Names
from dsl.errors import UserError


def read_pictures(given: Sequence[str | Path]) -> Index:
    """All images that the arguments name, in their order, each once."""
    names = list(dict.fromkeys(name for argument in given for name in _expand(argument)))
    if not names:
        raise UserError("images: name at least one file, folder or glob")
    return Index(
        source=Path(given[0]),
        root=Path(),
        names=Names.of(names),
        ids=torch.arange(len(names)),
        sizes=torch.zeros(len(names), 2, dtype=torch.int32),
        annotations=None,
        classes=(),
        category_ids=(),
    )


def _expand(argument: str | Path) -> Iterator[str]:
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
