"""Find the images that the export of an annotation tool names.

Tools write names as they know them: below their own storage, behind a URL, without a folder. It
knows no format: it is given, for each image, the names that it may have.
"""

from collections.abc import Sequence
from pathlib import Path

_PROBED = 20  # that many images are looked for when guessing the folder


def endings(name: str) -> list[str]:
    """a/b/c.jpg -> a/b/c.jpg, b/c.jpg, c.jpg."""
    parts = name.strip("/").split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]


def locate(
    file: Path, names: Sequence[Sequence[str]], *, in_images: bool
) -> tuple[Path, list[str]]:
    """The folder where the names start, and the name of each image below it.

    `names[i]` are those that image i may have, best first, at least one. The export lies beside the
    images, or in a folder beside theirs; an image that is nowhere keeps its best name. `in_images`
    says where the tool's own names start: in the folder images/, or beside it.
    """
    folder = file.absolute().parent
    pairs = [(base, base / "images") for base in (folder, folder.parent)]
    places = [place for pair in pairs for place in (reversed(pair) if in_images else pair)]
    root = next((place for place in places if _holds(place, names[:_PROBED])), folder)
    return root, [_first(root, options) or options[0] for options in names]


def _holds(place: Path, names: Sequence[Sequence[str]]) -> bool:
    return any(_first(place, options) for options in names)


def _first(place: Path, options: Sequence[str]) -> str | None:
    return next((name for name in options if (place / name).is_file()), None)
