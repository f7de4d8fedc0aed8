"""Turn a checkpoint into a file that runs without this package: ONNX, or a torch program.

Both take the same two inputs and give the same four outputs (`models/exported.py`). It writes
files and measures what they are worth; how they are used is `onnx_detector.py`'s matter.
"""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Tensor

from dsl.compose import build_model
from dsl.data.classes import align_classes
from dsl.data.formats import open_dataset
from dsl.data.index import Index
from dsl.data.loader import MULTIPLE, EvalBatches, load
from dsl.engine.checkpoint import load_checkpoint
from dsl.engine.progress import CountBar
from dsl.errors import UserError
from dsl.inference import Model, rescale
from dsl.metrics import evaluate_coco
from dsl.models.exported import (
    ExportedDetector,
    suppress_by_operator,
    suppress_by_torchvision,
)  # fmt: skip
from dsl.onnx_detector import INPUTS, INSTALL, METADATA_KEY, OUTPUTS, Description, OnnxModel
from dsl.quantise import MAX_CALIBRATION, Batch, store_half, to_int8
from dsl.rundata import annotations_of, open_labeled
from dsl.types import Detections

Format = Literal["onnx", "torch"]
Precision = Literal["fp32", "fp16", "int8"]

SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".torchscript"}
OPSET = 18
_NEEDED = ("onnx", "onnxruntime")


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    checkpoint: Path
    out: Path
    format: Format = "onnx"
    precision: Precision = "fp32"
    calibrate: Path | None = None  # images for int8; labels are not used
    val: Path | None = None  # labeled: AP of what was written is measured on it

    def __post_init__(self) -> None:
        if self.out.exists():
            raise UserError(f"--out: {self.out} exists already; choose another name")
        if self.format == "torch" and self.precision != "fp32":
            raise UserError(f"--precision: {self.precision} is for --format onnx; torch has fp32")
        if self.format == "torch" and self.val is not None:
            raise UserError("--val: AP is measured of ONNX files; leave it out with --format torch")
        if self.precision == "int8" and self.calibrate is None and self.val is None:
            raise UserError(
                "--precision: int8 learns its ranges from images; name some with --calibrate"
            )


@dataclass(frozen=True)
class Variant:
    """One written file and what it is worth."""

    precision: Precision
    num_bytes: int
    ap: float | None  # None: not measured


def default_out(checkpoint: Path, format_: Format, precision: Precision) -> Path:
    """Beside the checkpoint: best.onnx, best-int8.onnx, best.torchscript."""
    part = "" if precision == "fp32" else f"-{precision}"
    return checkpoint.with_name(f"{checkpoint.stem}{part}{SUFFIXES[format_]}")


def export(request: Request, *, console: Console) -> list[Variant]:
    """Write the file; returns the variants that were made, the asked-for one last."""
    _check_installed(request.format)
    model = build_model(load_checkpoint(request.checkpoint), request.checkpoint, device="cpu")
    if request.format == "torch":
        with _written(request.out) as file:
            write_torch(model, file)
        return [Variant("fp32", request.out.stat().st_size, None)]
    calibration = _calibration(request, model)
    val = _open_val(request, model, console)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "fp32.onnx"
        console.print("tracing the network")
        write_onnx(model, plain)
        variants = [_variant("fp32", plain, val, console)]
        if request.precision == "fp32":
            made = plain
        else:
            made = Path(folder) / "variant.onnx"
            if calibration is None:
                store_half(plain, made)
            else:
                console.print("calibrating int8")
                to_int8(plain, made, calibration)
            variants.append(_variant(request.precision, made, val, console))
        with _written(request.out) as file:
            shutil.copyfile(made, file)
    return variants


def write_onnx(model: Model, path: Path) -> None:
    """The fp32 graph with its metadata.

    By torch's older tracer: it takes a second where the newer exporter takes half a minute, and
    what it writes was right for every batch and size that the tests try.
    """
    import onnx
    from torch.onnx import symbolic_helper
    from torch.onnx.utils import register_custom_op_symbolic

    detector = model.detector
    graph = ExportedDetector(detector.network, detector.decoder, suppress_by_operator)
    symbolic = symbolic_helper.parse_args("v", "v", "f", "i")(_suppression)
    register_custom_op_symbolic("dsl::non_max_suppression", symbolic, OPSET)
    batched = {name: {0: "batch"} for name in (*INPUTS, *OUTPUTS)}
    batched["images"] |= {2: "height", 3: "width"}
    with _quiet_tracer():
        torch.onnx.export(
            graph, _example(), str(path), dynamo=False, opset_version=OPSET,
            input_names=INPUTS, output_names=OUTPUTS, dynamic_axes=batched,
        )  # fmt: skip
    proto = onnx.load(str(path))
    for output in proto.graph.output[:3]:  # the tracer names this size, but it is fixed
        output.type.tensor_type.shape.dim[1].dim_value = detector.decoder.max_detections
    proto.metadata_props.add(key=METADATA_KEY, value=describe(model).to_json())
    onnx.save(proto, str(path))


def _suppression(graph: Any, boxes: Any, scores: Any, iou: float, per_class: int) -> Any:
    """`non_max_suppression` of models/exported.py in ONNX's operators."""
    from onnx import TensorProto

    def constant(values: list[float], dtype: torch.dtype) -> Any:
        return graph.op("Constant", value_t=torch.tensor(values, dtype=dtype))

    most = constant([per_class], torch.int64)
    overlap = constant([iou], torch.float32)
    least = constant([0.0], torch.float32)
    chosen = graph.op("NonMaxSuppression", boxes, scores, most, overlap, least)  # (S, 3)
    places = graph.op("Gather", chosen, constant([0, 2], torch.int64), axis_i=1)  # image, box
    each = graph.op("Shape", places, start_i=0, end_i=1)
    everywhere = graph.op("Shape", boxes, start_i=0, end_i=2)
    ones = graph.op("Expand", constant([1], torch.int64), each)
    none = graph.op("Expand", constant([0], torch.int64), everywhere)
    kept = graph.op("ScatterND", none, places, ones)
    return graph.op("Cast", kept, to_i=TensorProto.BOOL)


def write_torch(model: Model, path: Path) -> None:
    """A TorchScript program; `dsl.json` in it holds the metadata.

    `import torchvision; torch.jit.load(file)` runs it, with none of our code. A `torch.export`
    program would hold guards on shapes that refuse some image sizes (64 px high was one).
    """
    detector = model.detector
    graph = ExportedDetector(detector.network, detector.decoder, suppress_by_torchvision)
    with _quiet_tracer():
        trace: Any = torch.jit.trace  # not annotated in torch
        program = trace(graph, _example(), check_trace=False)
        about = {f"{METADATA_KEY}.json": describe(model).to_json()}
        torch.jit.save(program, str(path), _extra_files=about)


@contextmanager
def _quiet_tracer() -> Iterator[None]:
    """It warns of its age, and of checks on shapes, which it passes once and does not record."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def describe(model: Model) -> Description:
    """The metadata of a model's file."""
    return Description(
        classes=model.classes,
        thresholds=tuple(round(value, 6) for value in model.thresholds.tolist()),
        short_side=model.short_side,
        max_side=model.max_side,
        multiple=MULTIPLE,
        precision="fp32",
    )


def detect(model: OnnxModel, index: Index, *, console: Console) -> list[Detections]:
    """All detections in every image of a set, unfiltered, in the pixels of the files."""
    found: dict[int, Detections] = {}
    batches = _batches(index, model.description, batch=1)
    with CountBar(console, f"detecting ({model.description.precision})", len(index)) as bar:
        for batch in load(batches, range(len(batches)), workers=0):
            raw = model.run(batch.images.images.numpy(), batch.images.sizes.numpy())
            for image, position in enumerate(batch.positions):
                rows = slice(int(raw.counts[image]))
                columns = (torch.from_numpy(column[image, rows]) for column in raw[:3])
                sizes = batch.images.sizes[image], batch.original_sizes[image]
                found[position] = rescale(Detections(*columns), *sizes)
            bar(len(found))
    return [found[position] for position in range(len(index))]


def _example() -> tuple[Tensor, Tensor]:
    """Inputs to trace with; neither 1 nor equal sides, which torch could take for a rule."""
    height, width = 3 * MULTIPLE, 4 * MULTIPLE
    images = torch.zeros(2, 3, height, width, dtype=torch.uint8)
    return images, torch.tensor([[height, width]] * 2)


def _variant(precision: Precision, path: Path, val: Index | None, console: Console) -> Variant:
    ap = None
    if val is not None:
        model = OnnxModel(path, device="cpu")
        found = detect(model, val, console=console)
        ap = evaluate_coco(annotations_of(val), found, model.classes).ap
    return Variant(precision, path.stat().st_size, ap)


def _open_val(request: Request, model: Model, console: Console) -> Index | None:
    if request.val is None:
        return None
    index = open_labeled(str(request.val), role="val", split="val", console=console)
    return align_classes(index, model.classes, owner=str(request.checkpoint))


def _calibration(request: Request, model: Model) -> list[Batch] | None:
    """Inputs of the graph, one image each; None where int8 is not asked for."""
    source = request.calibrate or request.val
    if request.precision != "int8" or source is None:
        return None
    index = open_dataset(source, split="train" if request.calibrate else "val")
    step = max(1, len(index) // MAX_CALIBRATION)
    spread = torch.arange(0, len(index), step)[:MAX_CALIBRATION]
    batches = _batches(index.select(spread), describe(model), batch=1)
    return [
        (item.images.images.numpy(), item.images.sizes.numpy())
        for item in load(batches, range(len(batches)), workers=0)
    ]


def _batches(index: Index, about: Description, *, batch: int) -> EvalBatches:
    return EvalBatches(index, short_side=about.short_side, max_side=about.max_side, batch=batch)


@contextmanager
def _written(out: Path) -> Iterator[Path]:
    """A place to write to; moved to `out` once all went well, so that no half file is left."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-") as folder:
        file = Path(folder) / out.name
        yield file
        os.replace(file, out)


def _check_installed(format_: Format) -> None:
    missing = [] if format_ == "torch" else [n for n in _NEEDED if find_spec(n) is None]
    if missing:
        raise UserError(f"--format onnx: {', '.join(missing)} not installed; {INSTALL}")
