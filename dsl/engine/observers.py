"""Observers of the training loop: the log, the checkpoints and the evaluations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsl.engine.checkpoint import Checkpoint, save_checkpoint
from dsl.engine.log import RunLog
from dsl.engine.train import Position, Step


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found out."""

    metrics: Mapping[str, Any]  # of the averaged weights; "ap" decides which ones are best
    student: Mapping[str, Any]  # of the trained weights
    thresholds: tuple[float, ...]


class LossLog:
    """Writes the mean losses of every `every` steps."""

    def __init__(self, log: RunLog, *, every: int = 10) -> None:
        self._log, self._every = log, every
        self._sums: dict[str, float] = {}
        self._count = 0

    def __call__(self, step: Step) -> None:
        self._count += 1
        for name, value in {**step.losses, "grad_norm": step.grad_norm}.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
        for message in step.unreadable:
            self._log.write("unreadable", step.position.step, {"message": message})
        if step.position.step % self._every and not step.last:
            return
        means = {name: value / self._count for name, value in self._sums.items()}
        seconds = round(step.position.seconds, 2)
        values = {**means, "lr": step.lr, "images": step.num_images, "seconds": seconds}
        self._log.write("train", step.position.step, values)
        self._sums, self._count = {}, 0


class Keeper:
    """Evaluates and saves: last.pt to go on from, best.pt to use."""

    def __init__(
        self, folder: Path | None, *, snapshot: Callable[[Position], Checkpoint],
        evaluate: Callable[[], Evaluation] | None, eval_every: int, save_every: int,
        report: Callable[[int, Evaluation], None], best: float = -1.0,
    ) -> None:  # fmt: skip
        """`folder` None: another rank writes, this one only takes part in the evaluation.
        `snapshot` makes the full checkpoint; `best` is the AP to beat, of an earlier session."""
        self._folder, self._snapshot, self._evaluate = folder, snapshot, evaluate
        self._eval_every, self._save_every = eval_every, save_every
        self._report, self.best = report, best
        self.latest: Evaluation | None = None

    def __call__(self, step: Step) -> None:
        number, finished = step.position.step, step.progress >= 1
        evaluated = self._evaluate is not None and (finished or number % self._eval_every == 0)
        if evaluated and self._evaluate is not None and not step.stopping:
            self.latest = self._evaluate()
            self._report(number, self.latest)
        if self._folder is None:
            return
        checkpoint = None
        if evaluated and self.latest is not None:
            checkpoint = self._snapshot(step.position)
            ap = float(self.latest.metrics["ap"])
            if ap > self.best or self.best < 0:
                self.best = ap
                save_checkpoint(self._folder / "best.pt", _usable(checkpoint))
        if evaluated or step.last or number % self._save_every == 0:
            save_checkpoint(self._folder / "last.pt", checkpoint or self._snapshot(step.position))


def _usable(checkpoint: Checkpoint) -> Checkpoint:
    """Only what is needed to use the detector."""
    return Checkpoint(
        checkpoint.settings,
        checkpoint.classes,
        checkpoint.weights,
        thresholds=checkpoint.thresholds,
        metrics=checkpoint.metrics,
    )
