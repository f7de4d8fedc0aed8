"""What a run writes down: JSON lines for machines, TensorBoard for eyes. Rank 0 only."""

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


class RunLog:
    """Appends to RUN/log.jsonl and RUN/tensorboard; a resumed run goes on in both."""

    def __init__(self, folder: Path, *, step: int = 0, size: int | None = None) -> None:
        """A run that goes on from `step` writes anew what it wrote after that: `size` is that of
        log.jsonl at that moment."""
        path = folder / "log.jsonl"
        if size is not None and path.exists() and path.stat().st_size > size:
            os.truncate(path, size)
        self._lines, self._complained = path.open("a", buffering=1), False
        self._board = SummaryWriter(
            str(folder / "tensorboard"), purge_step=step + 1 if size is not None else None
        )

    def size(self) -> int:
        """Of log.jsonl, in bytes."""
        return os.fstat(self._lines.fileno()).st_size

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """One line {"kind", "step", "time", ...}; numbers go to TensorBoard under `kind/`."""
        record = {"kind": kind, "step": step, "time": round(time.time(), 3), **_plain(values)}
        with self._tolerant():
            self._lines.write(json.dumps(record) + "\n")
            for name, value in _scalars(kind, values):
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        with self._tolerant():
            self._lines.close()
        with self._tolerant():
            self._board.close()

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        """A full disk costs lines of the log, not the training."""
        try:
            yield
        except OSError as error:
            if not self._complained:
                print(f"the log is incomplete: {error.strerror or error}", file=sys.stderr)
            self._complained = True


def _scalars(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """All finite numbers by their path, also those of classes and levels."""
    for name, value in values.items():
        path = f"{prefix}/{name}"
        if isinstance(value, Mapping):
            yield from _scalars(path, value)
        elif isinstance(value, int | float) and math.isfinite(value):
            yield path, value


def _plain(value: Any) -> Any:
    """JSON has no NaN; floats keep six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
