"""YOLO sets by yaml and by folder; fractions become pixels, and each slip is named."""

import os
from pathlib import Path

import pytest
from PIL import Image

from dsl.data.yolo import read_yolo
from dsl.errors import UserError


def _image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (100, 50)).save(path)
    return path


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _set(root: Path) -> Path:
    """Two training images, one of them background, and one image for validation."""
    for name in ("train/a", "train/b", "val/c"):
        _image(root / "images" / f"{name}.jpg")
    _write(root / "labels/train/a.txt", "1 0.5 0.5 0.2 0.4\n\n0 .1 .2 .3 .2 .3 .6\n")
    _write(root / "labels/val/c.txt", "0 0.5 0.5 1 1\n")
    return _write(
        root / "data.yaml", "path: .\ntrain: images/train\nval: images/val\nnames: [cat, dog]\n"
    )


def _names(index) -> list[str]:
    return [index.names[i] for i in range(len(index))]


def test_fractions_become_pixels(tmp_path):
    index = read_yolo(_set(tmp_path))
    assert _names(index) == ["images/train/a.jpg", "images/train/b.jpg"]
    assert index.path(1).is_file()
    assert index.classes == ("cat", "dog")
    assert index.category_ids == (0, 1)
    assert index.sizes.tolist() == [[50, 100], [0, 0]]
    assert index.annotations.offsets.tolist() == [0, 2, 2]
    expected = [40, 15, 60, 35, 10, 10, 30, 30]
    assert index.annotations.boxes.flatten().tolist() == pytest.approx(expected)
    assert index.annotations.labels.tolist() == [1, 0]
    assert not index.annotations.ignored.any()


def test_split_chooses(tmp_path):
    path = _set(tmp_path)
    assert _names(read_yolo(path, "val")) == ["images/val/c.jpg"]
    assert _names(read_yolo(tmp_path, "val")) == ["images/val/c.jpg"]
    with pytest.raises(UserError, match=r"'test'.*train, val"):
        read_yolo(path, "test")
    with pytest.raises(UserError, match="'other'"):
        read_yolo(path, "other")


def test_names_as_numbers_with_gaps(tmp_path):
    path = _set(tmp_path)
    path.write_text("train: images/train\nnames: {1: dog, 0: cat, 5: cow}\n")
    index = read_yolo(path)
    assert index.classes == ("cat", "dog", "cow")
    assert index.category_ids == (0, 1, 5)
    _write(tmp_path / "labels/train/b.txt", "5 .5 .5 .1 .1")
    assert read_yolo(path).annotations.labels.tolist() == [1, 0, 2]


def test_lists_of_images_and_several_entries(tmp_path):
    path = _set(tmp_path)
    elsewhere = _image(tmp_path.parent / f"{tmp_path.name}_other" / "images" / "z.jpg")
    _write(tmp_path / "part.txt", f"./images/train/b.jpg\n{elsewhere}\n")
    path.write_text("train: [part.txt, images/val, images/val]\nnames: [cat, dog]\n")
    index = read_yolo(path)
    assert _names(index) == ["images/train/b.jpg", str(elsewhere), "images/val/c.jpg"]
    assert index.annotations.offsets.tolist() == [0, 0, 0, 1]


def test_paths_of_roboflow_and_of_a_moved_set(tmp_path):
    path = _set(tmp_path)
    path.write_text("path: /gone/away\ntrain: ../images/train\nnames: [cat, dog]\n")
    assert len(read_yolo(path)) == 2


def test_labels_beside_the_images(tmp_path):
    _image(tmp_path / "a.jpg")
    _write(tmp_path / "a.txt", "1 .5 .5 .5 .5")
    _write(tmp_path / "classes.txt", "cat\ndog\n")
    index = read_yolo(tmp_path)
    assert index.classes == ("cat", "dog")
    assert index.annotations.labels.tolist() == [1]


def test_a_folder_without_names_counts_its_classes(tmp_path):
    _set(tmp_path).unlink()
    index = read_yolo(tmp_path)
    assert _names(index) == ["images/train/a.jpg", "images/train/b.jpg"]
    assert index.classes == ("0", "1")
    assert _names(read_yolo(tmp_path, "val")) == ["images/val/c.jpg"]


def test_only_the_last_images_folder_is_replaced(tmp_path):
    root = tmp_path / "images" / "set"
    index = read_yolo(_set(root))
    assert len(index.annotations.boxes) == 2
    assert os.path.samefile(index.root, root)


def test_overhang_within_tolerance_is_clipped(tmp_path):
    path = _set(tmp_path)
    _write(tmp_path / "labels/train/a.txt", "0 0.95 0.5 0.2 1.005\n")
    assert read_yolo(path).annotations.boxes.tolist() == [[85, 0, 100, 50]]


def test_empty_boxes_are_dropped_and_named(tmp_path):
    path = _set(tmp_path)
    _write(tmp_path / "labels/train/a.txt", "0 0.5 0.5 0 0.1\n0 .5 .5 .1 .1\n")
    index = read_yolo(path)
    assert len(index.annotations.boxes) == 1
    assert "images/train/a.jpg" in index.notes[0]


def test_an_unreadable_labeled_image_is_dropped_and_named(tmp_path):
    path = _set(tmp_path)
    (tmp_path / "images/train/a.jpg").write_text("no image")
    index = read_yolo(path)
    assert _names(index) == ["images/train/b.jpg"]
    assert "images/train/a.jpg" in index.notes[0]
    (tmp_path / "images/train/b.jpg").unlink()
    with pytest.raises(UserError, match=r"a\.jpg"):
        read_yolo(path)


def test_a_set_without_any_label_file_is_refused(tmp_path):
    path = _set(tmp_path)
    (tmp_path / "labels/train/a.txt").unlink()
    with pytest.raises(UserError, match=r"labels/train/a\.txt"):
        read_yolo(path)


@pytest.mark.parametrize(
    "line",
    [
        "1 0.5 0.5 0.2",
        "1 0.5 0.5 0.2 0.4 0.9",
        "1 .1 .1 .2 .2 .3 .3 .4",
        "2 0.5 0.5 0.2 0.4",
        "-1 0.5 0.5 0.2 0.4",
        "1.0 0.5 0.5 0.2 0.4",
        "cat 0.5 0.5 0.2 0.4",
        "1 0.5 x 0.2 0.4",
        "1 50 25 20 20",
        "1 0.5 0.5 1.2 0.4",
        "1 nan 0.5 0.2 0.4",
        "1 0.5 0.5 -0.001 0.4",
    ],
)
def test_each_bad_line_is_named(tmp_path, line):
    path = _set(tmp_path)
    file = _write(tmp_path / "labels/train/a.txt", f"0 .5 .5 .1 .1\n{line}\n")
    with pytest.raises(UserError) as caught:
        read_yolo(path)
    assert f"{file}: line 2" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_label_file_that_is_no_text(tmp_path):
    path = _set(tmp_path)
    (tmp_path / "labels/train/a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"a\.txt"):
        read_yolo(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "just text",
        "\x00",
        "train: images/train\n",
        "train: images/train\nnames: []\n",
        "train: images/train\nnames: cat\n",
        "train: images/train\nnames: [cat, cat]\n",
        "train: images/train\nnames: [cat, no]\n",
        "train: images/train\nnames: {a: cat}\n",
        "train: images/train\nnames: {-1: cat}\n",
        "train: images/train\nnames: [cat, dog]\nnc: 3\n",
        "names: [cat, dog]\n",
        "train: 5\nnames: [cat, dog]\n",
        "train: [5]\nnames: [cat, dog]\n",
        "train: absent\nnames: [cat, dog]\n",
        "path: 5\ntrain: images/train\nnames: [cat, dog]\n",
        "train: labels\nnames: [cat, dog]\n",
    ],
)
def test_each_bad_yaml_is_named(tmp_path, text):
    path = _set(tmp_path)
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_yolo(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
