"""Draw boxes with readable captions on an image.

It sees pixels, boxes, words and colours only: what a colour means (a class, a pseudo-label's fate)
is the caller's matter. numpy and Pillow, no torch, so that the ONNX path can use it too.
"""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

Color = tuple[int, int, int]
Corners = tuple[int, int, int, int]  # xyxy, half-open, in pixels of the drawing
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

FOREGROUND: Color = (0, 200, 80)  # a pseudo-label that is trained on
IGNORED: Color = (255, 176, 0)  # one that is neither object nor background

# Chosen one after the other, each the farthest in CIELAB from all before it, among colours that
# are neither dark nor grey. The first ones therefore differ most.
PALETTE: tuple[Color, ...] = (
    (255, 68, 51),
    (0, 255, 0),
    (68, 68, 255),
    (119, 221, 238),
    (238, 204, 0),
    (255, 136, 221),
    (0, 119, 34),
    (0, 102, 187),
    (204, 153, 119),
    (0, 255, 187),
    (255, 0, 255),
    (170, 238, 102),
    (255, 0, 119),
    (136, 85, 119),
    (204, 119, 0),
    (136, 68, 187),
    (187, 187, 255),
    (136, 136, 17),
    (204, 238, 187),
    (34, 119, 102),
    (170, 68, 51),
    (255, 17, 187),
    (255, 136, 153),
    (0, 170, 0),
)


def class_color(label: int) -> Color:
    """The colour of a class; past the palette's end the colours repeat."""
    return PALETTE[label % len(PALETTE)]


def caption(name: str, score: float | None = None) -> str:
    """A class name and, where there is one, its score."""
    return name if score is None else f"{name} {score:.2f}"


def draw_boxes(
    pixels: NDArray[np.uint8],
    boxes: ArrayLike,
    labels: Sequence[str] = (),
    *,
    colors: Sequence[Color] = (),
    min_side: int = 512,
) -> Image.Image:
    """Draw (M, 4) xyxy boxes, the most important first, on a copy of the (H, W, 3) pixels.

    `labels` are captions, one per box, "" for none; () leaves out all. `colors` are one per box;
    () gives box i the colour of class i. An image whose shorter side is far below `min_side` is
    enlarged by a whole factor.
    """
    corners = np.asarray(boxes, np.float64).reshape(-1, 4)  # (M, 4); an empty list has no shape
    labels = labels or [""] * len(corners)
    colors = colors or [class_color(number) for number in range(len(corners))]
    if not len(corners) == len(labels) == len(colors):
        counts = f"{len(corners)} boxes, {len(labels)} labels, {len(colors)} colors"
        raise ValueError(f"expected one label and one color per box, got {counts}")
    canvas, factor = _enlarge(_as_rgb(pixels), min_side)
    draw = ImageDraw.Draw(canvas)
    placed = [_on_canvas(box * factor, canvas.size) for box in corners]
    # Backwards, so that the first box lies on top; tags last, so that no border crosses a word.
    for box, color in reversed(list(zip(placed, colors, strict=True))):
        _draw_border(draw, box, color=color)
    _draw_tags(draw, placed, labels=labels, colors=colors)
    return canvas


def _as_rgb(pixels: NDArray[np.uint8]) -> Image.Image:
    """An own copy of the image; one channel, with or without its axis, becomes three."""
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    colored = pixels.ndim == 3 and pixels.shape[2] == 3
    if pixels.dtype != np.uint8 or pixels.size == 0 or not (colored or pixels.ndim == 2):
        raise ValueError(f"pixels: expected (H, W, 3) uint8, got {pixels.shape} {pixels.dtype}")
    return Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB").copy()


def _enlarge(image: Image.Image, min_side: int) -> tuple[Image.Image, int]:
    """Enlarge by a whole factor, so that boxes stay on pixel borders; and say the factor."""
    short, long = sorted(image.size)
    # The longer side counts too, or a strip of one pixel's height would become enormous.
    factor = max(1, min(min_side // short, 4 * min_side // long))
    size = (image.width * factor, image.height * factor)
    return image.resize(size, Image.Resampling.BICUBIC), factor


def _on_canvas(box: NDArray[np.float64], size: tuple[int, int]) -> Corners:
    """Whole pixels inside the image, at least one: what sticks out is cut at the image's edge."""
    limits = np.array([*size, *size])
    left, top, right, bottom = (int(v) for v in np.clip(np.rint(box), 0, limits))
    left, top = min(left, size[0] - 1), min(top, size[1] - 1)
    return left, top, max(right, left + 1), max(bottom, top + 1)


def _draw_border(draw: ImageDraw.ImageDraw, box: Corners, *, color: Color) -> None:
    left, top, right, bottom = box
    width = max(1, min(draw.im.size) // 200)
    # Pillow's outline leaves a rectangle that has no inside, so such a one is filled.
    fill = color if min(right - left, bottom - top) <= 2 * width else None
    draw.rectangle((left, top, right - 1, bottom - 1), fill, None if fill else color, width)


def _draw_tags(
    draw: ImageDraw.ImageDraw,
    boxes: Sequence[Corners],
    *,
    labels: Sequence[str],
    colors: Sequence[Color],
) -> None:
    """Write each caption on a filled tag at its box, clear of the tags before it if possible."""
    size = draw.im.size
    font = _load_font(max(12, min(size) // 32))
    pad = max(1, min(size) // 250)
    taken: list[Corners] = []
    for box, label, color in zip(boxes, labels, colors, strict=True):
        text = _fit(" ".join(label.split()), font, width=size[0] - 2 * pad)
        if not text:
            continue
        tag = _place_tag(box, _text_size(text, font, pad=pad), size=size, taken=taken)
        taken.append(tag)
        draw.rectangle((tag[0], tag[1], tag[2] - 1, tag[3] - 1), fill=color)
        draw.text((tag[0] + pad, tag[1] + pad), text, fill=_ink_on(color), font=font)


@cache
def _load_font(height: int) -> Font:
    """DejaVu Sans, which matplotlib carries: Pillow's own font knows ASCII only, no "é", no "ß"."""
    spec = find_spec("matplotlib")  # found, not imported: drawing boxes needs no plotting
    if spec is not None and spec.origin is not None:
        file = Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
        if file.is_file():
            return ImageFont.truetype(str(file), height)
    return ImageFont.load_default(height)


def _text_size(text: str, font: Font, *, pad: int) -> tuple[int, int]:
    """Width and height of a tag. The height is the font's, so that all tags are alike."""
    bottom = font.getbbox("Ágjy|")[3]
    return int(np.ceil(font.getlength(text))) + 2 * pad, int(np.ceil(bottom)) + 2 * pad


def _fit(text: str, font: Font, *, width: int) -> str:
    """The text, cut from its end until it is no wider than this; perhaps nothing remains."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..." if text else ""


def _place_tag(
    box: Corners, tag: tuple[int, int], *, size: tuple[int, int], taken: Sequence[Corners]
) -> Corners:
    """Above the box, else below, else inside it; always inside the image."""
    left = min(box[0], size[0] - tag[0])
    tops = (box[1] - tag[1], box[3], box[1], box[3] - tag[1])
    options = [(left, top, left + tag[0], top + tag[1]) for top in tops]
    inside = [o for o in options if o[1] >= 0 and o[3] <= size[1]]
    free = [o for o in inside if not any(_touch(o, other) for other in taken)]
    # An image less high than a word: the tag starts at its top edge and is cut.
    return (free or inside or [(left, 0, left + tag[0], tag[1])])[0]


def _touch(a: Corners, b: Corners) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _ink_on(color: Color) -> Color:
    """Black or white, whichever can be read on this colour (luma of ITU-R BT.601)."""
    luma = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]
    return (0, 0, 0) if luma > 128 else (255, 255, 255)
