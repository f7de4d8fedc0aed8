"""Bad images leave the index with a reason; too many of them stop the run."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dsl.data import check
from dsl.data.check import check_images
from dsl.data.coco import read_coco
from dsl.data.folder import read_folder
from dsl.errors import UserError


def _save(path: Path, size: tuple[int, int] = (40, 30), *, orientation: int = 1) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    noise = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), np.uint8)
    Image.fromarray(noise).save(path, exif=exif)


def _folder(tmp_path: Path, count: int) -> Path:
    for number in range(count):
        _save(tmp_path / f"{number:04d}.jpg")
    return tmp_path


def _names(index) -> list[str]:
    return [index.names[i] for i in range(len(index))]


def test_a_good_set_comes_back_unchanged(tmp_path):
    index = read_folder(_folder(tmp_path, 5))
    done = []
    assert check_images(index, progress=done.append) is index
    assert done == [5]


def test_few_bad_images_are_dropped_and_named(tmp_path):
    index = read_folder(_folder(tmp_path, 6))
    (tmp_path / "0001.jpg").unlink()
    (tmp_path / "0003.jpg").write_text("no image")
    whole = (tmp_path / "0004.jpg").read_bytes()
    (tmp_path / "0004.jpg").write_bytes(whole[: len(whole) * 2 // 3])
    checked = check_images(index, workers=2)
    assert _names(checked) == ["0000.jpg", "0002.jpg", "0005.jpg"]
    [note] = checked.notes
    assert "3 of 6" in note
    for name in ("0001.jpg", "0003.jpg", "0004.jpg"):
        assert name in note


def test_headers_only_for_a_large_set_miss_the_broken_tail(tmp_path, monkeypatch):
    index = read_folder(_folder(tmp_path, 6))
    whole = (tmp_path / "0004.jpg").read_bytes()
    (tmp_path / "0004.jpg").write_bytes(whole[: len(whole) * 2 // 3])
    (tmp_path / "0001.jpg").unlink()
    monkeypatch.setattr(check, "MAX_DECODED", 5)
    assert "0001.jpg" not in _names(checked := check_images(index))
    assert len(checked) == 5


def test_many_bad_images_are_an_error(tmp_path):
    index = read_folder(_folder(tmp_path, 6))
    for number in range(4):
        (tmp_path / f"{number:04d}.jpg").write_text("no image")
    with pytest.raises(UserError, match="4 of 6") as caught:
        check_images(index)
    assert "\n" not in str(caught.value)


def test_absent_images_tell_where_they_were_looked_for(tmp_path):
    index = read_folder(_folder(tmp_path, 2))
    for number in range(2):
        (tmp_path / f"{number:04d}.jpg").unlink()
    with pytest.raises(UserError, match=f"2 of 2 images are absent below {tmp_path}"):
        check_images(index)


def test_a_sample_is_spread_evenly(tmp_path):
    index = read_folder(_folder(tmp_path, 9))
    for number in (1, 2):
        (tmp_path / f"{number:04d}.jpg").unlink()
    assert _names(check_images(index, sample=3)) == [
        f"{number:04d}.jpg" for number in (0, 2, 3, 4, 5, 6, 7, 8)
    ]
    with pytest.raises(UserError, match="sample 0"):
        check_images(index, sample=0)


def test_a_sample_that_is_all_bad_is_an_error(tmp_path):
    index = read_folder(_folder(tmp_path, 9))
    for number in (1, 4, 7):
        (tmp_path / f"{number:04d}.jpg").unlink()
    with pytest.raises(UserError, match="3 of 3"):
        check_images(index, sample=3)


@pytest.mark.parametrize("decoded", [0, 5000])
def test_another_size_than_annotated_is_bad_unless_exif_explains_it(tmp_path, monkeypatch, decoded):
    monkeypatch.setattr(check, "MAX_DECODED", decoded)
    _save(tmp_path / "same.jpg")
    _save(tmp_path / "turned.jpg", orientation=6)
    _save(tmp_path / "stored.jpg", orientation=6)
    _save(tmp_path / "other.jpg", (41, 30))
    sizes = {"same": (30, 40), "turned": (40, 30), "stored": (30, 40), "other": (30, 40)}
    images = [
        {"id": number, "file_name": f"{name}.jpg", "height": size[0], "width": size[1]}
        for number, (name, size) in enumerate(sizes.items())
    ]
    boxes = [{"image_id": 2, "category_id": 1, "bbox": [1, 2, 3, 4]}]
    document = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "a"}]}
    (tmp_path / "a.json").write_text(json.dumps(document))
    checked = check_images(read_coco(tmp_path / "a.json"))
    assert _names(checked) == ["same.jpg", "turned.jpg", "stored.jpg"]
    assert checked.annotations.offsets.tolist() == [0, 0, 0, 1]
    assert "41 x 30" in checked.notes[0]
