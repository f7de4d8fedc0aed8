"""A COCO file becomes the index it describes, and each slip is named."""

import copy
import json
import math
import os
from pathlib import Path

import pytest

from dsl.data.coco import read_coco
from dsl.errors import UserError

_SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"

GOOD = {
    "annotations": [
        {"id": 1, "image_id": 20, "category_id": 7, "bbox": [1, 2, 3.5, 4], "area": 9.5},
        {"id": 2, "image_id": 10, "category_id": 3, "bbox": [-1, 0, 5, 5], "iscrowd": 1},
        {"id": 3, "image_id": 20, "category_id": 3, "bbox": [90, 40, 30, 30], "iscrowd": 0},
    ],
    "images": [
        {"id": 10, "file_name": "a.jpg", "height": 50, "width": 100},
        {"id": 20, "file_name": "sub/b.jpg", "height": 50, "width": 100},
        {"id": 5, "file_name": "c\u00e9.jpg", "height": 50.0},
    ],
    "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog", "supercategory": "x"}],
    "info": {"year": 1},
    "licenses": [],
}


def _write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_columns(tmp_path):
    index = read_coco(_write(tmp_path / "a.json", GOOD))
    assert [index.names[i] for i in range(3)] == ["a.jpg", "sub/b.jpg", "cé.jpg"]
    assert index.ids.tolist() == [10, 20, 5]
    assert index.sizes.tolist() == [[50, 100], [50, 100], [50, 0]]
    assert index.classes == ("dog", "cat")
    assert index.category_ids == (3, 7)
    found = index.annotations
    assert found.offsets.tolist() == [0, 1, 3, 3]
    assert found.boxes.tolist() == [[0, 0, 4, 5], [1, 2, 4.5, 6], [90, 40, 100, 50]]
    assert found.labels.tolist() == [0, 1, 0]
    assert found.ignored.tolist() == [True, False, False]
    assert found.areas.tolist() == [20, 9.5, 100]
    assert index.notes == ()
    assert index.source == tmp_path / "a.json"


def test_no_annotations_key_means_unlabeled(tmp_path):
    for keys in (("images",), ("images", "categories")):
        index = read_coco(_write(tmp_path / "a.json", {key: GOOD[key] for key in keys}))
        assert index.annotations is None
        assert len(index) == 3


def test_an_empty_annotations_key_means_no_objects(tmp_path):
    index = read_coco(_write(tmp_path / "a.json", GOOD | {"annotations": []}))
    assert index.annotations.offsets.tolist() == [0, 0, 0, 0]
    assert index.notes == ()


@pytest.mark.parametrize(
    ("file", "image"),
    [
        ("set/train.json", "set/a.jpg"),
        ("set/train.json", "set/images/a.jpg"),
        ("set/train.json", "set/train/a.jpg"),
        ("set/instances_train2017.json", "set/train2017/a.jpg"),
        ("set/annotations/instances_train2017.json", "set/train2017/a.jpg"),
        ("set/annotations/instances_train2017.json", "set/images/train2017/a.jpg"),
        ("set/annotations/train.json", "set/images/a.jpg"),
        ("set/annotations/train.json", "set/a.jpg"),
    ],
)
def test_the_image_folder_is_found(tmp_path, file, image):
    for path in (file, image):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / image).touch()
    index = read_coco(_write(tmp_path / file, GOOD))
    assert os.path.samefile(index.path(0), tmp_path / image)


def test_the_image_folder_is_found_from_inside(tmp_path, monkeypatch):
    for folder in ("annotations", "images"):
        (tmp_path / folder).mkdir()
    (tmp_path / "images" / "a.jpg").touch()
    _write(tmp_path / "annotations" / "train.json", GOOD)
    monkeypatch.chdir(tmp_path / "annotations")
    assert read_coco(Path("train.json")).path(0).is_file()


def test_without_any_image_the_folder_of_the_file_is_the_root(tmp_path):
    assert read_coco(_write(tmp_path / "a.json", GOOD)).root == tmp_path


def test_a_given_root_is_taken_and_must_exist(tmp_path):
    path = _write(tmp_path / "a.json", GOOD)
    (tmp_path / "here").mkdir()
    assert read_coco(path, tmp_path / "here").root == tmp_path / "here"
    with pytest.raises(UserError, match="does not exist"):
        read_coco(path, tmp_path / "absent")


def _changed(place: tuple[object, ...], value: object) -> dict[str, object]:
    document = copy.deepcopy(GOOD)
    target = document
    for step in place[:-1]:
        target = target[step]
    if value is _REMOVED:
        del target[place[-1]]
    else:
        target[place[-1]] = value
    return document


_REMOVED = object()
_BOX = ("annotations", 1, "bbox")


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        (("images",), _REMOVED, "images"),
        (("images",), [], "images"),
        (("images",), {}, "images"),
        (("images",), None, "images"),
        (("images", 1), 7, "images[1]"),
        (("images", 1, "id"), _REMOVED, "images[1]"),
        (("images", 1, "id"), "20", "'20'"),
        (("images", 1, "id"), True, "True"),
        (("images", 1, "id"), 2**70, "id"),
        (("images", 1, "id"), 10, "sub/b.jpg"),
        (("images", 1, "file_name"), _REMOVED, "file_name"),
        (("images", 1, "file_name"), 3, "file_name"),
        (("images", 1, "file_name"), "", "file_name"),
        (("images", 1, "file_name"), "/etc/passwd", "/etc/passwd"),
        (("images", 1, "file_name"), "../b.jpg", "../b.jpg"),
        (("images", 1, "file_name"), "a/../../b.jpg", "a/../../b.jpg"),
        (("images", 1, "file_name"), "..\\b.jpg", "file_name"),
        (("images", 1, "file_name"), "C:\\b.jpg", "file_name"),
        (("images", 1, "file_name"), "a\0.jpg", "file_name"),
        (("images", 1, "file_name"), "\ud800.jpg", "file_name"),
        (("images", 1, "height"), "50", "height"),
        (("images", 1, "height"), -50, "-50"),
        (("images", 1, "width"), 1.5, "1.5"),
        (("images", 1, "width"), True, "True"),
        (("annotations",), None, "annotations"),
        (("annotations", 1), [1], "annotations[1]"),
        (_BOX, _REMOVED, "annotations[1] (id 2)"),
        (_BOX, "1 2 3 4", "bbox"),
        (_BOX, [1, 2, 3], "[1, 2, 3]"),
        (_BOX, [1, 2, 3, "4"], "bbox"),
        (_BOX, [1, 2, 3, None], "bbox"),
        (_BOX, [1, 2, 3, True], "bbox"),
        (_BOX, [1, 2, 3, math.nan], "annotations[1]"),
        (_BOX, [math.inf, 2, 3, 4], "annotations[1]"),
        (_BOX, [1, 2e6, 3, 4], "annotations[1]"),
        (_BOX, [1, 10**400, 3, 4], "annotations[1]"),
        (_BOX, [1, 2, -3, 4], "annotations[1]"),
        (("annotations", 1, "image_id"), 11, "11"),
        (("annotations", 1, "image_id"), 10.0, "image_id"),
        (("annotations", 1, "image_id"), _REMOVED, "image_id"),
        (("annotations", 1, "category_id"), 4, "category_id"),
        (("annotations", 1, "category_id"), "dog", "category_id"),
        (("annotations", 1, "iscrowd"), 2, "iscrowd"),
        (("annotations", 1, "iscrowd"), "0", "iscrowd"),
        (("annotations", 1, "area"), -1, "area"),
        (("annotations", 1, "area"), math.nan, "area"),
        (("annotations", 1, "area"), "9", "area"),
        (("categories",), _REMOVED, "categories"),
        (("categories",), [], "categories"),
        (("categories", 0, "id"), 3, "3"),
        (("categories", 0, "name"), "dog", "dog"),
        (("categories", 0, "name"), "", "name"),
        (("categories", 0, "name"), 5, "name"),
        (("categories", 0, "id"), None, "id"),
    ],
)
def test_each_slip_is_named(tmp_path, place, value, named):
    path = _write(tmp_path / "bad.json", _changed(place, value))
    with pytest.raises(UserError) as caught:
        read_coco(path)
    message = str(caught.value)
    assert str(path) in message
    assert named in message
    assert "\n" not in message


def test_a_name_may_step_up_inside_the_folder(tmp_path):
    path = _write(tmp_path / "a.json", _changed(("images", 0, "file_name"), "x/../a..b.jpg"))
    assert read_coco(path).names[0] == "x/../a..b.jpg"


def _boxes(count: int, bad: list[list[float]]) -> dict[str, object]:
    good = [{"image_id": 10, "category_id": 3, "bbox": [1, 1, 5, 5]} for _ in range(count)]
    empty = [{"image_id": 20, "category_id": 3, "bbox": box} for box in bad]
    return GOOD | {"annotations": empty + good}


def test_few_empty_boxes_are_dropped_and_named(tmp_path):
    bad = [[1, 1, 0, 5], [1, 1, 5, 0], [100, 5, 10, 10]]
    index = read_coco(_write(tmp_path / "a.json", _boxes(5, bad)))
    assert index.annotations.offsets.tolist() == [0, 5, 5, 5]
    [note] = index.notes
    assert "3 of 8 boxes" in note
    assert "annotations[0] in sub/b.jpg" in note


@pytest.mark.parametrize(("num_good", "num_bad", "fails"), [(5, 4, True), (396, 4, False)])
def test_many_empty_boxes_are_an_error(tmp_path, num_good, num_bad, fails):
    path = _write(tmp_path / "a.json", _boxes(num_good, [[1, 1, 0, 5]] * num_bad))
    if fails:
        with pytest.raises(UserError, match="4 of 9 boxes"):
            read_coco(path)
    else:
        assert len(read_coco(path).annotations.boxes) == num_good


@pytest.mark.parametrize(("name", "split"), [("bccd", "train"), ("coco_animals10_256", "val")])
def test_real_sets(name, split):
    path = _SHARED / name / f"{split}.json"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    document = json.loads(path.read_text())
    index = read_coco(path)
    assert len(index) == len(document["images"])
    assert index.path(len(index) - 1).is_file()
    assert len(index.annotations.boxes) == len(document["annotations"])
    names = {category["id"]: category["name"] for category in document["categories"]}
    assert dict(zip(index.category_ids, index.classes, strict=True)) == names
    first = document["images"][0]
    own = [a for a in document["annotations"] if a["image_id"] == first["id"]]
    found = index.annotations[0]
    assert [index.category_ids[label] for label in found.labels] == [a["category_id"] for a in own]
    for box, annotation in zip(found.boxes.tolist(), own, strict=True):
        x, y, width, height = annotation["bbox"]
        assert box == pytest.approx([x, y, x + width, y + height], abs=1e-3)
