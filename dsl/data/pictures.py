"""Images as a user names them on a command line: files, folders, globs."""

from collections.abc import Sequence
from pathlib import Path

import torch

from dsl.data.files import find_pictures
from dsl.data.index import Index, Names


def read_pictures(given: Sequence[str | Path]) -> Index:
    """All images that the arguments name, in their order, each once."""
    names = find_pictures(given)
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
