"""An exported detector in use: numpy, Pillow and onnxruntime, no torch.

Files are read and resized by `dsl.image`, as in training; the graph does the rest. What the graph
cannot hold (class names, operating points, the input size) is in the file's metadata.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from dsl.data.files import find_pictures
from dsl.data.tolerance import account, is_too_many
from dsl.engine.progress import CountBar
from dsl.errors import UserError
from dsl.image import Pixels, fitted_size, read_image, resize_image
from dsl.report.predictions import Found, refuse_existing, write_predictions

METADATA_KEY = "dsl"
VERSION = 1
INPUTS = ("images", "sizes")
OUTPUTS = ("boxes", "scores", "labels", "counts")
INSTALL = "pip install 'dsl-detection[export]'"

_PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}


@dataclass(frozen=True)
class Description:
    """What one must know to use an exported model; JSON in its metadata.

    The input is (N, 3, H, W) uint8 RGB without normalisation (that is in the graph): the image at
    `short_side`, or smaller where `max_side` would be exceeded, at the top left of a canvas whose
    sides are multiples of `multiple`; and (N, 2) int64, the height and width without padding.
    """

    classes: tuple[str, ...]
    thresholds: tuple[float, ...]  # operating point: least score of each class
    short_side: int
    max_side: int
    multiple: int
    precision: str  # fp32, fp16 or int8
    version: int = VERSION

    def __post_init__(self) -> None:
        if len(self.thresholds) != len(self.classes):
            raise ValueError("one threshold per class")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Description":
        content = json.loads(text)
        names = [f.name for f in fields(Description)]
        values = {name: content[name] for name in names}
        if values["version"] != VERSION:
            raise ValueError(f"version {values['version']!r}, this dsl reads {VERSION}")
        lists = {name: tuple(values[name]) for name in ("classes", "thresholds")}
        return Description(**{**values, **lists})


class RawDetections(NamedTuple):
    """The graph's outputs; an image's rows past its count are empty."""

    boxes: NDArray[np.float32]  # (N, 100, 4) in pixels of the input
    scores: NDArray[np.float32]  # (N, 100)
    labels: NDArray[np.int64]  # (N, 100)
    counts: NDArray[np.int64]  # (N,)


class OnnxModel:
    """An exported detector: `model(path)` gives what it found in a file."""

    def __init__(self, path: str | Path, *, device: str = "auto", threads: int = 0) -> None:
        """`threads` 0: as many as onnxruntime thinks best."""
        runtime = _import_runtime()
        if not Path(path).is_file():
            raise UserError(f"model: no such file: {path}")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # errors alone: warnings are about its own optimisations
        try:
            self._session = runtime.InferenceSession(
                str(path), options, providers=_providers(runtime, device)
            )
            metadata = self._session.get_modelmeta().custom_metadata_map
            self.description = Description.from_json(metadata[METADATA_KEY])
        except UserError:
            raise
        except Exception as error:  # onnxruntime's own types, or metadata that is not ours
            raise UserError(
                f"model: {path} cannot be used ({type(error).__name__}): it is damaged, or was not "
                "made by `dsl export`"
            ) from error

    @property
    def classes(self) -> tuple[str, ...]:
        return self.description.classes

    def run(self, images: Pixels, sizes: NDArray[np.int64]) -> RawDetections:
        """(N, 3, H, W) padded images and (N, 2) sizes without padding, as `Description` says."""
        given = dict(zip(INPUTS, (images, sizes), strict=True))
        return RawDetections(*self._session.run(OUTPUTS, given))

    def __call__(self, path: str | Path, *, threshold: float | None = None) -> Found:
        """What a file shows; `threshold` None: each class's operating point."""
        about = self.description
        read = read_image(path, draft_short_side=about.short_side)
        height, width = fitted_size(
            read.height, read.width, short_side=about.short_side, max_side=about.max_side
        )
        canvas = self._canvas(resize_image(read.pixels, height, width))
        raw = self.run(canvas, np.array([[height, width]], np.int64))
        count = int(raw.counts[0])
        scores, labels = raw.scores[0, :count], raw.labels[0, :count]
        scale = np.array([read.width / width, read.height / height] * 2, np.float32)
        bars = np.array(about.thresholds, np.float32)[labels] if threshold is None else threshold
        keep = scores >= bars
        return Found(Path(path), (raw.boxes[0, :count] * scale)[keep], scores[keep], labels[keep])

    def _canvas(self, pixels: Pixels) -> Pixels:
        """(H, W, 3) -> (1, 3, H', W'), padded at the right and bottom."""
        height, width = pixels.shape[:2]
        multiple = self.description.multiple
        sides = [-(-side // multiple) * multiple for side in (height, width)]
        canvas = np.zeros((1, 3, *sides), np.uint8)
        canvas[0, :, :height, :width] = pixels.transpose(2, 0, 1)
        return canvas


def predict_files(
    model: OnnxModel, images: Sequence[str | Path], *, console: Console,
    out: str | Path | None = None, threshold: float | None = None,
) -> list[Found]:  # fmt: skip
    """Detect in files, folders and globs; with `out`, write drawn images and detections.json."""
    refuse_existing(out)
    names = find_pictures(images)
    found: list[Found] = []
    problems: list[str] = []
    with CountBar(console, "detecting", len(names)) as bar:
        for number, name in enumerate(names, start=1):
            try:
                found.append(model(name, threshold=threshold))
            except UserError as error:
                problems.append(str(error))
            bar(number)
    if problems:
        counted = account(
            len(problems), len(names), what="images cannot be used", examples=problems
        )
        if is_too_many(len(problems), len(names)) or not found:
            raise UserError(f"images: {counted}; name the right folder or mend the files")
        console.print(f"{counted}; dropped")
    if out is not None:
        write_predictions(Path(out), found, classes=model.classes, console=console)
    return found


def _import_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise UserError(f"onnxruntime is not installed; {INSTALL}") from None
    return onnxruntime


def _providers(runtime: Any, device: str) -> list[str]:
    """CUDA where it is there and wanted; the CPU stands behind it."""
    if device not in ("auto", *_PROVIDERS):
        raise UserError(f"--device: {device!r} does not run ONNX; choose auto, cpu or cuda")
    present = runtime.get_available_providers()
    if device == "cuda" and _PROVIDERS["cuda"] not in present:
        raise UserError("--device: this onnxruntime has no cuda; try --device auto")
    wanted = ["cpu"] if device == "cpu" else ["cuda", "cpu"]
    return [_PROVIDERS[name] for name in wanted if _PROVIDERS[name] in present]
