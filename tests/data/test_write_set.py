"""Sets written in one format and read back: what the target can hold comes back, the rest is said.

All nine pairs run over the same random sets: awkward names, empty images, ignored boxes.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from PIL import Image
from random_sets import CLASSES, contents, random_set, same

import dsl
from dsl.data.formats import open_dataset
from dsl.data.write_folder import distinct_stems
from dsl.data.write_set import DATA_FORMATS, TOOL_FORMATS, write_set
from dsl.errors import UserError


@pytest.mark.parametrize("first", DATA_FORMATS)
@pytest.mark.parametrize("second", DATA_FORMATS)
@pytest.mark.parametrize("seed", [0, 1])
def test_all_pairs_keep_what_both_can_hold(
    tmp_path: Path, first: str, second: str, seed: int
) -> None:
    made = random_set(tmp_path / "made", seed)
    written = write_set(made, tmp_path / "first", writer=DATA_FORMATS[first])
    again = dsl.convert(written.path, tmp_path / "second", to=second)
    for index in (open_dataset(again.path), open_dataset(tmp_path / "second")):
        same(contents(made, keep_ignored="yolo" not in (first, second)), contents(index))
        if first != "voc" and second != "voc":
            assert index.classes == CLASSES
        else:
            assert set(index.classes) <= set(CLASSES)
        assert len(index) == len(made) == again.num_images
        assert again.num_boxes == len(index.annotations.boxes)  # type: ignore[union-attr]


def test_coco_holds_everything(tmp_path: Path) -> None:
    made = random_set(tmp_path / "made", 3)
    index = open_dataset(write_set(made, tmp_path / "out", writer=DATA_FORMATS["coco"]).path)
    positions = range(len(made))
    assert [index.names[p] for p in positions] == [made.names[p] for p in positions]
    assert index.category_ids == made.category_ids
    for column in ("ids", "sizes"):
        assert torch.equal(getattr(index, column), getattr(made, column))
    assert index.annotations is not None
    assert made.annotations is not None
    for column in ("offsets", "labels", "ignored", "areas"):
        assert torch.equal(getattr(index.annotations, column), getattr(made.annotations, column))
    torch.testing.assert_close(index.annotations.boxes, made.annotations.boxes, rtol=0, atol=1e-9)


def test_whole_pixels_stay_whole_in_voc(tmp_path: Path) -> None:
    made = random_set(tmp_path / "made", 4, fractions=False)
    write_set(made, tmp_path / "out", writer=DATA_FORMATS["voc"])
    text = "".join(f.read_text() for f in sorted((tmp_path / "out" / "Annotations").iterdir()))
    for corner in ("xmin", "ymin", "xmax", "ymax"):
        values = [part.split("<")[0] for part in text.split(f"<{corner}>")[1:]]
        assert values
        assert all(value.isdecimal() for value in values)
    same(contents(made), contents(open_dataset(tmp_path / "out")))


def test_what_a_format_cannot_hold_is_counted(tmp_path: Path) -> None:
    made = random_set(tmp_path / "made", 5)
    assert made.annotations is not None
    ignored = int(made.annotations.ignored.sum())
    yolo = write_set(made, tmp_path / "yolo", writer=DATA_FORMATS["yolo"])
    assert any(note.startswith(f"{ignored} boxes are crowd") for note in yolo.notes)
    voc = write_set(made, tmp_path / "voc", writer=DATA_FORMATS["voc"])
    assert any("sorted by name" in note for note in voc.notes)
    assert any("another name" in note for note in voc.notes)


def test_voc_cannot_hold_a_box_of_one_pixel(tmp_path: Path) -> None:
    made = one_image(tmp_path, boxes=[[3, 3, 4, 9], [3, 3, 5, 9]])
    voc = dsl.convert(made, tmp_path / "voc", to="voc")
    assert any(note.startswith("1 boxes are one pixel") for note in voc.notes)
    found = open_dataset(voc.path).annotations
    assert found is not None
    assert found.boxes.tolist() == [[3, 3, 5, 9]]
    assert voc.num_boxes == 1


def one_image(
    folder: Path, *, boxes: list[list[float]], name: str = "a.png", category: str = "thing",
    size: tuple[int, int] = (32, 24),
) -> Path:  # fmt: skip
    folder.mkdir(exist_ok=True)
    Image.new("RGB", (32, 24)).save(folder / name)
    content = {
        "images": [{"id": 7, "file_name": name, "width": size[0], "height": size[1]}],
        "annotations": [
            {"id": n, "image_id": 7, "category_id": 1, "bbox": [a, b, c - a, d - b]}
            for n, (a, b, c, d) in enumerate(boxes)
        ],
        "categories": [{"id": 1, "name": category}],
    }
    path = folder / "made.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("to", DATA_FORMATS)
def test_a_set_without_any_box_stays_labeled(tmp_path: Path, to: str) -> None:
    written = dsl.convert(one_image(tmp_path, boxes=[]), tmp_path / "out", to=to)
    index = open_dataset(written.path)
    assert index.annotations is not None
    assert len(index.annotations.boxes) == 0
    assert len(index) == 1


def test_unlabeled_images_go_to_coco_alone(tmp_path: Path) -> None:
    Image.new("RGB", (8, 6)).save(tmp_path / "a.png")
    index = open_dataset(dsl.convert(tmp_path, tmp_path / "out", to="coco").path)
    assert index.annotations is None
    assert index.size(0) == (6, 8)
    for to in ("voc", "yolo"):
        with pytest.raises(UserError, match="unlabeled"):
            dsl.convert(tmp_path / "out" / "images", tmp_path / to, to=to)
        assert not (tmp_path / to).exists()


def test_images_are_copies_unless_links_are_wanted(tmp_path: Path) -> None:
    made = one_image(tmp_path / "made", boxes=[[1, 1, 9, 9]])
    copied = dsl.convert(made, tmp_path / "copied", to="yolo").path.parent / "images" / "a.png"
    linked = dsl.convert(made, tmp_path / "linked", to="yolo", link=True).path.parent
    assert not copied.is_symlink()
    assert (linked / "images" / "a.png").readlink() == tmp_path / "made" / "a.png"
    (tmp_path / "linked").rename(tmp_path / "moved")
    assert len(open_dataset(tmp_path / "moved")) == 1
    made.unlink()
    (tmp_path / "made" / "a.png").unlink()
    assert len(open_dataset(tmp_path / "copied")) == 1


def test_a_list_of_images_anywhere_is_gathered(tmp_path: Path) -> None:
    for place in ("one", "two/deep"):
        (tmp_path / place).mkdir(parents=True)
        Image.new("RGB", (8, 6)).save(tmp_path / place / "a.png")
    (tmp_path / "lists").mkdir()
    lines = ["../one/a.png", str(tmp_path / "two" / "deep" / "a.png")]
    (tmp_path / "lists" / "all.txt").write_text("\n".join(lines))
    written = dsl.convert(tmp_path / "lists" / "all.txt", tmp_path / "out", to="coco")
    index = open_dataset(written.path)
    assert {index.names[0], index.names[1]} == {"one/a.png", "two/deep/a.png"}
    assert all(index.path(p).is_file() for p in (0, 1))
    out = tmp_path / "out"
    inside = [Path(root) / f for root, _, files in os.walk(out) for f in files]
    assert len(inside) == 3


@pytest.mark.parametrize(
    ("to", "options", "mention"),
    [
        ("voc", {"category": "a\x07b"}, "VOC cannot hold it"),
        ("voc", {"category": " padded "}, "VOC cannot hold it"),
        ("yolo", {"name": ".hidden.png"}, "hidden"),
        ("yolo", {"size": (24, 32)}, "size"),
        ("tiff", {}, "coco, voc, yolo"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, to: str, options: dict, mention: str
) -> None:
    made = one_image(tmp_path / "made", boxes=[[1, 1, 9, 9]], **options)
    with pytest.raises(UserError, match=mention):
        dsl.convert(made, tmp_path / "out", to=to)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["made"]


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    made = one_image(tmp_path / "made", boxes=[])
    (tmp_path / "out").mkdir()
    dsl.convert(made, tmp_path / "out", to="coco")  # an empty one is as good as none
    before = sorted(p.name for p in (tmp_path / "out").iterdir())
    with pytest.raises(UserError, match="exists already"):
        dsl.convert(made, tmp_path / "out", to="voc")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == before


def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    made = one_image(tmp_path / "made", boxes=[])
    made.write_text(made.read_text().replace("a.png", "../a.png"))
    with pytest.raises(UserError, match="leaves the image folder"):
        dsl.convert(made, tmp_path / "out", to="yolo")


def test_absent_images_are_named(tmp_path: Path) -> None:
    made = one_image(tmp_path / "made", boxes=[])
    (tmp_path / "made" / "a.png").unlink()
    with pytest.raises(UserError, match=r"1 of 1 images are absent.*a\.png"):
        dsl.convert(made, tmp_path / "out", to="coco")
    assert not (tmp_path / "out").exists()


def test_stems_become_distinct() -> None:
    assert distinct_stems(["a.jpg", "a.png", "a_2.jpg", "b/a.jpg", "A.gif"]) == [
        "a.jpg", "a_2.png", "a_2_2.jpg", "b/a.jpg", "A_3.gif",
    ]  # fmt: skip
    assert distinct_stems([]) == []


@pytest.mark.parametrize("to", TOOL_FORMATS)
def test_equal_sets_give_equal_bytes(tmp_path: Path, to: str) -> None:
    made = random_set(tmp_path / "made", 6)
    files = []
    for out in (tmp_path / "one", tmp_path / "two"):
        write_set(made, out, writer=TOOL_FORMATS[to])
        files.append({f.relative_to(out): f.read_bytes() for f in out.rglob("*") if f.is_file()})
    assert files[0] == files[1]
