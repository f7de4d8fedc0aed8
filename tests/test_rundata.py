"""What the sets of a run may say of each other's classes."""

from pathlib import Path

from miniature import VOC, write_coco, write_voc
from rich.console import Console

from dsl.config import DataConfig
from dsl.rundata import RunData, open_run_data


def opened(root: Path, unlabeled: Path) -> RunData:
    voc = root / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main"
    paths = DataConfig(
        labeled=str(voc / "trainval.txt"), val=str(voc / "test.txt"), unlabeled=str(unlabeled)
    )
    return open_run_data(paths, seed=0, console=Console(quiet=True))


def test_labels_of_unlabeled_images_measure_in_the_same_class_order(tmp_path: Path) -> None:
    """VOC names only the classes that it shows: here 5 in val and 6 of the 20 in VOC12."""
    write_voc(tmp_path)
    root = tmp_path / "VOCdevkit" / "VOC2012"
    for number, name in enumerate(VOC[14:20], start=1):  # others than the first by alphabet
        page = root / "Annotations" / f"2008_{number:06d}.xml"
        page.write_text(page.read_text().replace(f"<name>{VOC[number - 1]}", f"<name>{name}"))
    data = opened(tmp_path, root / "ImageSets" / "Main" / "trainval.txt")
    assert data.val.classes == data.labeled.classes == tuple(sorted(VOC))
    assert data.unlabeled is not None
    assert data.unlabeled.annotations is not None
    assert [data.labeled.classes[k] for k in data.unlabeled.annotations.labels] == list(VOC[14:20])


def test_labels_of_other_classes_measure_nothing(tmp_path: Path) -> None:
    write_voc(tmp_path)
    write_coco(tmp_path / "coco", train=12, val=1, unlabeled=1)
    data = opened(tmp_path, tmp_path / "coco/annotations/instances_train2017.json")
    assert data.unlabeled is not None
    assert data.unlabeled.annotations is None
    assert "other classes" in data.unlabeled.notes[-1]
