"""Read one image file as RGB pixels, and resize pixels: the only reader and the only resize.

Training, prediction and the ONNX path must see the same pixels, so all of them call this file. It
needs numpy and Pillow only, and must not import torch or know of data sets and boxes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from dsl.errors import UserError
from dsl.files import GIGABYTE, check_file

MEAN_COLOR = (124, 116, 104)  # ImageNet's: close to what padding becomes

# A file of a few kilobytes can claim to hold a billion pixels; below Pillow's own limit, so that
# the refusal is ours and says what to do.
MAX_PIXELS = 175_000_000
MAX_BYTES = 2 * GIGABYTE  # so many pixels of 16 bits in four channels need less

# Named, because Pillow would otherwise try them all, and some (EPS) run outside programs.
_FORMATS = ("JPEG", "PNG", "BMP", "DIB", "WEBP", "TIFF", "GIF", "PPM")

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_BACK = _UPRIGHT | {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}

Pixels = NDArray[np.uint8]
Size = tuple[int, int]  # height, width
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class ReadImage:
    """Pixels, perhaps decoded at a reduced scale, and the size of the whole image."""

    pixels: Pixels  # (h, w, 3) RGB
    height: int  # of the file, in the orientation of the pixels
    width: int


@dataclass(frozen=True)
class _Header:
    """What the file says before any pixel is decoded."""

    raw: Size  # as stored
    orientation: int  # EXIF, 1 to 8; 1 is upright

    @property
    def upright(self) -> Size:
        return self.raw[::-1] if self.orientation >= 5 else self.raw

    def drawn_on_raw(self, expected: Size | None) -> bool:
        """Whether the annotation tool ignored EXIF: its size is the stored one, not the shown."""
        return expected == self.raw and expected != self.upright

    def size(self, expected: Size | None) -> Size:
        return self.raw if self.drawn_on_raw(expected) else self.upright


def read_image(
    path: str | Path, *, expected_size: Size | None = None, draft_short_side: int | None = None
) -> ReadImage:
    """The first frame of the file, upright by its EXIF tag.

    Where `expected_size`, the (height, width) that an annotation file states, is the stored size
    and not the upright one, the boxes were drawn on the stored pixels: these are then returned. A
    JPEG is decoded at the smallest of 1/1, 1/2, 1/4, 1/8 whose short side is still at least
    `draft_short_side`.
    """

    def decode(image: ImageFile.ImageFile) -> ReadImage:
        header = _header(image)
        height, width = header.size(expected_size)
        if draft_short_side is not None:
            image.draft(None, (draft_short_side, draft_short_side))
        turned = _turn(image, header, upright=not header.drawn_on_raw(expected_size))
        return ReadImage(np.array(to_rgb(turned)), height, width)  # a copy: torch wants to own it

    return _open(path, decode)


def read_size(path: str | Path, *, expected_size: Size | None = None) -> Size:
    """The height and width that `read_image` would report, from the header alone."""
    return _open(path, lambda image: _header(image).size(expected_size))


def resize_image(pixels: Pixels, height: int, width: int) -> Pixels:
    """Bilinear, with antialiasing where it shrinks."""
    if pixels.shape[:2] == (height, width):
        return pixels
    resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
    return np.array(resized)


def fitted_size(height: int, width: int, *, short_side: int, max_side: int) -> tuple[int, int]:
    """The size with this short side, unless the long one would exceed `max_side`; aspect kept."""
    scale = min(short_side / min(height, width), max_side / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def _open(path: str | Path, use: Callable[[ImageFile.ImageFile], _Result]) -> _Result:
    try:
        check_file(path, limit=MAX_BYTES)
        with Image.open(path, formats=_FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise _too_large(path)
            return use(image)
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path}: no such image file") from None
    except Image.DecompressionBombError:
        raise _too_large(path) from None
    except UnidentifiedImageError:
        raise UserError(f"{path}: not an image of a known format ({', '.join(_FORMATS)})") from None
    except Exception as error:  # on a broken file, Pillow's decoders raise nearly anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path}: the image cannot be read: {reason}") from error


def _too_large(path: str | Path) -> UserError:
    return UserError(f"{path}: more than {MAX_PIXELS:,} pixels; cut the image into tiles")


def _header(image: ImageFile.ImageFile) -> _Header:
    try:
        # The base class: a PNG's own method would decode the whole image to look for a late tag.
        orientation = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    except Exception:  # a broken tag block must not cost the image; it was never upright by it
        orientation = 1
    if orientation not in _UPRIGHT:
        orientation = 1
    width, height = image.size
    # Pillow gives the upright size of a TIFF, and turns it while loading.
    swapped = image.format == "TIFF" and orientation >= 5
    return _Header((width, height) if swapped else (height, width), orientation)


def _turn(image: ImageFile.ImageFile, header: _Header, *, upright: bool) -> Image.Image:
    image.load()
    is_upright = image.format == "TIFF" or header.orientation == 1
    if is_upright == upright or header.orientation == 1:
        return image
    turns = _UPRIGHT if upright else _BACK
    turned = image.transpose(turns[header.orientation])
    turned.info = image.info  # a transparent colour is written there
    return turned


def to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return _gray(np.asarray(image), full=65535.0)
    if image.mode == "I":  # Pillow's mode for 16 bits in some formats; clipped if it holds more
        return _gray(np.asarray(image), full=65535.0)
    if image.mode == "F":
        return _gray(np.asarray(image), full=_float_range(np.asarray(image)))
    if image.has_transparency_data:
        # On white: browsers and annotation tools show it so. Dropping alpha would instead uncover
        # whatever colour the editor left below.
        opaque = image.convert("RGBA")
        white = Image.new("RGBA", opaque.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, opaque).convert("RGB")
    return image.convert("RGB")


def _gray(values: NDArray[np.generic], *, full: float) -> Image.Image:
    """Values from 0 to `full` as 0 to 255, rounded: 16 bits are divided by 257, not cut off."""
    scaled = np.nan_to_num(values.astype(np.float64)).clip(0, full) * (255.0 / full)
    return Image.fromarray(np.rint(scaled).astype(np.uint8)).convert("RGB")


def _float_range(values: NDArray[np.generic]) -> float:
    """Floating-point images have no range of their own: the least usual one that holds them."""
    finite = values[np.isfinite(values.astype(np.float64))]
    largest = float(finite.max()) if len(finite) else 0.0
    return next((full for full in (1.0, 255.0, 65535.0) if largest <= full), largest)
