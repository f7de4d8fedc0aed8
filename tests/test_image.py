"""Known colours painted in every mode and orientation come back as the RGB pixels one sees."""

import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dsl import image as reader
from dsl.errors import UserError
from dsl.image import read_image, read_size, resize_image

# By the EXIF standard, the inverse of what a viewer must do.
_STORED_FROM_UPRIGHT = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def _pattern(height: int, width: int) -> np.ndarray:
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(20, 240, height).astype(np.uint8)[:, None]
    pixels[..., 1] = np.linspace(10, 250, width).astype(np.uint8)[None, :]
    return pixels


def _save_turned(path: Path, upright: np.ndarray, orientation: int) -> Image.Image:
    stored = Image.fromarray(upright)
    turn = _STORED_FROM_UPRIGHT[orientation]
    if turn is not None:
        stored = stored.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(path, exif=exif, **({"lossless": True} if path.suffix == ".webp" else {}))
    return stored


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "tif", "webp"])
def test_exif_orientation_is_undone(tmp_path, orientation, suffix):
    path = tmp_path / f"a.{suffix}"
    upright = _pattern(24, 40)
    _save_turned(path, upright, orientation)
    read = read_image(path)
    assert np.array_equal(read.pixels, upright)
    assert (read.height, read.width) == read_size(path) == (24, 40)


@pytest.mark.parametrize("orientation", range(5, 9))
@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_boxes_drawn_on_the_stored_pixels_get_the_stored_pixels(tmp_path, orientation, suffix):
    path = tmp_path / f"a.{suffix}"
    stored = _save_turned(path, _pattern(24, 40), orientation)
    read = read_image(path, expected_size=(40, 24))
    assert np.array_equal(read.pixels, np.asarray(stored))
    assert (read.height, read.width) == (40, 24) == read_size(path, expected_size=(40, 24))
    assert read_size(path, expected_size=(24, 40)) == (24, 40)
    assert read_size(path, expected_size=(7, 7)) == (24, 40)


def test_a_turned_jpeg_is_upright(tmp_path):
    path = tmp_path / "a.jpg"
    _save_turned(path, np.kron(_pattern(3, 5), np.ones((16, 16, 1), np.uint8)), 6)
    read = read_image(path)
    assert read.pixels.shape == (48, 80, 3)
    assert read.pixels[8, 8, 1] < 40 < 200 < read.pixels[8, 72, 1]


def _one_pixel(tmp_path: Path, image: Image.Image, suffix: str = "png", **options: object) -> list:
    path = tmp_path / f"a.{suffix}"
    image.save(path, **options)
    read = read_image(path)
    assert read.pixels.dtype == np.uint8
    assert read.pixels.shape == (image.height, image.width, 3)
    assert read.pixels.flags.writeable
    return read.pixels[0, 0].tolist()


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("RGB", (3, 2), (10, 20, 30)), [10, 20, 30]),
        (Image.new("L", (3, 2), 77), [77, 77, 77]),
        (Image.new("1", (3, 2), 1), [255, 255, 255]),
        (Image.new("1", (3, 2), 0), [0, 0, 0]),
        (Image.new("RGBA", (3, 2), (10, 20, 30, 255)), [10, 20, 30]),
        (Image.new("RGBA", (3, 2), (10, 20, 30, 0)), [255, 255, 255]),
        (Image.new("RGBA", (3, 2), (0, 0, 0, 51)), [204, 204, 204]),
        (Image.new("LA", (3, 2), (40, 255)), [40, 40, 40]),
        (Image.new("LA", (3, 2), (40, 0)), [255, 255, 255]),
    ],
)
def test_modes(tmp_path, image, expected):
    assert _one_pixel(tmp_path, image) == expected


def test_palette_without_and_with_a_transparent_colour(tmp_path):
    image = Image.new("P", (3, 2), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    assert _one_pixel(tmp_path, image) == [200, 100, 50]
    assert _one_pixel(tmp_path, image, transparency=1) == [255, 255, 255]
    assert _one_pixel(tmp_path, image, transparency=0) == [200, 100, 50]


def test_a_transparent_colour_of_an_rgb_image_survives_turning(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.new("RGB", (3, 2), (9, 9, 9))
    image.save(tmp_path / "a.png", transparency=(9, 9, 9), exif=exif)
    assert read_image(tmp_path / "a.png").pixels[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, suffix):
    values = np.array([[0, 257, 25700, 32896, 65535]], np.uint16)
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(values).save(path)
    assert read_image(path).pixels[0, :, 0].tolist() == [0, 1, 100, 128, 255]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 25700, 65535, 70000]], np.int32), [0, 100, 255, 255]),
        (np.array([[0.0, 0.2, 1.0, np.nan]], np.float32), [0, 51, 255, 0]),
        (np.array([[0.0, 51.0, 255.0, -3.0]], np.float32), [0, 51, 255, 0]),
        (np.array([[0.0, 25700.0, 65535.0, 257.0]], np.float32), [0, 100, 255, 1]),
    ],
)
def test_wide_grayscale(tmp_path, values, expected):
    Image.fromarray(values).save(tmp_path / "a.tif")
    assert read_image(tmp_path / "a.tif").pixels[0, :, 2].tolist() == expected


def test_cmyk_of_adobe_is_not_inverted(tmp_path):
    pixel = _one_pixel(tmp_path, Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "jpg", quality=95)
    assert pixel[0] > 240
    assert max(pixel[1:]) < 15


def test_a_jpeg_is_decoded_small_but_not_below_the_short_side(tmp_path):
    Image.fromarray(_pattern(640, 900)).save(tmp_path / "a.jpg")
    read = read_image(tmp_path / "a.jpg", draft_short_side=150)
    assert read.pixels.shape[:2] == (160, 225)
    assert (read.height, read.width) == (640, 900)
    assert read_image(tmp_path / "a.jpg", draft_short_side=161).pixels.shape[:2] == (320, 450)
    assert read_image(tmp_path / "a.jpg", draft_short_side=2000).pixels.shape[:2] == (640, 900)


def test_draft_and_turn_agree(tmp_path):
    _save_turned(tmp_path / "a.jpg", _pattern(640, 900), 8)
    read = read_image(tmp_path / "a.jpg", draft_short_side=300)
    assert read.pixels.shape[:2] == (320, 450)
    assert (read.height, read.width) == (640, 900)


def _bomb(path: Path) -> None:
    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    crc = zlib.crc32(b"IHDR" + header)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", crc)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + b"\0\0\0\0IDAT")


def _cut(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(path, "JPEG")
    path.write_bytes(path.read_bytes()[:1500])


@pytest.mark.parametrize(
    "spoil",
    [
        _bomb,
        _cut,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("no image"),
        lambda path: path.mkdir(),
        lambda path: None,
    ],
    ids=["bomb", "cut", "empty", "text", "folder", "absent"],
)
def test_bad_files_are_named_in_one_line(tmp_path, spoil):
    path = tmp_path / "bad.jpg"
    spoil(path)
    with pytest.raises(UserError) as caught:
        read_image(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_our_own_pixel_limit(tmp_path, monkeypatch):
    Image.new("L", (20, 10)).save(tmp_path / "a.png")
    monkeypatch.setattr(reader, "MAX_PIXELS", 199)
    with pytest.raises(UserError, match=r"a\.png: more than 199 pixels"):
        read_size(tmp_path / "a.png")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_costs_the_turn_not_the_image(tmp_path):
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert read_size(tmp_path / "a.jpg") == (20, 30)
    assert read_image(tmp_path / "a.jpg").pixels.shape == (20, 30, 3)


def test_shrinking_averages_instead_of_skipping():
    stripes = np.zeros((32, 32, 3), np.uint8)
    stripes[:, ::2] = 255
    small = resize_image(stripes, 8, 4)
    assert small.shape == (8, 4, 3)
    assert 110 < small.min() <= small.max() < 145
    assert resize_image(stripes, 32, 32) is stripes


def test_the_reader_needs_no_torch():
    code = "import sys, dsl.image; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
