"""manifest.json beside split files: what they hold, and where their images are.

The split files themselves say nothing of places, so that they are byte-equal wherever they lie;
the COCO reader asks here for the image folder. It knows nothing of how a split was made.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class PartRecord:
    """One written file."""

    file: str
    sha256: str
    images: int
    boxes: int
    classes: Mapping[str, Mapping[str, int]]  # name -> {"images": ..., "boxes": ...}


@dataclass(frozen=True)
class PairRecord:
    """The labeled and the unlabeled part of one split."""

    seed: int
    percent: float
    labeled: PartRecord
    unlabeled: PartRecord


@dataclass(frozen=True)
class Manifest:
    """Everything about one folder of split files."""

    source: str
    source_sha256: str
    source_images: int
    source_boxes: int
    rule: str  # how the labeled images were chosen, for a reader
    image_root: str  # from the manifest's folder, or absolute
    splits: tuple[PairRecord, ...]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Written last: a folder that has one is complete."""
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")


def place_from(folder: Path, root: Path) -> str:
    """The root as the folder sees it, with forward slashes; absolute on another drive."""
    absolute = os.path.abspath(root)
    try:
        return Path(os.path.relpath(absolute, os.path.abspath(folder))).as_posix()
    except ValueError:
        return Path(absolute).as_posix()


def stated_root(path: Path) -> Path | None:
    """Where the images of a split file are, if a manifest of ours beside it lists the file."""
    try:
        content = json.loads((path.parent / MANIFEST).read_text(encoding="utf-8"))
        parts = (split[part] for split in content["splits"] for part in ("labeled", "unlabeled"))
        if any(part["file"] == path.name for part in parts):
            return path.absolute().parent / str(content["image_root"])
    except (OSError, ValueError, KeyError, TypeError):  # none, or some other project's
        return None
    return None
