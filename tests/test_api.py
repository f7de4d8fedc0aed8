"""The Python interface: one model, many kinds of pictures; every format trains."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dsl
from dsl.engine.checkpoint import load_checkpoint, save_checkpoint
from dsl.errors import UserError
from dsl.inference import Model
from dsl.models.decode import Decoder

Coco = Callable[..., Path]
QUICK: dict[str, Any] = {
    "views.short_sides": [64],
    "views.test_short_side": 64,
    "views.max_side": 96,
    "optim.batch": 2,
    "run.steps": 1,
    "run.workers": 0,
    "run.precision": "fp32",
    "run.device": "cpu",
}


@pytest.fixture
def checkpoint(coco: Coco, tmp_path: Path) -> Path:
    dsl.train(coco(count=10), out=tmp_path / "run", recipe="tiny", settings=QUICK)
    return tmp_path / "run" / "best.pt"


def talkative(checkpoint: Path) -> Model:
    """A barely trained model that reports every location it is not entirely sure about."""
    model = dsl.load(checkpoint, device="cpu")
    model.detector = replace(model.detector, decoder=Decoder(min_class_score=0.001))
    return model


def test_a_file_a_pillow_image_and_an_array_give_the_same(checkpoint: Path, tmp_path: Path) -> None:
    model = talkative(checkpoint)
    file = tmp_path / "data" / "images" / "train_001.png"
    picture = Image.open(file)
    several = model([file, str(file), picture, np.asarray(picture)], threshold=0)
    assert len(several) == 4
    assert len(several[0]) > 0
    for other in several[1:]:
        torch.testing.assert_close(other.boxes, several[0].boxes)
        torch.testing.assert_close(other.scores, several[0].scores)
    [alone] = model(file, threshold=0)
    torch.testing.assert_close(alone.boxes, several[0].boxes)
    assert alone.boxes[:, 2].max() <= picture.width
    assert model.classes == ("square", "bar")


def test_a_detector_that_was_taught_in_ways_of_before_is_still_of_use(
    checkpoint: Path, tmp_path: Path
) -> None:
    saved = load_checkpoint(checkpoint)
    settings = {**saved.settings, "teaching": {"metanet_rule": "odds", "gone": 1}}
    save_checkpoint(tmp_path / "old.pt", replace(saved, settings=settings))
    image = np.zeros((48, 64, 3), np.uint8)
    [old], [new] = (dsl.load(p)(image, threshold=0) for p in (tmp_path / "old.pt", checkpoint))
    assert torch.equal(old.boxes, new.boxes)


def test_thresholds_are_the_operating_points_unless_given(checkpoint: Path, tmp_path: Path) -> None:
    model = talkative(checkpoint)
    file = tmp_path / "data" / "images" / "train_001.png"
    [everything] = model(file, threshold=0)
    bar = float(everything.scores.median())
    model.thresholds = torch.tensor([bar, 2.0])
    [kept] = model(file)
    assert set(kept.labels.tolist()) <= {0}
    assert len(kept) == int(((everything.scores >= bar) & (everything.labels == 0)).sum())
    [given] = model(file, threshold=bar)
    assert len(given) == int((everything.scores >= bar).sum())


@pytest.mark.parametrize("picture", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32)])
def test_arrays_of_another_kind_are_refused(checkpoint: Path, picture: Any) -> None:
    with pytest.raises(UserError, match="uint8 RGB"):
        dsl.load(checkpoint, device="cpu")(picture)


def to_voc(data: Path, out: Path) -> Path:
    content = json.loads(data.read_text())
    (out / "Annotations").mkdir(parents=True)
    (out / "JPEGImages").symlink_to(data.parent / "images")
    names = {c["id"]: c["name"] for c in content["categories"]}
    for image in content["images"]:
        objects = ""
        for a in content["annotations"]:
            if a["image_id"] == image["id"]:
                x, y, w, h = a["bbox"]
                objects += (
                    f"<object><name>{names[a['category_id']]}</name><difficult>0</difficult>"
                    f"<bndbox><xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + w}</xmax>"
                    f"<ymax>{y + h}</ymax></bndbox></object>"
                )
        size = f"<size><width>{image['width']}</width><height>{image['height']}</height></size>"
        name = image["file_name"]
        text = f"<annotation><filename>{name}</filename>{size}{objects}</annotation>"
        (out / "Annotations" / f"{Path(name).stem}.xml").write_text(text)
    return out


def to_yolo(data: Path, out: Path) -> Path:
    content = json.loads(data.read_text())
    (out / "labels").mkdir(parents=True)
    (out / "images").symlink_to(data.parent / "images")
    names = [c["name"] for c in content["categories"]]
    (out / "data.yaml").write_text(f"path: .\ntrain: images\nval: images\nnames: {names}\n")
    for image in content["images"]:
        lines = []
        for a in content["annotations"]:
            if a["image_id"] == image["id"]:
                x, y, w, h = a["bbox"]
                wide, tall = image["width"], image["height"]
                lines.append(
                    f"{a['category_id'] - 1} {(x + w / 2) / wide} {(y + h / 2) / tall} "
                    f"{w / wide} {h / tall}"
                )
        (out / "labels" / f"{Path(image['file_name']).stem}.txt").write_text("\n".join(lines))
    return out / "data.yaml"


def test_the_same_set_in_three_formats_trains_to_the_same_weights(
    coco: Coco, tmp_path: Path
) -> None:
    data = coco(count=10, classes=("bar", "square"))  # VOC's classes come sorted
    sets = {
        "coco": data,
        "voc": to_voc(data, tmp_path / "v"),
        "yolo": to_yolo(data, tmp_path / "y"),
    }
    weights = {}
    for name, path in sets.items():
        dsl.train(path, out=tmp_path / name, val=path, recipe="tiny", settings=QUICK)
        weights[name] = load_checkpoint(tmp_path / name / "best.pt").weights
    for name in ("voc", "yolo"):
        for key, tensor in weights["coco"].items():
            torch.testing.assert_close(weights[name][key], tensor, rtol=1e-3, atol=1e-5)


def test_unlabeled_data_are_checked_and_named(coco: Coco, tmp_path: Path, capsys: Any) -> None:
    from rich.console import Console

    data = coco(count=10)
    console = Console(width=200, highlight=False)
    folder = tmp_path / "data" / "images"
    dsl.train(
        data, out=tmp_path / "run", unlabeled=folder, recipe="tiny", settings=QUICK, console=console
    )
    assert "unlabeled: 10 images" in capsys.readouterr().out
    with pytest.raises(UserError, match="nowhere"):
        dsl.train(
            data, out=tmp_path / "r2", unlabeled=tmp_path / "nowhere", recipe="tiny", settings=QUICK
        )


def test_evaluation_is_that_of_the_run(coco: Coco, tmp_path: Path) -> None:
    """`dsl.evaluate` on the validation set repeats the run's own final figures."""
    data, val = coco(count=10), coco(count=6, name="val", seed=3)
    settings = QUICK | {"run.steps": 30}
    outcome = dsl.train(data, out=tmp_path / "run", val=val, recipe="tiny", settings=settings)
    metrics = dsl.evaluate(tmp_path / "run" / "last.pt", val, device="cpu")
    assert metrics["ap"] == pytest.approx(outcome.metrics["ap"], abs=1e-6)
    assert metrics["ar100"] == pytest.approx(outcome.metrics["ar100"], abs=1e-6)
