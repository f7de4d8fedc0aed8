"""Split files: exact counts, all fields, equal bytes everywhere, images found from anywhere."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from miniature import COCO, write_coco, write_voc

from dsl.data.formats import open_dataset
from dsl.data.split_pairs import write_split
from dsl.data.splits import labeled_count
from dsl.errors import UserError


@pytest.fixture
def train(tmp_path: Path) -> Path:
    write_coco(tmp_path / "coco", train=40, val=1, unlabeled=1)
    return tmp_path / "coco" / "annotations" / "instances_train2017.json"


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_a_pair_holds_every_record_once_and_whole(train: Path, tmp_path: Path) -> None:
    files = write_split(train, tmp_path / "out", percent=10, seed=1)
    assert files.labeled.name == "instances_train2017.1@10.json"
    assert files.unlabeled.name == "instances_train2017.1@10-unlabeled.json"
    whole, labeled, rest = read(train), read(files.labeled), read(files.unlabeled)
    assert len(labeled["images"]) == 4
    ids = {image["id"] for image in labeled["images"]}
    for part, wanted in ((labeled, True), (rest, False)):
        for key in ("info", "licenses", "categories"):
            assert part[key] == whole[key]
        assert part["images"] == [i for i in whole["images"] if (i["id"] in ids) is wanted]
        assert part["annotations"] == [
            a for a in whole["annotations"] if (a["image_id"] in ids) is wanted
        ]


def test_equal_seeds_give_equal_bytes_elsewhere(train: Path, tmp_path: Path) -> None:
    """In another process with another hash seed, into a deeper folder."""
    files = write_split(train, tmp_path / "here", percent=10, seed=5)
    code = (
        "import sys; from pathlib import Path; from dsl.data.split_pairs import write_split;"
        "write_split(Path(sys.argv[1]), Path(sys.argv[2]), percent=10, seed=5)"
    )
    there = tmp_path / "far" / "away"
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    subprocess.run(
        [sys.executable, "-c", code, str(train), str(there)], env=environment, check=True
    )
    for file in (files.labeled, files.unlabeled):
        assert file.read_bytes() == (there / file.name).read_bytes()
    other = write_split(train, tmp_path / "other", percent=10, seed=6)
    assert read(other.labeled)["images"] != read(files.labeled)["images"]


def test_the_draw_is_the_same_for_ever(train: Path, tmp_path: Path) -> None:
    files = write_split(train, tmp_path / "out", percent=10, seed=1)
    digest = hashlib.sha256(files.labeled.read_bytes()).hexdigest()
    assert digest.startswith("15f27cb55727878d")


def test_more_of_one_seed_includes_the_fewer(train: Path, tmp_path: Path) -> None:
    few, many = (
        {
            i["id"]
            for i in read(write_split(train, tmp_path / str(p), percent=p, seed=1).labeled)[
                "images"
            ]
        }
        for p in (5, 50)
    )
    assert len(few) == 2
    assert few < many


@pytest.mark.parametrize(
    ("percent", "total", "count"),
    [
        (10, 118287, 11829),
        (1, 118287, 1183),
        (0.5, 100, 1),
        (2.5, 100, 3),
        (0.1, 10, 1),
        (99.9, 10, 9),
    ],
)
def test_counts_are_rounded_halves_up_with_one_image_on_each_side(
    percent: float, total: int, count: int
) -> None:
    assert labeled_count(percent, total) == count


@pytest.mark.parametrize("percent", [0, 100, -1, float("nan")])
def test_shares_that_are_none(percent: float) -> None:
    with pytest.raises(UserError, match="--percent"):
        labeled_count(percent, 10)


def test_stratified_shows_every_class_with_the_same_count(tmp_path: Path) -> None:
    write_coco(tmp_path / "coco", train=200, val=1, unlabeled=1)
    train = tmp_path / "coco" / "annotations" / "instances_train2017.json"
    content = read(train)
    # One class on one image only, which hardly any plain draw finds.
    for annotation in content["annotations"]:
        if annotation["category_id"] == 88:
            annotation["category_id"] = 1
    content["annotations"][77]["category_id"] = 88
    train.write_text(json.dumps(content))
    for seed in (1, 2, 3):
        plain = write_split(train, tmp_path / f"plain{seed}", percent=6, seed=seed)
        even = write_split(train, tmp_path / f"even{seed}", percent=6, seed=seed, stratified=True)
        shown = {a["category_id"] for a in read(even.labeled)["annotations"]}
        assert shown == {number for number, _ in COCO}
        assert len(read(even.labeled)["images"]) == len(read(plain.labeled)["images"]) == 12
    with pytest.raises(UserError, match="raise --percent"):
        write_split(train, tmp_path / "few", percent=1, seed=1, stratified=True)
    assert not (tmp_path / "few").exists()


def test_the_manifest_counts_and_hashes(train: Path, tmp_path: Path) -> None:
    files = write_split(train, tmp_path / "out", percent=10, seed=1)
    manifest = read(tmp_path / "out" / "manifest.json")
    assert manifest["source_sha256"] == hashlib.sha256(train.read_bytes()).hexdigest()
    assert (manifest["source_images"], manifest["source_boxes"]) == (40, 40)
    [pair] = manifest["splits"]
    assert (pair["seed"], pair["percent"]) == (1, 10)
    for part, file in (("labeled", files.labeled), ("unlabeled", files.unlabeled)):
        assert pair[part]["file"] == file.name
        assert pair[part]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
        assert pair[part]["images"] == len(read(file)["images"])
        numbers = [a["category_id"] for a in read(file)["annotations"]]
        assert pair[part]["classes"] == {
            name: {"images": numbers.count(n), "boxes": numbers.count(n)} for n, name in COCO
        }


def test_images_are_found_from_anywhere(train: Path, tmp_path: Path) -> None:
    """By the manifest from any folder; without one, where others put their splits."""
    files = write_split(train, tmp_path / "a" / "b" / "c", percent=10, seed=1)
    for file in (files.labeled, files.unlabeled):
        assert open_dataset(file).path(0).is_file()
    field = train.parent / "semi_supervised"
    field.mkdir()
    shutil.copy(files.unlabeled, field)
    assert open_dataset(field / files.unlabeled.name).path(0).is_file()


def test_a_moved_folder_falls_back_to_the_usual_places(train: Path, tmp_path: Path) -> None:
    files = write_split(train, tmp_path / "a" / "b", percent=10, seed=1)
    moved = train.parent / "moved"
    shutil.move(tmp_path / "a" / "b", moved)
    assert open_dataset(moved / files.labeled.name).path(0).is_file()


def test_other_formats_become_coco(tmp_path: Path) -> None:
    write_voc(tmp_path, trainval07=20)
    data = tmp_path / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main" / "trainval.txt"
    page = tmp_path / "VOCdevkit" / "VOC2007" / "Annotations" / "000001.xml"
    page.write_text(page.read_text().replace("<difficult>0", "<difficult>1"))
    files = write_split(data, tmp_path / "out", percent=25, seed=1)
    assert files.labeled.name == "trainval.1@25.json"
    parts = [open_dataset(file) for file in (files.labeled, files.unlabeled)]
    assert [len(part) for part in parts] == [5, 15]
    whole = open_dataset(data)
    boxes = {whole.names[i]: whole.annotations[i] for i in range(len(whole))}
    for part in parts:
        assert part.classes == whole.classes
        for place in range(len(part)):
            assert part.path(place).is_file()
            mine, theirs = part.annotations[place], boxes[part.names[place]]
            assert mine.boxes.tolist() == theirs.boxes.tolist()
            assert mine.labels.tolist() == theirs.labels.tolist()
            assert mine.ignored.tolist() == theirs.ignored.tolist()


def test_nothing_is_overwritten(train: Path, tmp_path: Path) -> None:
    write_split(train, tmp_path / "out", percent=10, seed=1)
    with pytest.raises(UserError, match="exists already"):
        write_split(train, tmp_path / "out", percent=10, seed=2)


def test_images_without_boxes_and_unlabeled_sets(train: Path, tmp_path: Path) -> None:
    content = read(train) | {"annotations": []}
    empty = train.with_name("empty.json")
    empty.write_text(json.dumps(content))
    files = write_split(empty, tmp_path / "out", percent=50, seed=1, stratified=True)
    assert len(open_dataset(files.labeled)) == 20
    with pytest.raises(UserError, match="no labels"):
        write_split(
            train.with_name("image_info_unlabeled2017.json"), tmp_path / "no", percent=5, seed=1
        )
