"""Split files of others are recognised by content, and choose the images that they mean."""

import json
from pathlib import Path

import numpy as np
import pytest
from miniature import write_coco

from dsl.data.coco_records import Source, open_source
from dsl.data.split_files import Wanted, read_split
from dsl.data.split_pairs import write_split
from dsl.errors import UserError

COUNT = 60


@pytest.fixture
def train(tmp_path: Path) -> Path:
    write_coco(tmp_path / "coco", train=COUNT, val=1, unlabeled=1)
    return tmp_path / "coco" / "annotations" / "instances_train2017.json"


def pair(train: Path, folder: Path, places: list[int], *, name: str = "1@50") -> Path:
    """As STAC, Soft Teacher and the DSL authors write it."""
    content = json.loads(train.read_text())
    folder.mkdir(exist_ok=True)
    images = content["images"]
    labeled = [images[place] for place in places]
    rest = [image for image in images if image not in labeled]
    for ending, part in (("", labeled), ("-unlabeled", rest)):
        ids = {image["id"] for image in part}
        boxes = [a for a in content["annotations"] if a["image_id"] in ids]
        text = json.dumps(content | {"images": part, "annotations": boxes})
        (folder / f"instances_train2017.{name}{ending}.json").write_text(text)
    return folder / f"instances_train2017.{name}.json"


def places(source: Source, file: Path, wanted: Wanted | None = None) -> list[int]:
    [choice] = read_split(file, source, wanted or Wanted()).choices
    return choice.labeled.nonzero().flatten().tolist()


def test_without_replacement_is_soft_teachers(train: Path, tmp_path: Path) -> None:
    source, chosen = open_source(train), list(range(0, COUNT, 2))
    file = pair(train, tmp_path / "semi_supervised", chosen)
    found = read_split(file, source, Wanted())
    assert found.kind == "Soft Teacher"
    assert (found.choices[0].seed, found.choices[0].percent) == (1, 50)
    assert places(source, file) == chosen
    assert places(source, file.with_name("instances_train2017.1@50-unlabeled.json")) == chosen
    assert found.notes == ("30 unique images of 60; 50 % would be 30",)


def test_copies_of_the_whole_files_beside_are_the_dsl_authors(train: Path, tmp_path: Path) -> None:
    file = pair(train, tmp_path / "semi_supervised", list(range(30)))
    for name in ("train", "val"):
        (file.parent / f"instances_{name}2017.json").write_text("{}")
    assert read_split(file, open_source(train), Wanted()).kind == "DSL authors"


def test_with_replacement_is_stacs_and_has_fewer_unique_images(train: Path, tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).choice(COUNT, size=30)  # with replacement
    unique = sorted(set(drawn.tolist()))
    assert len(unique) < 30
    file = pair(train, tmp_path / "semi_supervised", unique)
    found = read_split(file, open_source(train), Wanted())
    assert found.kind == "STAC (drawn with replacement)"
    assert f"{len(unique)} unique images of 60; 50 % would be 30" in found.notes
    assert places(open_source(train), file) == unique


def test_images_that_are_listed_twice_count_once(train: Path, tmp_path: Path) -> None:
    file = pair(train, tmp_path / "twice", [0, 1, 1, 2, 2])
    found = read_split(file, open_source(train), Wanted())
    assert "the file lists 5 images, 2 of them again" in found.notes
    assert places(open_source(train), file) == [0, 1, 2]


def test_a_rest_that_is_not_the_rest_is_told(train: Path, tmp_path: Path) -> None:
    file = pair(train, tmp_path / "odd", list(range(30)))
    pair(train, tmp_path / "other", list(range(20)))
    other = tmp_path / "other" / "instances_train2017.1@50-unlabeled.json"
    other.replace(file.with_name(other.name))
    notes = read_split(file, open_source(train), Wanted()).notes
    assert any("10 of its images are labeled too, 0 images are in neither" in n for n in notes)


def test_our_own_files_are_recognised(train: Path, tmp_path: Path) -> None:
    files = write_split(train, tmp_path / "ours", percent=10, seed=3)
    found = read_split(files.labeled, open_source(train), Wanted())
    assert found.kind == "dsl data split"
    assert int(found.choices[0].labeled.sum()) == 6


def supervision(train: Path, file: Path) -> list[int]:
    """Unbiased Teacher counts in the images that have a box, by id; returns places in the file."""
    content = json.loads(train.read_text())
    for annotation in content["annotations"][:10]:
        annotation["iscrowd"] = 1  # ten images without an object: 50 are left
    content["images"].reverse()
    train.write_text(json.dumps(content))
    indices = [0, 7, 49, 20, 3]
    file.write_text(json.dumps({"10.0": {"0": [1, 2, 3, 4, 5], "1": indices}, "2.0": {"1": [4]}}))
    return sorted(COUNT - 1 - (10 + index) for index in indices)


def test_indices_count_in_the_images_with_a_box_by_id(train: Path, tmp_path: Path) -> None:
    file = tmp_path / "COCO_supervision.txt"
    expected = supervision(train, file)
    source = open_source(train)
    found = read_split(file, source, Wanted((10.0,), 1))
    assert found.kind == "Unbiased Teacher (JSON of indices)"
    assert "that have a box" in found.notes[0]
    assert places(source, file, Wanted((10.0,), 1)) == expected


def test_indices_may_count_in_all_images(train: Path, tmp_path: Path) -> None:
    file = tmp_path / "seeds.json"
    supervision(train, file)
    file.write_text(json.dumps({"10.0": {"1": [0, 1, 2, 3, 59, 4]}}))
    assert "all images" in read_split(file, open_source(train), Wanted()).notes[0]


@pytest.mark.parametrize(
    ("wanted", "mention"),
    [
        (Wanted(), "choose --percent from 10, 2"),
        (Wanted((10.0,)), "has 0, 1 at 10 %"),
        (Wanted((10.0,), 7), "has 0, 1 at 10 %"),
        (Wanted((5.0,), 1), "has 10, 2"),
    ],
)
def test_one_of_several_splits_must_be_named(
    train: Path, tmp_path: Path, wanted: Wanted, mention: str
) -> None:
    file = tmp_path / "COCO_supervision.txt"
    supervision(train, file)
    with pytest.raises(UserError, match=mention):
        read_split(file, open_source(train), wanted)


def test_indices_of_another_set_are_refused(train: Path, tmp_path: Path) -> None:
    file = tmp_path / "seeds.json"
    for indices, mention in ((list(range(9)), "do not fit"), ([0, 1, 2, 3, 4, 60], "beyond")):
        file.write_text(json.dumps({"10.0": {"1": indices}}))
        with pytest.raises(UserError, match=mention):
            read_split(file, open_source(train), Wanted())


def test_lists_and_folders_of_names(train: Path, tmp_path: Path) -> None:
    """The DSL authors' lists hold file names; their folders one NAME.jpg.json per image."""
    source = open_source(train)
    names = [source.names[place] for place in (3, 5, 8)]
    listed = tmp_path / "train_list.txt"
    listed.write_text("\n".join([names[0], f"full/{names[1]}", Path(names[2]).stem]))
    folder = tmp_path / "full"
    folder.mkdir()
    for name in names:
        (folder / f"{name}.json").write_text('{"imageName": "", "rects": []}')
    for path in (listed, folder):
        found = read_split(path, source, Wanted())
        assert "DSL authors" in found.kind
        assert found.choices[0].percent == 5
        assert places(source, path) == [3, 5, 8]


@pytest.mark.parametrize(
    ("content", "mention"),
    [
        ("", "is empty"),
        ("{}", "'images' is absent"),
        ('{"images": []}', "'images' is absent or empty"),
        ('{"images": [{"id": 1}]}', r"images\[0\]"),
        ('{"1.0": {"1": [1.5]}}', "whole numbers"),
        ('{"1.0": {"x": [1]}}', "seed"),
        ("no_such_image.jpg", "is not in"),
    ],
)
def test_files_that_are_no_splits(train: Path, tmp_path: Path, content: str, mention: str) -> None:
    file = tmp_path / "split.txt"
    file.write_text(content)
    with pytest.raises(UserError, match=mention):
        read_split(file, open_source(train), Wanted())
    with pytest.raises(UserError, match="does not exist"):
        read_split(tmp_path / "absent", open_source(train), Wanted())
