"""Exported files against the detector that they come from, through onnxruntime and torch."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import nn

from dsl import api
from dsl.compose import build_detector
from dsl.config import load_config
from dsl.data.loader import collate_images
from dsl.data.scenes import SceneOptions, draw_scene
from dsl.engine.checkpoint import Checkpoint, save_checkpoint
from dsl.errors import UserError
from dsl.export import Request, default_out, export, write_onnx, write_torch
from dsl.onnx_detector import METADATA_KEY, Description, OnnxModel, RawDetections
from dsl.types import Detections, ImageBatch

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
QUIET = Console(quiet=True)
Coco = Callable[..., Path]
VARIANTS = [
    ("tf_efficientnet_lite0", "concat"), ("tf_efficientnet_lite0", "off"), ("resnet18", "add"),
    ("resnet18", "off"),
]  # fmt: skip


def write_checkpoint(folder: Path, backbone: str, aggregation: str) -> Path:
    """Random weights, with a head that sees objects of many sizes everywhere."""
    settings = {
        "model.backbone": backbone, "model.weights": "none", "model.aggregation": aggregation,
        "model.aggregation_width": 8, "model.channels": 64, "model.num_convs": 1,
        "views.test_short_side": 64, "views.max_side": 128, "run.precision": "fp32",
    }  # fmt: skip
    config = load_config("small", settings)
    torch.manual_seed(0)
    network = build_detector(config, 2)
    for module in network.backbone.modules():  # an aggregation starts without effect
        if isinstance(module, nn.Conv2d) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.05)
    nn.init.normal_(network.head.class_logits.weight, std=0.1)
    nn.init.constant_(network.head.class_logits.bias, -2.0)
    nn.init.normal_(network.head.distances.weight, std=0.05)
    nn.init.constant_(network.head.distances.bias, 1.5)
    path = folder / f"{backbone}-{aggregation}.pt"
    plain = config.model_dump(mode="json")
    save_checkpoint(path, Checkpoint(plain, ("square", "bar"), network.state_dict(), (0.2, 0.3)))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, Path]]:
    """`made(backbone, aggregation)`: a checkpoint and its ONNX file, written once."""
    folder = tmp_path_factory.mktemp("exported")

    @cache
    def make(backbone: str, aggregation: str) -> tuple[Path, Path]:
        checkpoint = write_checkpoint(folder, backbone, aggregation)
        file = checkpoint.with_suffix(".onnx")
        write_onnx(api.load(checkpoint, device="cpu"), file)
        return checkpoint, file

    return make


def pictures(*, count: int, cut: tuple[int, int]) -> ImageBatch:
    """Scenes of 128 px, cut to sizes that need padding."""
    scenes = [draw_scene(SceneOptions(), "val", number=n).pixels for n in range(1, count + 1)]
    return collate_images([
        torch.from_numpy(pixels[: cut[0], : cut[1] - 5 * n].copy()).permute(2, 0, 1)
        for n, pixels in enumerate(scenes)
    ])  # fmt: skip


def run(file: Path, batch: ImageBatch) -> RawDetections:
    return OnnxModel(file, device="cpu", threads=1).run(batch.images.numpy(), batch.sizes.numpy())


def match(raw: RawDetections, image: int, expected: Detections) -> None:
    """One to one, but for what lies at the cut of the hundred best."""
    count = int(raw.counts[image])
    assert count == len(expected)
    boxes, scores = raw.boxes[image, :count], raw.scores[image, :count]
    free = np.ones(count, bool)
    cut = float(expected.scores.min()) + 1e-3 if count == raw.boxes.shape[1] else 0.0
    columns = expected.boxes.numpy(), expected.scores.tolist(), expected.labels.tolist()
    for box, score, label in zip(*columns, strict=True):
        near = (np.abs(boxes - box).max(axis=1) < 0.5) & (np.abs(scores - score) < 1e-3)
        same = near & free & (raw.labels[image, :count] == label)
        assert same.any() or score < cut, (box, score, label)
        free[same.argmax()] &= not same.any()
    assert (scores[free] < cut).all()


@pytest.mark.parametrize(("backbone", "aggregation"), VARIANTS)
def test_onnx_finds_what_torch_finds(
    made: Callable[[str, str], tuple[Path, Path]], backbone: str, aggregation: str
) -> None:
    checkpoint, file = made(backbone, aggregation)
    detector = api.load(checkpoint, device="cpu").detector
    most = 0
    for batch in (pictures(count=1, cut=(60, 90)), pictures(count=3, cut=(128, 128))):
        expected = detector(batch, batch.sizes)
        raw = run(file, batch)
        assert raw.boxes.shape == (len(batch), 100, 4)
        assert [str(column.dtype) for column in raw] == ["float32", "float32", "int64", "int64"]
        for image, found in enumerate(expected):
            assert len(found) > 10
            most = max(most, len(found))
            match(raw, image, found)
    assert most == 100  # the cut of the hundred best was met


def test_a_torch_program_finds_the_same_without_our_code(
    made: Callable[[str, str], tuple[Path, Path]], tmp_path: Path
) -> None:
    checkpoint, _ = made("resnet18", "off")
    model = api.load(checkpoint, device="cpu")
    write_torch(model, tmp_path / "model.torchscript")
    batches = [pictures(count=1, cut=(60, 90)), pictures(count=3, cut=(128, 128))]
    torch.save([(b.images, b.sizes) for b in batches], tmp_path / "in.pt")
    script = (
        "import sys, torch, torchvision\n"
        "extra = {'dsl.json': ''}\n"
        "program = torch.jit.load('model.torchscript', _extra_files=extra)\n"
        "out = [program(*b) for b in torch.load('in.pt')]\n"
        "assert not any(name.split('.')[0] == 'dsl' for name in sys.modules)\n"
        "torch.save((out, extra['dsl.json']), 'out.pt')\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    outputs, about = torch.load(tmp_path / "out.pt")
    for batch, output in zip(batches, outputs, strict=True):
        raw = RawDetections(*(column.numpy() for column in output))
        for image, found in enumerate(model.detector(batch, batch.sizes)):
            match(raw, image, found)
    assert Description.from_json(about).classes == ("square", "bar")


def test_predict_needs_no_torch_and_agrees_with_the_checkpoint(
    made: Callable[[str, str], tuple[Path, Path]], coco: Coco, tmp_path: Path
) -> None:
    checkpoint, file = made("tf_efficientnet_lite0", "concat")
    coco(count=3)
    images = tmp_path / "data" / "images"
    Image.open(images / "train_001.png").resize((300, 260)).save(images / "large.jpg")
    script = (
        "import sys\n"
        "from dsl import cli\n"
        "try:\n"
        "    cli.main()\n"
        "finally:\n"
        "    loaded = {'torch', 'torchvision', 'timm'} & set(sys.modules)\n"
        "    assert not loaded, loaded\n"
    )
    command = [sys.executable, "-c", script, "predict", file, images, "--out", tmp_path / "onnx"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "large.jpg" in done.stdout
    api.predict(checkpoint, [images], out=tmp_path / "torch", device="cpu")
    ours, theirs = (
        json.loads((tmp_path / name / "detections.json").read_text()) for name in ("onnx", "torch")
    )
    assert ours["images"] == theirs["images"]
    assert ours["categories"] == theirs["categories"]
    assert len(ours["annotations"]) == len(theirs["annotations"]) > 10
    for one, other in zip(ours["annotations"], theirs["annotations"], strict=True):
        assert one["image_id"] == other["image_id"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-3)
    drawn = [sorted(f.name for f in (tmp_path / n / "images").iterdir()) for n in ("onnx", "torch")]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 4


def test_nothing_found_has_count_zero(
    made: Callable[[str, str], tuple[Path, Path]], tmp_path: Path
) -> None:
    proto = onnx.load(made("resnet18", "off")[1])
    [bias] = [t for t in proto.graph.initializer if t.name.endswith("head.class_logits.bias")]
    bias.CopyFrom(onnx.numpy_helper.from_array(np.full(2, -50, np.float32), bias.name))
    onnx.save(proto, tmp_path / "silent.onnx")
    raw = run(tmp_path / "silent.onnx", pictures(count=3, cut=(128, 128)))
    assert raw.counts.tolist() == [0, 0, 0]
    assert not raw.boxes.any()
    assert not raw.scores.any()


def test_the_file_says_how_it_is_used(made: Callable[[str, str], tuple[Path, Path]]) -> None:
    file = made("resnet18", "off")[1]
    [entry] = [p for p in onnx.load(file).metadata_props if p.key == METADATA_KEY]
    assert json.loads(entry.value) == {
        "classes": ["square", "bar"], "thresholds": [0.2, 0.3], "short_side": 64,
        "max_side": 128, "multiple": 32, "precision": "fp32", "version": 1,
    }  # fmt: skip
    assert sum(node.op_type == "NonMaxSuppression" for node in onnx.load(file).graph.node) == 1


def test_int8_and_fp16_are_smaller_and_say_their_ap(
    made: Callable[[str, str], tuple[Path, Path]], coco: Coco, tmp_path: Path
) -> None:
    checkpoint, file = made("resnet18", "off")
    val, full = coco(count=4), file.stat().st_size
    request = Request(checkpoint, tmp_path / "small.onnx", precision="int8", val=val)
    plain, int8 = export(request, console=QUIET)
    assert (plain.precision, int8.precision) == ("fp32", "int8")
    assert int8.num_bytes == request.out.stat().st_size < 0.35 * full
    assert plain.ap is not None
    assert int8.ap is not None
    assert OnnxModel(request.out, device="cpu").description.precision == "int8"
    assert run(request.out, pictures(count=1, cut=(60, 90))).counts[0] > 0


def test_half_precision_weights_find_nearly_the_same(
    made: Callable[[str, str], tuple[Path, Path]], tmp_path: Path
) -> None:
    from dsl.quantise import store_half

    file = made("resnet18", "off")[1]
    store_half(file, tmp_path / "half.onnx")
    assert (tmp_path / "half.onnx").stat().st_size < 0.6 * file.stat().st_size
    batch = pictures(count=1, cut=(60, 90))
    plain, half = run(file, batch), run(tmp_path / "half.onnx", batch)
    best = slice(0, 5)
    np.testing.assert_allclose(half.scores[0, best], plain.scores[0, best], atol=0.01)
    assert OnnxModel(tmp_path / "half.onnx", device="cpu").description.precision == "fp16"


def test_names_beside_the_checkpoint() -> None:
    assert default_out(Path("r/best.pt"), "onnx", "fp32") == Path("r/best.onnx")
    assert default_out(Path("r/best.pt"), "onnx", "int8") == Path("r/best-int8.onnx")
    assert default_out(Path("r/best.pt"), "torch", "fp32") == Path("r/best.torchscript")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int8"}, "--calibrate"),
        ({"format": "torch", "precision": "fp16"}, "--format onnx"),
        ({"format": "torch", "val": Path("v.json")}, "--val"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Request(Path("a.pt"), Path("absent.onnx"), **options)  # type: ignore[arg-type]


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").touch()
    with pytest.raises(UserError, match="exists already"):
        Request(Path("a.pt"), tmp_path / "a.onnx")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsl.export.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'dsl-detection\[export\]'"):
        export(Request(Path("a.pt"), Path("absent.onnx")), console=QUIET)
