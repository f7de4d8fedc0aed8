"""Several unlabeled sets become one list, chosen by class and without unseen images."""

import shutil
from pathlib import Path

import pytest
from miniature import write_coco, write_voc

from dsl.data.formats import open_dataset
from dsl.data.join import join_images
from dsl.errors import UserError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_coco(tmp_path / "coco", train=22, val=3, unlabeled=2)
    write_voc(tmp_path)
    return tmp_path


def test_voc_with_the_coco_images_of_its_classes(root: Path) -> None:
    annotations = root / "coco" / "annotations"
    voc = root / "VOCdevkit"
    out = root / "lists" / "unlabeled.txt"
    joined = join_images(
        [voc / "VOC2012/ImageSets/Main/trainval.txt", annotations / "instances_train2017.json"],
        out,
        classes_of=voc / "VOC2007/ImageSets/Main/trainval.txt",
    )
    assert [(part.images, part.taken) for part in joined] == [(6, 6), (22, 18)]
    assert joined[1].other_classes == 4  # elephants and teddy bears, of 11 classes in turn
    index = open_dataset(out)
    assert len(index) == 24
    assert all(index.path(place).is_file() for place in range(24))


def test_unseen_images_stay_out(root: Path) -> None:
    """By name and content: a namesake with other pixels is another image."""
    coco = root / "coco"
    unseen = sorted((coco / "val2017").iterdir())
    mixed = root / "mixed"
    mixed.mkdir()
    shutil.copy(unseen[0], mixed)
    shutil.copy(unseen[1], mixed / unseen[2].name)
    [part] = join_images(
        [mixed], root / "list.txt", without=[coco / "annotations" / "instances_val2017.json"]
    )
    assert (part.taken, part.excluded) == (1, 1)
    assert (root / "list.txt").read_text() == f"mixed/{unseen[2].name}\n"
    shutil.rmtree(coco / "val2017")  # only the annotation file is there: names decide
    with pytest.raises(UserError, match="no image is left"):
        join_images(
            [mixed], root / "other.txt", without=[coco / "annotations/instances_val2017.json"]
        )


def test_an_image_is_listed_once(root: Path) -> None:
    folder, listed = (
        root / "coco" / "unlabeled2017",
        root / "coco/annotations/image_info_unlabeled2017.json",
    )
    joined = join_images([folder, listed], root / "list.txt", classes_of=None)
    assert [part.taken for part in joined] == [2, 0]


def test_bad_requests(root: Path) -> None:
    folder = root / "coco" / "unlabeled2017"
    (root / "there.txt").write_text("")
    for out, mention in (("list.json", "must end in .txt"), ("there.txt", "exists already")):
        with pytest.raises(UserError, match=mention):
            join_images([folder], root / out)
    with pytest.raises(UserError, match="ImageSets"):
        join_images([folder], root / "ImageSets" / "list.txt")
    with pytest.raises(UserError, match="--classes-of"):
        join_images([folder], root / "list.txt", classes_of=folder)
