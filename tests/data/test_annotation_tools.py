"""Label Studio and CVAT: what we write comes back, as it is and after a person's review."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image
from random_sets import CLASSES, contents, random_set, same

from dsl.data.formats import open_dataset
from dsl.data.index import Index
from dsl.data.write_set import TOOL_FORMATS, write_set
from dsl.errors import UserError

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def made(tmp_path: Path) -> Index:
    return random_set(tmp_path / "made", 7)


def write(made: Index, out: Path, to: str) -> Path:
    scores = torch.linspace(0.2, 0.9, len(made.annotations.boxes))  # type: ignore[union-attr]
    return write_set(made, out, writer=TOOL_FORMATS[to], scores=scores).path


@pytest.mark.parametrize("to", ["coco", "label-studio", "cvat"])
def test_unreviewed_files_train_without_the_uncertain_boxes(
    made: Index, tmp_path: Path, to: str
) -> None:
    path = write(made, tmp_path / "out", to)
    for index in (open_dataset(path), open_dataset(path.parent)):
        same(contents(made), contents(index))
        assert index.classes == CLASSES
        assert torch.equal(index.sizes, made.sizes)


def test_coco_says_scores_and_doubt(made: Index, tmp_path: Path) -> None:
    records = json.loads(write(made, tmp_path / "out", "coco").read_text())["annotations"]
    assert records[0]["score"] == 0.2
    assert any(record["uncertain"] for record in records)
    assert all(record["uncertain"] == bool(record["iscrowd"]) for record in records)


# Label Studio


def review(path: Path, edit: Edit | None = None) -> list[dict[str, Any]]:
    """What the tool exports when every prediction was accepted: the regions, ids kept."""
    tasks = json.loads(path.read_text())
    for number, task in enumerate(tasks, start=1):
        result = copy.deepcopy(task["predictions"][0]["result"])
        for region in result:
            region["origin"] = "prediction"
        task["id"] = number
        task["annotations"] = [{"id": number, "was_cancelled": False, "result": result}]
        if edit is not None:
            edit(task)
    return tasks


def export(tasks: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / "project-1-at-2026-01-01.json"
    path.write_text(json.dumps(tasks))
    return path


def test_what_a_person_submits_counts(made: Index, tmp_path: Path) -> None:
    """Accepted as they are, uncertain boxes are labels like all others."""
    path = write(made, tmp_path / "out", "label-studio")
    index = open_dataset(export(review(path), tmp_path / "out"))
    expected = {
        image: sorted((name, False, *box) for name, _, *box in boxes)
        for image, boxes in contents(made).items()
    }
    same(expected, contents(index))
    assert index.classes == CLASSES


def test_deleted_moved_renamed_and_new_boxes_come_back(made: Index, tmp_path: Path) -> None:
    path = write(made, tmp_path / "out", "label-studio")
    tasks = review(path)
    task = max(tasks, key=lambda each: len(each["annotations"][0]["result"]))
    result = task["annotations"][0]["result"]
    assert len(result) >= 3
    wide, tall = result[0]["original_width"], result[0]["original_height"]
    del result[2:]
    result[0]["value"] |= {"x": 10.0, "y": 20.0, "width": 30.0, "height": 40.0}
    result[1]["value"]["rectanglelabels"] = ["new one"]
    drawn = copy.deepcopy(result[0])
    drawn["value"] |= {"x": 50, "y": 0, "width": 50, "height": 100, "rectanglelabels": ["zebra"]}
    result.append({key: drawn[key] for key in drawn if key not in ("score", "meta")})
    index = open_dataset(export([task], tmp_path / "out"))
    found = index.annotations
    assert found is not None
    assert index.classes == (*CLASSES, "new one")
    boxes = found.boxes.tolist()
    assert boxes[0] == pytest.approx([0.1 * wide, 0.2 * tall, 0.4 * wide, 0.6 * tall])
    assert boxes[2] == pytest.approx([0.5 * wide, 0, wide, tall])
    assert [index.classes[label] for label in found.labels.tolist()][1:] == ["new one", "zebra"]


def test_uploaded_images_are_found_by_their_own_name(made: Index, tmp_path: Path) -> None:
    path = write(made, tmp_path / "out", "label-studio")

    def upload(task: dict[str, Any]) -> None:
        name = task["data"]["image"].rpartition("/")[2]
        task["data"]["image"] = f"/data/upload/3/0a1b2c3d-{name}"

    tasks = [t for t in review(path, upload) if "y.z" in t["data"]["image"]]
    [image] = contents(open_dataset(export(tasks, tmp_path / "out")))
    assert image == (tmp_path / "made" / "x.y.z.jpg").read_bytes()


def test_tasks_that_nobody_finished_are_left_out(made: Index, tmp_path: Path) -> None:
    path = write(made, tmp_path / "out", "label-studio")
    tasks = review(path)
    tasks[0]["annotations"] = []
    tasks[1]["annotations"][0]["was_cancelled"] = True
    tasks[2]["annotations"].append({"result": [], "was_cancelled": False})
    index = open_dataset(export(tasks, tmp_path / "out"))
    assert len(index) == len(tasks) - 2
    assert any("2 of 11 tasks are not annotated" in note for note in index.notes)
    assert index.annotations is not None
    assert len(index.annotations[0]) == 0  # the later annotation holds


def test_turned_rectangles_and_other_shapes(made: Index, tmp_path: Path) -> None:
    path = write(made, tmp_path / "out", "label-studio")
    task = next(t for t in review(path) if len(t["annotations"][0]["result"]) >= 2)
    result = task["annotations"][0]["result"][:2]
    size = {"original_width": 100, "original_height": 100}
    result[0] |= size
    result[0]["value"] |= {"x": 50, "y": 10, "width": 20, "height": 10, "rotation": 90}
    result[1]["type"] = "polygonlabels"
    task["annotations"][0]["result"] = result
    index = open_dataset(export([task], tmp_path / "out"))
    assert index.annotations is not None
    assert index.annotations.boxes.tolist()[0] == pytest.approx([40, 10, 50, 30])
    assert any("1 regions are no rectangles" in note for note in index.notes)


def test_without_an_interface_file_and_sizes_the_boxes_and_headers_tell(tmp_path: Path) -> None:
    Image.new("RGB", (40, 20)).save(tmp_path / "a b.png")
    value = {"x": 50, "y": 50, "width": 50, "height": 50, "rectanglelabels": ["cat"]}
    result = [{"type": "rectanglelabels", "value": value}]
    task = {"data": {"image": "http://host/media/a%20b.png"}, "annotations": [{"result": result}]}
    index = open_dataset(export([task], tmp_path))
    assert index.classes == ("cat",)
    assert not index.classes_declared
    assert index.annotations is not None
    assert index.annotations.boxes.tolist() == [[20, 10, 40, 20]]
    task = {"data": {"image": "a b.png"}}
    assert open_dataset(export([task], tmp_path)).annotations is None  # nobody said anything


@pytest.mark.parametrize(
    ("tasks", "mention"),
    [
        ([], "at least one"),
        ([1, 2], "task [0]"),
        ([{"image": "a.png", "label": []}], "JSON-MIN"),
        ([{"data": {"text": "a"}}], "data.image"),
        ([{"data": {"image": "../../etc/passwd.png"}}], "leaves the image folder"),
        ([{"data": {"image": "/data/local-files/?d=../a.png"}}], "leaves the image folder"),
        ([{"data": {"image": "a.png"}, "annotations": [1]}], "annotations"),
        (
            [{"data": {"image": "a.png"}, "annotations": [{"result": [
                {"type": "rectanglelabels", "value": {"rectanglelabels": ["a", "b"]}}]}]}],
            "one class",
        ),
        (
            [{"data": {"image": "a.png"}, "annotations": [{"result": [
                {"type": "rectanglelabels", "value": {"x": "1", "rectanglelabels": ["a"]}}]}]}],
            "'x' of a box",
        ),
    ],
)  # fmt: skip
def test_bad_tasks_are_refused(tmp_path: Path, tasks: list, mention: str) -> None:
    with pytest.raises(UserError) as caught:
        open_dataset(export(tasks, tmp_path))
    assert mention in str(caught.value)
    assert "project-1" in str(caught.value)
    assert "\n" not in str(caught.value)


# CVAT


def test_a_reviewed_cvat_file(made: Index, tmp_path: Path) -> None:
    """Clear a mark, delete a box, draw a turned one: as the tool exports them."""
    path = write(made, tmp_path / "out", "cvat")
    tree = ElementTree.parse(path)
    for attribute in tree.iter("attribute"):
        if attribute.get("name") == "uncertain":
            attribute.text = "false"
    image = max(tree.iter("image"), key=len)
    del image[1:]
    drawn = {"label": "zebra", "source": "manual", "occluded": "0", "rotation": "90.0"}
    corners = {"xtl": "4.00", "ytl": "8.00", "xbr": "14.00", "ybr": "12.00"}
    ElementTree.SubElement(image, "box", {**drawn, **corners})
    ElementTree.SubElement(image, "polygon", {"label": "zebra", "points": "1,1;2,2;3,1"})
    tree.write(path, encoding="utf-8")
    index = open_dataset(tmp_path / "out")
    found = index.annotations
    assert found is not None
    assert not found.ignored.any()
    assert index.classes == CLASSES
    position = [index.names[p] for p in range(len(index))].index(image.get("name"))
    boxes = found[position].boxes.tolist()
    assert len(boxes) == 2
    assert boxes[1] == pytest.approx([7, 5, 11, 15])
    assert any("1 shapes are no boxes" in note for note in index.notes)


def test_marks_that_are_still_set_are_counted(made: Index, tmp_path: Path) -> None:
    index = open_dataset(write(made, tmp_path / "out", "cvat"))
    assert index.annotations is not None
    count = int(index.annotations.ignored.sum())
    assert count
    assert any(f"{count} boxes are still marked uncertain" in note for note in index.notes)


_IMAGE = '<image id="0" name="a.png" width="8" height="8">{}</image>'
_BOX = '<box label="cat" xtl="1" ytl="1" xbr="{}" ybr="5"/>'


def test_without_a_list_the_labels_of_the_boxes_are_the_classes(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text(f"<annotations>{_IMAGE.format(_BOX.format(5))}</annotations>")
    index = open_dataset(tmp_path / "x.xml")
    assert index.classes == ("cat",)
    assert not index.classes_declared


@pytest.mark.parametrize(
    ("text", "mention"),
    [
        ("<annotation/>", "<annotation>"),
        ("<annotations/>", "no <image>"),
        ("<annotations><track/></annotations>", "CVAT for images"),
        ("<annotations>", "not readable as XML"),
        (f"<annotations>{_IMAGE.format(_BOX.format('x'))}</annotations>", "xbr"),
        (f"<annotations>{_IMAGE.format('<box/>')}</annotations>", "no label"),
        ('<annotations><image name="/etc/a.png"/></annotations>', "absolute"),
        (
            "<annotations><meta><task><labels><label><name>dog</name></label></labels></task>"
            f"</meta>{_IMAGE.format(_BOX.format(5))}</annotations>",
            "'cat' is not in <labels>",
        ),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotations/>', "DOCTYPE"),
    ],
)
def test_bad_cvat_files_are_refused(tmp_path: Path, text: str, mention: str) -> None:
    (tmp_path / "x.xml").write_text(text)
    with pytest.raises(UserError) as caught:
        open_dataset(tmp_path / "x.xml")
    assert mention in str(caught.value)
    assert "x.xml" in str(caught.value)
    assert "\n" not in str(caught.value)
