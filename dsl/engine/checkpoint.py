"""Checkpoints: tensors and plain data only, written atomically, read without executing anything.

Every checkpoint holds a usable detector (settings, classes, averaged weights, operating point); the
one that training goes on from also holds everything else that affects training.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from dsl.errors import UserError

FORMAT = "dsl-checkpoint"
VERSION = 1
PARTIAL = ".partial"  # ending of files that are being written


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file says."""

    settings: dict[str, Any]  # the Config as plain data
    classes: tuple[str, ...]
    weights: Mapping[str, Tensor]  # of the detector, averaged
    thresholds: tuple[float, ...] | None = None  # score of each class at its best F1
    metrics: Mapping[str, Any] | None = None  # of these weights on the validation set
    training: Mapping[str, Any] | None = None  # to go on: method, optimizer, step, seconds, data

    def __post_init__(self) -> None:
        if self.thresholds is not None and len(self.thresholds) != len(self.classes):
            raise ValueError("one threshold per class")


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write next to the target and move into place: a reader or a crash never sees half a file."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "settings": json.dumps(checkpoint.settings),
        "classes": list(checkpoint.classes),
        "weights": dict(checkpoint.weights),
        "thresholds": None if checkpoint.thresholds is None else list(checkpoint.thresholds),
        "metrics": json.dumps(checkpoint.metrics),
        "training": checkpoint.training,
    }
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
    try:
        with os.fdopen(handle, "wb") as file:
            _write(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # temporary files are private; checkpoints are not
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _write(content: Mapping[str, Any], file: BinaryIO) -> None:
    try:
        torch.save(content, file)
    except RuntimeError as error:  # torch's complaint about the zip hides the full disk behind it
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def is_whole(path: Path) -> bool:
    """Not what a process that was killed in the middle of a save left behind."""
    return not (path.name.startswith(".") and path.name.endswith(PARTIAL))


def remove_partial(folder: Path) -> None:
    """Tidy up after such a process."""
    for path in folder.iterdir():
        if not is_whole(path):
            path.unlink(missing_ok=True)


def _umask() -> int:
    """The process's mask; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read and validate; a foreign, corrupt or malicious file is refused in one line."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"checkpoint: no such file: {path}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # any of a dozen types, depending on how the file is broken
        raise UserError(
            f"checkpoint: {path} cannot be read ({type(error).__name__}): "
            "it is damaged, or was not made by dsl"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"checkpoint: {path} was not made by dsl; to start from it, use --init")
    if content.get("version") != VERSION:
        raise UserError(
            f"checkpoint: {path} has version {content.get('version')!r}; "
            f"this dsl reads version {VERSION}"
        )
    try:
        return _parse(content)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"checkpoint: {path} is damaged: {error}") from error


def _parse(content: Mapping[str, Any]) -> Checkpoint:
    """Every field of the right kind: what a checkpoint says is used without further questions."""
    thresholds: Sequence[float] | None = content["thresholds"]
    classes, weights, training = content["classes"], content["weights"], content["training"]
    settings, metrics = json.loads(content["settings"]), json.loads(content["metrics"])
    _expect(isinstance(settings, dict), "settings: expected a mapping")
    _expect(metrics is None or isinstance(metrics, dict), "metrics: expected a mapping")
    _expect(training is None or isinstance(training, dict), "training: expected a mapping")
    _expect(_all(classes, list, str), "classes: expected names")
    _expect(thresholds is None or _all(thresholds, list, float), "thresholds: expected numbers")
    _expect(_all(weights, dict, str), "weights: expected names")
    _expect(_all(list(weights.values()), list, Tensor), "weights: expected tensors")
    return Checkpoint(
        settings=settings,
        classes=tuple(classes),
        weights=weights,
        thresholds=None if thresholds is None else tuple(thresholds),
        metrics=metrics,
        training=training,
    )


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise TypeError(message)


def _all(value: Any, container: type[list[Any]] | type[dict[Any, Any]], kind: type) -> bool:
    return isinstance(value, container) and all(isinstance(each, kind) for each in value)
