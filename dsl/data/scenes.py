"""The embedded data set "digit scenes": real handwritten digits on tiles, pasted into drawn scenes.

The digits are the 1,797 scans that scikit-learn carries, so a whole experiment runs without a
download. Equal options give equal annotations and equal pixels, and more images never change the
earlier ones: every image draws from its own generator, keyed by seed, split and image number.
It writes ordinary COCO files and must not know who reads them: no torch, no index, no training.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from dsl.errors import UserError

SPLITS = ("train", "val", "test")
NUM_CLASSES = 10
SCAN_SHARES = (0.6, 0.8)  # of each class: up to here for train, from there to here for val
VISIBLE = 32  # opacity of 255 below which a digit's rim is cleared, so that its box is exact
RIM = 80  # opacity at which a digit is cut; what is fainter would be sharpened away later
MARGIN = 3  # empty cells around a scan: room for its corners to turn in
CELL = 6  # pixels per scan cell while it turns
MAX_TILT = 28.0  # degrees
MAX_SQUEEZE = 1.25  # of its width against its height, either way
TILE, DIGIT = (100, 136), (165, 256)  # range of each colour, half-open; backgrounds are below 85
MAX_OVERLAP = 0.1  # of the smaller box
ATTEMPTS = 40  # places tried for a digit before it is left out

Pixels = NDArray[np.uint8]
Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class SceneOptions:
    """What the scenes look like; the same options always draw the same scenes."""

    size: int = 128  # height and width of an image
    min_digits: int = 3
    max_digits: int = 7
    min_side: int = 20  # longer side of a digit in pixels
    max_side: int = 52
    clutter: float = 1.0  # amount of thin lines and pixel noise
    imbalance: float = 0.0  # class k is as frequent as (k + 1) ** -imbalance
    seed: int = 0

    def __post_init__(self) -> None:
        _check_range("size", self.size, low=32, high=4096)
        _check_range("max_digits", self.max_digits, low=1, high=100)
        _check_range("min_digits", self.min_digits, low=1, high=self.max_digits)
        _check_range("max_side", self.max_side, low=8, high=self.size // 2)
        _check_range("min_side", self.min_side, low=8, high=self.max_side)
        _check_range("clutter", self.clutter, low=0, high=5)
        _check_range("imbalance", self.imbalance, low=0, high=5)
        _check_range("seed", self.seed, low=0, high=2**63 - 1)


@dataclass(frozen=True)
class Digit:
    """One digit in a scene."""

    label: int  # 0..9, what it shows
    scan: int  # its number in scikit-learn's set
    box: Box  # xyxy, half-open: its tile, a square as wide as its longer side


@dataclass(frozen=True)
class Scene:
    """One image and what it holds."""

    pixels: Pixels  # (H, W, 3)
    digits: tuple[Digit, ...]


def write_scenes(
    out: Path,
    options: SceneOptions,
    *,
    train: int = 1000,
    val: int = 200,
    test: int = 500,
    labeled: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write images/ and one COCO file per split; `progress` is told the images written so far.

    `labeled`: so many of the training images also become labeled.json, the others unlabeled.json,
    which keeps its labels to measure pseudo-labels by.
    """
    counts = dict(zip(SPLITS, (train, val, test), strict=True))
    for split, count in counts.items():
        _check_range(split, count, low=0, high=1_000_000)
    if labeled is not None:
        _check_range("labeled", labeled, low=1, high=train - 1)
    out = out.resolve()
    _check_free(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Drawn beside the goal and moved at the end: a killed run leaves no half-made data set.
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as beside:
            draft = Path(beside) / "scenes"
            done = 0
            for split, count in counts.items():
                _write_split(draft, options, split=split, count=count, done=done, progress=progress)
                done += count
            if labeled is not None:
                _part(draft, labeled)
            if out.exists():
                out.rmdir()  # not every system renames onto a folder, even an empty one
            draft.rename(out)
    except OSError as error:
        raise UserError(f"{out}: cannot write the scenes there: {error}") from error


def draw_scene(options: SceneOptions, split: str, *, number: int) -> Scene:
    """Scene `number` of a split; no other scene's existence changes it."""
    random = scene_random(options.seed, split, number=number)
    canvas = draw_background(options.size, random)
    _draw_lines(canvas, random, clutter=options.clutter)
    digits = []
    for label, scan, patch, (left, top) in _arrange(options, split, random=random):
        box = (left, top, left + patch.width, top + patch.height)
        # Between the darkest digit and the brightest background: the border of a box can be seen.
        tile, tint = (
            tuple(int(v) for v in random.integers(*shades, 3)) for shades in (TILE, DIGIT)
        )
        canvas.paste(tile, box)
        canvas.paste(tint, (left, top), patch)
        digits.append(Digit(label=label, scan=scan, box=box))
    return Scene(_add_noise(canvas, random, clutter=options.clutter), tuple(digits))


def scene_random(seed: int, split: str, *, number: int) -> np.random.Generator:
    """The generator of one scene: a hash of its key, no state shared with any other."""
    return np.random.Generator(np.random.PCG64((seed, SPLITS.index(split), number)))


def draw_background(size: int, random: np.random.Generator) -> Image.Image:
    """A dark, smooth field of colour: a few random cells, enlarged."""
    cells = int(random.integers(2, 6))
    coarse = random.integers(5, 85, (cells, cells, 3)).astype(np.uint8)
    return Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)


@cache
def scans_by_class(split: str) -> tuple[NDArray[np.int64], ...]:
    """The scans a split may use, per class; no scan serves two splits.

    The permutation is fixed, not drawn from the seed, so that the test scenes of one seed share no
    scan with the training scenes of another.
    """
    part = SPLITS.index(split)
    order = np.random.Generator(np.random.PCG64(0)).random(len(_scans()[1])).argsort(kind="stable")
    members = []
    for label in range(NUM_CLASSES):
        own = order[_scans()[1][order] == label]
        cuts = [int(share * len(own)) for share in SCAN_SHARES]
        members.append(np.split(own, cuts)[part])
    return tuple(members)


@cache
def _scans() -> tuple[Pixels, NDArray[np.int64]]:
    """Opacities (S, 14, 14) with their margin, and labels (S,), of all scans."""
    # Imported here because it takes a second and only this data set needs it.
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    # Ink of 0..16; the faint end is cut, because it fills the holes of an 8 and the angle of a 4.
    opacity = ((bunch.images - 3) * 20).clip(0, 255).astype(np.uint8)
    labels: NDArray[np.int64] = bunch.target.astype(np.int64)
    return np.pad(opacity, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN))), labels


def _arrange(
    options: SceneOptions, split: str, *, random: np.random.Generator
) -> list[tuple[int, int, Image.Image, tuple[int, int]]]:
    """Choose label, scan, mask and place of each digit.

    A digit without room is tried once more at the least height, then left out: a crowded scene
    holds fewer digits than were drawn. The tall ones go first, since they need the room.
    """
    count = int(random.integers(options.min_digits, options.max_digits + 1))
    heights = np.sort(random.integers(options.min_side, options.max_side + 1, count))[::-1]
    placed: list[tuple[int, int, Image.Image, tuple[int, int]]] = []
    boxes: list[Box] = []
    for height in heights.tolist():
        label = _draw_label(options.imbalance, random)
        scan = int(random.choice(scans_by_class(split)[label]))
        tilt = float(random.uniform(-MAX_TILT, MAX_TILT))
        squeeze = MAX_SQUEEZE ** float(random.uniform(-1, 1))
        for side in (height, options.min_side):
            patch = _digit_mask(scan, tilt, squeeze, side=side)
            corner = _find_place(patch.size, boxes, size=options.size, random=random)
            if corner is not None:
                placed.append((label, scan, patch, corner))
                boxes.append((*corner, corner[0] + patch.width, corner[1] + patch.height))
                break
    return placed


def _draw_label(imbalance: float, random: np.random.Generator) -> int:
    """A class, "0" the most frequent: a power law, flat where imbalance is 0."""
    weights = np.arange(1, NUM_CLASSES + 1, dtype=np.float64) ** -imbalance
    ceilings = np.cumsum(weights)
    return int(np.searchsorted(ceilings[:-1], random.random() * ceilings[-1], side="right"))


def _digit_mask(scan: int, tilt: float, squeeze: float, *, side: int) -> Image.Image:
    """The digit's opacity, turned and squeezed, in the middle of a square of this side or a little
    less.

    The square is the digit's tile and box: a "1" is a few pixels wide, and a box as narrow as that
    would measure single pixels instead of detection.
    """
    small = Image.fromarray(_scans()[0][scan])
    large = small.resize((small.width * CELL, small.height * CELL), Image.Resampling.BICUBIC)
    trimmed = _clear_below(large.rotate(tilt, Image.Resampling.BICUBIC), RIM)
    wide, high = trimmed.width * squeeze, trimmed.height
    scale = side / max(wide, high)
    size = (max(1, round(wide * scale)), max(1, round(high * scale)))
    grown = trimmed.resize(size, Image.Resampling.BICUBIC)
    return _framed(_clear_below(grown.point(_sharpened), VISIBLE))


def _framed(mask: Image.Image) -> Image.Image:
    """The mask in the middle of a square as wide as its longer side."""
    side = max(mask.size)
    square = Image.new("L", (side, side))
    square.paste(mask, ((side - mask.width) // 2, (side - mask.height) // 2))
    return square


def _sharpened(opacity: int) -> int:
    """Enlarged eight pixels fade over several; a box is only as exact as the edge it lies on."""
    return max(0, min(255, (opacity - 64) * 3))


def _clear_below(mask: Image.Image, least: int) -> Image.Image:
    """Cut the mask to its pixels of at least this opacity, and clear the fainter ones."""
    opacity = np.asarray(mask)
    cleared = Image.fromarray(np.where(opacity >= least, opacity, np.uint8(0)))
    return cleared.crop(cleared.getbbox())


def _find_place(
    patch: tuple[int, int], taken: list[Box], *, size: int, random: np.random.Generator
) -> tuple[int, int] | None:
    """A corner (left, top) where the patch hides little of the others, or None."""
    width, height = patch
    for _ in range(ATTEMPTS):
        left = int(random.integers(0, size - width + 1))
        top = int(random.integers(0, size - height + 1))
        box = (left, top, left + width, top + height)
        if all(_overlap(box, other) <= MAX_OVERLAP for other in taken):
            return left, top
    return None


def _overlap(a: Box, b: Box) -> float:
    """Common area over the smaller box: unlike IoU it sees a small digit inside a large one."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    smaller = min((a[2] - a[0]) * (a[3] - a[1]), (b[2] - b[0]) * (b[3] - b[1]))
    return max(width, 0) * max(height, 0) / smaller


def _draw_lines(canvas: Image.Image, random: np.random.Generator, *, clutter: float) -> None:
    """A few thin strokes behind the digits, some as bright as a digit."""
    draw = ImageDraw.Draw(canvas)
    for _ in range(round(clutter * float(random.uniform(2, 6)))):
        ends = [int(v) for v in random.integers(0, canvas.width, 4)]
        color = tuple(int(v) for v in random.integers(60, 200, 3))
        draw.line(ends, fill=color, width=max(1, canvas.width // 128))


def _add_noise(canvas: Image.Image, random: np.random.Generator, *, clutter: float) -> Pixels:
    """Independent noise on every value."""
    pixels = np.asarray(canvas).astype(np.int16)
    reach = round(16 * clutter)
    pixels += random.integers(-reach, reach + 1, pixels.shape, dtype=np.int16)
    return pixels.clip(0, 255).astype(np.uint8)


def _write_split(
    folder: Path,
    options: SceneOptions,
    *,
    split: str,
    count: int,
    done: int,
    progress: Callable[[int], None] | None,
) -> None:
    """Draw one split's images and write them with their annotations."""
    (folder / "images" / split).mkdir(parents=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(count):
        scene = draw_scene(options, split, number=number)
        name = f"images/{split}/{number:06d}.png"
        # PNG, because a JPEG's pixels depend on the library that reads it. Level 1, because noise
        # hardly compresses: the default level saves 3 percent.
        Image.fromarray(scene.pixels).save(folder / name, compress_level=1)
        size = {"width": options.size, "height": options.size}
        images.append({"id": number + 1, "file_name": name, **size})
        for digit in scene.digits:
            annotations.append(_annotation(digit, len(annotations) + 1, image=number + 1))
        if progress is not None:
            progress(done + number + 1)
    content = {
        "info": {"description": "digit scenes", "split": split, "options": asdict(options)},
        "images": images,
        "annotations": annotations,
        "categories": [{"id": label + 1, "name": str(label)} for label in range(NUM_CLASSES)],
    }
    (folder / f"{split}.json").write_text(json.dumps(content), encoding="utf-8")


def _part(folder: Path, labeled: int) -> None:
    """The first images become labeled.json: scenes have no order, so these are as good as any."""
    content = json.loads((folder / "train.json").read_text(encoding="utf-8"))
    for name, few in (("labeled", True), ("unlabeled", False)):
        images = [image for image in content["images"] if (image["id"] <= labeled) == few]
        annotations = [a for a in content["annotations"] if (a["image_id"] <= labeled) == few]
        part = {**content, "images": images, "annotations": annotations}
        (folder / f"{name}.json").write_text(json.dumps(part), encoding="utf-8")


def _annotation(digit: Digit, identity: int, *, image: int) -> dict[str, Any]:
    """One COCO annotation; `scan` is ours, so that anyone can check that splits share none."""
    left, top, right, bottom = digit.box
    width, height = float(right - left), float(bottom - top)
    return {
        "id": identity,
        "image_id": image,
        "category_id": digit.label + 1,
        "bbox": [float(left), float(top), width, height],
        "area": width * height,
        "iscrowd": 0,
        "scan": digit.scan,
    }


def _check_range(name: str, value: float, *, low: float, high: float) -> None:
    if not low <= value <= high:  # in this form it refuses NaN too
        raise UserError(f"{name}: {value} is not allowed; give a value from {low} to {high}")


def _check_free(out: Path) -> None:
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists():
        raise UserError(f"{out} exists and is not an empty folder; remove it or name another one")
