"""`dsl label` and back: a detector's boxes, a person's review, and training on the result."""

import csv
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import dsl
from dsl import cli
from dsl.data.formats import open_dataset
from dsl.engine.checkpoint import load_checkpoint, save_checkpoint
from dsl.errors import UserError

Coco = Callable[..., Path]
QUICK: dict[str, Any] = {
    "views.short_sides": [64], "views.test_short_side": 64, "views.max_side": 96,
    "optim.batch": 2, "run.steps": 1, "run.workers": 0, "run.precision": "fp32",
    "run.device": "cpu",
}  # fmt: skip


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint that finds a few boxes on both sides of its operating points; its images."""
    from conftest import write_coco

    folder = tmp_path_factory.mktemp("shelf")
    data = write_coco(folder / "data", count=6)
    dsl.train(data, out=folder / "run", val=data, recipe="tiny", settings=QUICK)
    path = folder / "run" / "best.pt"
    checkpoint = load_checkpoint(path)
    # One step teaches nothing: even odds for every class and sides of four strides, so that boxes
    # are found at all and are not dots.
    weights = dict(checkpoint.weights)
    weights["head.class_logits.bias"] = torch.zeros(2)
    weights["head.distances.bias"] = torch.full((4,), 2.0)
    save_checkpoint(path, replace(checkpoint, weights=weights, thresholds=(0.01, 0.01)))
    images = data.parent / "images"
    found = dsl.predict(path, [images], threshold=0, device="cpu")
    scores = torch.cat([detections.scores for _, detections in found]).sort().values
    # In the widest gap of the middle half: a batch of images rounds otherwise than one alone.
    inner = scores[len(scores) // 4 : -len(scores) // 4]
    gap = int(inner.diff().argmax())
    middle = float(inner[gap : gap + 2].mean())
    save_checkpoint(path, replace(checkpoint, weights=weights, thresholds=(middle, middle)))
    return path, images


def boxes_of(path: Path) -> list[tuple[str, bool, list[float]]]:
    index = open_dataset(path)
    assert index.annotations is not None
    rows = []
    for position in range(len(index)):
        targets = index.annotations[position]
        for box, ignored in zip(targets.boxes.tolist(), targets.ignored.tolist(), strict=True):
            rows.append((Path(index.names[position]).name, ignored, box))
    return sorted(rows, key=lambda row: row[0])  # boxes of one image stay in order


@pytest.mark.parametrize("to", ["coco", "voc", "yolo", "label-studio", "cvat"])
def test_every_format_opens_with_uncertain_boxes_ignored(
    shelf: tuple[Path, Path], tmp_path: Path, to: str
) -> None:
    checkpoint, images = shelf
    written = dsl.label(checkpoint, [images], out=tmp_path / "out", to=to, device="cpu")
    model = dsl.load(checkpoint, device="cpu")
    bar = float(model.thresholds[0])
    expected = []
    for path in sorted(images.iterdir()):
        [found] = model(path, threshold=max(0.1, bar / 2))
        for box, score in zip(found.boxes.tolist(), found.scores.tolist(), strict=True):
            expected.append((path.name, score < bar, box))
    if to == "yolo":
        expected = [row for row in expected if not row[1]]
        assert any("YOLO cannot mark" in note for note in written.notes)
    got = boxes_of(written.path)
    assert len({ignored for _, ignored, _ in expected}) == (1 if to == "yolo" else 2)
    assert [row[:2] for row in got] == [row[:2] for row in expected]
    for one, other in zip(got, expected, strict=True):
        assert one[2] == pytest.approx(other[2], abs=0.02)
    with (tmp_path / "out" / "ranking.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["rank"]) for row in rows] == list(range(1, 7))
    bits = [float(row["usefulness"]) for row in rows]
    assert bits == sorted(bits, reverse=True)
    assert bits[0] > 0
    if to in ("coco", "label-studio", "cvat"):
        index = open_dataset(written.path)
        order = [Path(index.names[position]).name for position in range(6)]
        assert order == [row["image"] for row in rows]


def accept_in_label_studio(folder: Path) -> Path:
    tasks = json.loads((folder / "tasks.json").read_text())
    for task in tasks:
        result = task["predictions"][0]["result"]
        task["annotations"] = [{"was_cancelled": False, "result": result[:2]}]
    path = folder / "export.json"
    path.write_text(json.dumps(tasks))
    return path


def accept_in_cvat(folder: Path) -> Path:
    tree = ElementTree.parse(folder / "annotations.xml")
    for image in tree.iter("image"):
        del image[2:]
        for attribute in image.iter("attribute"):
            if attribute.get("name") == "uncertain":
                attribute.text = "false"
    tree.write(folder / "annotations.xml")
    return folder / "annotations.xml"


@pytest.mark.parametrize(
    ("to", "accept"), [("label-studio", accept_in_label_studio), ("cvat", accept_in_cvat)]
)
def test_what_comes_back_is_trained_on(
    shelf: tuple[Path, Path], tmp_path: Path, to: str, accept: Callable[[Path], Path]
) -> None:
    checkpoint, images = shelf
    dsl.label(checkpoint, [images], out=tmp_path / "out", to=to, device="cpu")
    reviewed = accept(tmp_path / "out")
    rows = boxes_of(reviewed)
    assert len(rows) == 12
    assert not any(ignored for _, ignored, _ in rows)
    dsl.train(reviewed, out=tmp_path / "run", val=reviewed, recipe="tiny", settings=QUICK)
    assert dsl.load(tmp_path / "run" / "best.pt", device="cpu").classes == ("square", "bar")


def test_nothing_is_overwritten_and_unknown_formats_are_named(
    shelf: tuple[Path, Path], tmp_path: Path
) -> None:
    checkpoint, images = shelf
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UserError, match="exists already"):
        dsl.label(checkpoint, [images], out=tmp_path, to="coco", device="cpu")
    with pytest.raises(UserError, match="label-studio, cvat"):
        dsl.label(checkpoint, [images], out=tmp_path / "out", to="excel", device="cpu")
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["dsl", *(str(a) for a in arguments)])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return int(exit_.value.code or 0)


def test_the_commands(
    shelf: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    checkpoint, images = shelf
    out = tmp_path / "review"
    label = ["label", checkpoint, images, "--to", "cvat", "--out", out, "--device", "cpu"]
    assert run(monkeypatch, *label, "--link") == 0
    said = capsys.readouterr().out
    assert "are uncertain" in said
    assert "ranking.csv" in said
    assert "labels.json" in said
    assert all(file.is_symlink() for file in (out / "images").iterdir())
    assert run(monkeypatch, *label) == 2
    assert "exists already" in capsys.readouterr().err
    assert run(monkeypatch, "data", "convert", out, tmp_path / "voc", "--to", "voc") == 0
    assert "6 images" in capsys.readouterr().out
    assert run(monkeypatch, "data", "show", tmp_path / "voc", "--out", tmp_path / "p.html") == 0
    assert (tmp_path / "p.html").is_file()
    capsys.readouterr()
    assert run(monkeypatch, "data", "convert", out, tmp_path / "x", "--to", "xml") == 2
    assert "coco, voc, yolo" in capsys.readouterr().err
    for command in (["label"], ["data", "convert"], ["data", "show"]):
        assert run(monkeypatch, *command, "--help") == 0
        assert f"dsl {' '.join(command)} " in capsys.readouterr().out
