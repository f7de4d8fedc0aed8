"""A data set to look at, as one HTML page: images with boxes, classes, sizes.

The page needs no network. It measures and draws; how it looks is the template's matter, which
escapes every name, since class and file names are other people's text.
"""

import base64
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray
from PIL import Image

from dsl.data.index import Index
from dsl.errors import UserError
from dsl.image import Size, read_image, read_size, resize_image
from dsl.report.draw import IGNORED, Color, class_color, draw_boxes
from dsl.report.histogram import Plot, ratio_plot, size_plot
from dsl.types import Annotations

SAMPLE = 40  # images on the sheet
_TILE = 560  # pixels, the longer side of one of them
_SMALLEST = 200  # pixels, the shorter side that a small one is enlarged to
_CAPTIONED = 8  # boxes; with more, the names would cover the image, and colours must do
_HEADERS = 500  # images whose size is read from the file where the set does not tell it
_CLASSES = 200  # rows of the table of classes
_SIZES = 8  # rows of the table of image sizes

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Fact:
    """One figure of the headline."""

    name: str
    value: str


@dataclass(frozen=True)
class ClassRow:
    name: str
    color: str  # CSS
    boxes: int
    ignored: int
    images: int
    share: float  # of the most frequent class, percent


@dataclass(frozen=True)
class SizeRow:
    text: str
    count: int
    share: float  # percent of those looked at


@dataclass(frozen=True)
class Tile:
    """One image of the sheet; where it cannot be read, `problem` says why."""

    name: str
    detail: str
    picture: str = ""  # data URI
    problem: str = ""


def write_dataset_page(index: Index, out: Path, *, progress: Progress | None = None) -> None:
    """Write the page to `out`, which must not exist; `progress` is told the images drawn."""
    if out.exists():
        raise UserError(f"--out: {out} exists already; choose another name")
    tiles = []
    for done, position in enumerate(spaced(len(index), SAMPLE), start=1):
        tiles.append(_tile(index, position))
        if progress is not None:
            progress(done)
    sizes = _sizes(index)
    environment = Environment(
        loader=PackageLoader("dsl.report"), autoescape=True, undefined=StrictUndefined
    )
    rows = class_rows(index)
    text = environment.get_template("dataset.html.jinja").render(
        source=str(index.source), facts=_facts(index), notes=index.notes, tiles=tiles,
        total=len(index), classes=rows[:_CLASSES], more_classes=len(rows[_CLASSES:]),
        plots=_plots(index.annotations), sizes=_size_rows(sizes), num_sized=len(sizes),
        ignored=_css(IGNORED), labeled=index.annotations is not None,
    )  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8", errors="replace")  # a file name may be no valid text


def spaced(count: int, sample: int) -> list[int]:
    """Positions spread evenly over the set: the same ones every time."""
    if sample >= count:
        return list(range(count))
    return [(2 * turn + 1) * count // (2 * sample) for turn in range(sample)]


def class_rows(index: Index) -> list[ClassRow]:
    """Every class, most frequent first; also those without a box."""
    found = index.annotations
    if found is None:
        return []
    count = len(index.classes)
    boxes = np.bincount(found.labels.numpy(), minlength=count)
    ignored = np.bincount(found.labels[found.ignored].numpy(), minlength=count)
    owners = np.repeat(np.arange(len(found)), found.offsets.diff().numpy())
    pairs = np.unique(owners * max(1, count) + found.labels.numpy())  # each image and class once
    images = np.bincount(pairs % max(1, count), minlength=count)
    most = max(1, int(boxes.max(initial=0)))
    order = np.argsort(-boxes, kind="stable")
    return [
        ClassRow(
            index.classes[k], _css(class_color(k)), int(boxes[k]), int(ignored[k]), int(images[k]),
            100 * int(boxes[k]) / most,
        )
        for k in order.tolist()
    ]  # fmt: skip


def _facts(index: Index) -> list[Fact]:
    facts = [Fact("images", f"{len(index):,}")]
    found = index.annotations
    if found is None:
        return [*facts, Fact("labels", "none")]
    counts = found.offsets.diff()
    facts += [
        Fact("boxes", f"{len(found.boxes):,}"),
        Fact("classes", f"{len(index.classes):,}"),
        Fact("boxes an image", f"{len(found.boxes) / max(1, len(index)):.1f}"),
        Fact("most in one", f"{int(counts.max()) if len(counts) else 0:,}"),
        Fact("images without boxes", f"{int((counts == 0).sum()):,}"),
    ]
    ignored = int(found.ignored.sum())
    return [*facts, Fact("ignored boxes", f"{ignored:,}")] if ignored else facts


def _plots(found: Annotations | None) -> list[Plot]:
    if found is None or not len(found.boxes):
        return []
    sides = (found.boxes[:, 2:] - found.boxes[:, :2]).numpy()  # (B, 2) width, height
    return [size_plot(np.sqrt(sides.prod(axis=1))), ratio_plot(sides[:, 0] / sides[:, 1])]


def _sizes(index: Index) -> NDArray[np.int64]:
    """(K, 2) heights and widths: what the set tells, else the headers of some images."""
    known = index.sizes[(index.sizes > 0).all(dim=1)].numpy().astype(np.int64)
    if len(known):
        return known
    read = [_header(index.path(position)) for position in spaced(len(index), _HEADERS)]
    return np.array([size for size in read if size is not None], np.int64).reshape(-1, 2)


def _header(path: Path) -> Size | None:
    try:
        return read_size(path)
    except UserError:  # its tile, or the check before training, tells
        return None


def _size_rows(sizes: NDArray[np.int64]) -> list[SizeRow]:
    counts = Counter((int(width), int(height)) for height, width in sizes)
    common = counts.most_common(_SIZES)
    rows = [SizeRow(f"{w} x {h}", n, 100 * n / len(sizes)) for (w, h), n in common]
    rest = len(sizes) - sum(row.count for row in rows)
    if rest:
        others = len(counts) - len(rows)
        rows.append(SizeRow(f"{others:,} other sizes", rest, 100 * rest / len(sizes)))
    return rows


def _tile(index: Index, position: int) -> Tile:
    name = index.names[position]
    try:
        read = read_image(
            index.path(position), expected_size=index.size(position), draft_short_side=_TILE
        )
    except UserError as error:
        return Tile(name, "", problem=str(error))
    detail = f"{read.width} x {read.height}"
    scale = min(1.0, _TILE / max(read.width, read.height))
    height, width = max(1, round(scale * read.height)), max(1, round(scale * read.width))
    boxes, names, colors = np.zeros((0, 4)), [], []
    if index.annotations is not None:
        targets = index.annotations[position]
        boxes = targets.boxes.numpy() * ([width / read.width, height / read.height] * 2)
        names = [index.classes[label] for label in targets.labels.tolist()]
        colors = [
            IGNORED if ignored else class_color(label)
            for label, ignored in zip(
                targets.labels.tolist(), targets.ignored.tolist(), strict=True
            )
        ]
        detail += f", {len(boxes)} {'box' if len(boxes) == 1 else 'boxes'}"
    drawn = draw_boxes(
        resize_image(read.pixels, height, width), boxes,
        names if len(names) <= _CAPTIONED else [], colors=colors, min_side=_SMALLEST,
    )  # fmt: skip
    return Tile(name, detail, picture=_uri(drawn))


def _uri(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def _css(color: Color) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color)
