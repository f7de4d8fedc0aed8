"""The path alone tells the format."""

import json
from pathlib import Path

import pytest
from PIL import Image

from dsl.data.formats import open_dataset
from dsl.errors import UserError

_COCO = {
    "info": {},
    "images": [{"id": 1, "file_name": "a.jpg", "height": 8, "width": 8}],
    "annotations": [{"image_id": 1, "category_id": 1, "bbox": [1, 1, 4, 4]}],
    "categories": [{"id": 1, "name": "coco"}],
}
_VOC = (
    "<annotation><filename>a.jpg</filename><object><name>voc</name><bndbox><xmin>1</xmin>"
    "<ymin>1</ymin><xmax>4</xmax><ymax>4</ymax></bndbox></object></annotation>"
)

_REGION = {
    "type": "rectanglelabels",
    "original_width": 8,
    "original_height": 8,
    "value": {"x": 0, "y": 0, "width": 50, "height": 50, "rectanglelabels": ["studio"]},
}
_TASKS = [{"data": {"image": "a.jpg"}, "annotations": [{"result": [_REGION]}]}]
_CONFIG = '<View><RectangleLabels><Label value="studio"/></RectangleLabels></View>'
_CVAT = (
    '<annotations><image name="a.jpg" width="8" height="8">'
    '<box label="cvat" xtl="1" ytl="1" xbr="4" ybr="4"/></image></annotations>'
)


def _build(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".jpg"):
            Image.new("RGB", (8, 8)).save(root / name)
        else:
            (root / name).write_text(text)


_YAML = "train: images\nval: other/images\nnames: [yolo]\n"
_LABEL = "0 .5 .5 .5 .5"


@pytest.mark.parametrize(
    ("files", "path", "classes"),
    [
        ({"a.json": json.dumps(_COCO)}, "a.json", ("coco",)),
        ({"a.JSON": json.dumps(_COCO)}, "a.JSON", ("coco",)),
        ({"a.json": json.dumps(_COCO), "package.json": "{}"}, "", ("coco",)),
        ({"a.json": json.dumps(_COCO), "broken.json": "{"}, "", ("coco",)),
        ({"annotations/a.json": json.dumps(_COCO), "x/a.jpg": ""}, "", ("coco",)),
        ({"a.xml": _VOC, "a.jpg": ""}, "", ("voc",)),
        ({"Annotations/a.xml": _VOC, "JPEGImages/a.jpg": ""}, "", ("voc",)),
        (
            {"Annotations/a.xml": _VOC, "ImageSets/Main/train.txt": "a\n"},
            "ImageSets/Main/train.txt",
            ("voc",),
        ),
        ({"d.yaml": _YAML, "images/a.jpg": "", "labels/a.txt": _LABEL}, "d.yaml", ("yolo",)),
        ({"d.yml": _YAML, "images/a.jpg": "", "labels/a.txt": _LABEL}, "", ("yolo",)),
        ({"images/a.jpg": "", "labels/a.txt": _LABEL}, "", ("0",)),
        ({"a.jpg": "", "a.txt": _LABEL, "classes.txt": "yolo"}, "", ("yolo",)),
        ({"a.json": json.dumps(_TASKS), "images/a.jpg": ""}, "a.json", ("studio",)),
        (
            {"t.json": json.dumps(_TASKS), "label_config.xml": _CONFIG, "a.jpg": ""},
            "",
            ("studio",),
        ),
        ({"export.xml": _CVAT, "a.jpg": ""}, "export.xml", ("cvat",)),
        ({"annotations.xml": _CVAT, "images/a.jpg": "", "labels.json": "[]"}, "", ("cvat",)),
        ({"a.jpg": "", "list.txt": "a.jpg"}, "list.txt", ()),
        ({"a.jpg": "", "other.yaml": "lr: 1", "x.json": "[1]"}, "", ()),
        ({"deep/er/a.jpg": ""}, "", ()),
    ],
)
def test_format_is_detected(tmp_path, files, path, classes):
    _build(tmp_path, files)
    index = open_dataset(str(tmp_path / path), split="train")
    assert index.classes == classes
    assert len(index) == 1
    assert (index.annotations is not None) == bool(classes)


def test_split_reaches_the_format_that_has_parts(tmp_path):
    _build(tmp_path, {"d.yaml": _YAML, "images/a.jpg": "", "labels/a.txt": _LABEL})
    _build(tmp_path, {"other/images/b.jpg": "", "other/labels/b.txt": _LABEL})
    assert open_dataset(tmp_path / "d.yaml").names[0] == "images/a.jpg"
    assert open_dataset(tmp_path / "d.yaml", split="val").names[0] == "other/images/b.jpg"


def test_several_annotation_files_are_listed(tmp_path):
    _build(tmp_path, {f"{name}.json": json.dumps(_COCO) for name in ("train", "annotations/val")})
    with pytest.raises(UserError, match=r"train\.json, annotations/val\.json"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("files", "path", "named"),
    [
        ({}, "absent", "does not exist"),
        ({}, "", "holds no images"),
        ({"a.csv": ""}, "a.csv", "'.csv'"),
        ({"a.yaml": "names: [a]", "b.yaml": "names: [b]"}, "", "a.yaml, b.yaml"),
    ],
)
def test_what_cannot_be_opened_is_named(tmp_path, files, path, named):
    _build(tmp_path, files)
    with pytest.raises(UserError) as caught:
        open_dataset(tmp_path / path)
    assert str(tmp_path / path) in str(caught.value)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
