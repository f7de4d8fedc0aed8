"""The page of a data set: complete, self-contained, and safe from the names in it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dsl.data.formats import open_dataset
from dsl.errors import UserError
from dsl.report.dataset_page import SAMPLE, class_rows, spaced, write_dataset_page
from dsl.report.histogram import HEIGHT, WIDTH, ratio_plot, size_plot

Coco = Callable[..., Path]
HOSTILE = "<script>alert('x')</script>\"&"


def page_of(data: Path, out: Path) -> str:
    write_dataset_page(open_dataset(data), out)
    return out.read_text(encoding="utf-8")


def test_the_page_shows_images_classes_and_sizes(coco: Coco, tmp_path: Path) -> None:
    data = coco(count=50)
    text = page_of(data, tmp_path / "page.html")
    assert text.count("<figure>") == SAMPLE == text.count("data:image/jpeg;base64,")
    assert f"{SAMPLE} of 50, evenly spaced" in text
    assert text.count("<svg") == 2
    for word in ("square", "bar", "96 x 64", "prefers-color-scheme: dark", "width=device-width"):
        assert word in text
    boxes = len(json.loads(data.read_text())["annotations"])
    assert f"<dd>{boxes}</dd>" in text


def test_the_page_needs_nothing_else(coco: Coco, tmp_path: Path) -> None:
    text = page_of(coco(count=3), tmp_path / "page.html")
    assert "<script" not in text
    assert "<link" not in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert not re.search(r"url\(|@import", text)
    other = tmp_path / "again.html"
    assert page_of(tmp_path / "data" / "train.json", other) == text


def test_hostile_names_are_text(coco: Coco, tmp_path: Path) -> None:
    data = coco(count=1, classes=(HOSTILE, "bar"))
    content = json.loads(data.read_text())
    name = HOSTILE.replace("/", "") + ".png"
    (data.parent / "images" / content["images"][0]["file_name"]).rename(
        data.parent / "images" / name
    )
    content["images"][0]["file_name"] = name
    content["annotations"].append({"image_id": 1, "category_id": 1, "bbox": [90, 60, 0, 0]})
    data.write_text(json.dumps(content))
    text = page_of(data, tmp_path / "page.html")
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 2  # the class, the file; the dropped box's note
    assert "have no area" in text


def test_images_alone_have_a_page_too(coco: Coco, tmp_path: Path) -> None:
    coco(count=4)
    (tmp_path / "data" / "images" / "broken.png").write_bytes(b"no image")
    text = page_of(tmp_path / "data" / "images", tmp_path / "page.html")
    assert text.count("data:image/jpeg") == 4
    assert "not an image of a known format" in text
    assert "<svg" not in text
    assert "<h2>Classes" not in text
    assert "96 x 64" in text


def test_a_set_without_boxes_and_ignored_boxes(coco: Coco, tmp_path: Path) -> None:
    data = coco(count=2)
    content = json.loads(data.read_text())
    content["annotations"][0]["iscrowd"] = 1
    data.write_text(json.dumps(content))
    assert "amber" in page_of(data, tmp_path / "one.html")
    rows = {row.name: row for row in class_rows(open_dataset(data))}
    assert sum(row.ignored for row in rows.values()) == 1
    content["annotations"] = []
    data.write_text(json.dumps(content))
    text = page_of(data, tmp_path / "two.html")
    assert "<svg" not in text
    assert "square" in text  # a class without a box is worth seeing


def test_an_existing_page_is_kept(coco: Coco, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        page_of(coco(count=2), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "mine"


def test_classes_are_counted_by_boxes_and_by_images(tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    Image.new("RGB", (9, 9)).save(tmp_path / "b.png")
    boxes = [(1, 1), (1, 1), (2, 1), (2, 2)]  # image, class
    content = {
        "images": [
            {"id": 1, "file_name": "a.png", "width": 9, "height": 9},
            {"id": 2, "file_name": "b.png", "width": 9, "height": 9},
        ],
        "annotations": [
            {"image_id": i, "category_id": c, "bbox": [1, 1, 4, 4]} for i, c in boxes
        ],
        "categories": [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}, {"id": 3, "name": "z"}],
    }  # fmt: skip
    (tmp_path / "d.json").write_text(json.dumps(content))
    rows = class_rows(open_dataset(tmp_path / "d.json"))
    assert [(r.name, r.boxes, r.images, r.share) for r in rows] == [
        ("x", 3, 2, 100), ("y", 1, 1, pytest.approx(100 / 3)), ("z", 0, 0, 0),
    ]  # fmt: skip


def test_a_sample_is_spread_and_whole_where_it_can_be() -> None:
    assert spaced(3, 5) == [0, 1, 2]
    assert spaced(100, 4) == [12, 37, 62, 87]
    assert spaced(0, 4) == []


def test_histograms_fill_their_axis_and_count_everything() -> None:
    random = np.random.default_rng(0)
    for plot in (size_plot(random.uniform(3, 700, 500)), ratio_plot(np.array([0.25, 1.0, 1.0]))):
        counted = sum(int(bar.text.rpartition(": ")[2].replace(",", "")) for bar in plot.bars)
        assert counted in (500, 3)
        assert max(bar.height for bar in plot.bars) == pytest.approx(HEIGHT)
        assert plot.bars[-1].x + plot.bars[-1].width == pytest.approx(WIDTH)
        assert all(0 <= tick.x <= WIDTH + 1e-6 for tick in plot.ticks)
    assert [t.text for t in ratio_plot(np.array([0.25, 4.0])).ticks] == [
        "1:4", "1:2", "1:1", "2:1", "4:1",
    ]  # fmt: skip
    assert size_plot(np.array([32.0])).bars  # one value has an axis too


def test_large_sets_are_summed_in_columns(tmp_path: Path, coco: Coco) -> None:
    """No loop over boxes: half a million of them take no time."""
    index = open_dataset(coco(count=2))
    found = index.annotations
    assert found is not None
    many = torch.arange(2).repeat(200_000)
    rows = class_rows(index.select(many))
    assert sum(row.boxes for row in rows) == 200_000 * len(found.boxes)
