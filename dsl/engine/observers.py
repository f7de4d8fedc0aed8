"""Observers of the training loop: the log, the checkpoints and the evaluations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsl.engine.checkpoint import Checkpoint, save_checkpoint
from dsl.engine.log import RunLog
from dsl.engine.train import Position, Step

EVALUATIONS = 5  # of a run, unless told otherwise
SAVE_EVERY = 500  # steps, at the latest


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found out."""

    metrics: Mapping[str, Any]  # of the averaged weights; "ap" decides which ones are best
    student: Mapping[str, Any]  # of the trained weights
    thresholds: tuple[float, ...]

    @property
    def ap(self) -> float:
        """-1 where the validation set holds nothing to find."""
        value = self.metrics["ap"]
        return -1.0 if value is None else float(value)


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


class TeachingLog:
    """Writes what was taught in every `every` steps of the semi-supervised phase."""

    def __init__(
        self, log: RunLog | None, read: Callable[[], Mapping[str, Any] | None], *, every: int = 50
    ) -> None:
        """`read` gives the figures since it was last called, None where nothing is taught yet. It
        adds up the ranks, so all of them call it; `log` None: another one writes."""
        self._log, self._read, self._every = log, read, every

    def __call__(self, step: Step) -> None:
        if step.position.step % self._every and not step.last:
            return
        figures = self._read()
        if figures is not None and self._log is not None:
            self._log.write("teaching", step.position.step, figures)


class Keeper:
    """Evaluates and saves: last.pt to go on from, best.pt to use."""

    def __init__(
        self,
        folder: Path | None,
        *,
        snapshot: Callable[[Position], Checkpoint],
        evaluate: Callable[[], Evaluation],
        report: Callable[[int, Evaluation], None],
        eval_every: int | None = None,
        save_every: int | None = None,
        resumed: Checkpoint | None = None,
    ) -> None:
        """`folder` None: another rank writes, this one only takes part in the evaluation.
        `snapshot` makes the full checkpoint, without figures; `resumed`: where the run goes on."""
        self._folder, self._snapshot = folder, snapshot
        self._evaluate, self._report = evaluate, report
        self._eval_every, self._save_every = eval_every, save_every or SAVE_EVERY
        self._progress = 0.0
        self.best, self.latest = -1.0, None if resumed is None else _evaluation_of(resumed)
        if resumed is not None and resumed.training is not None:
            self.best = float(resumed.training["best"])

    def __call__(self, step: Step) -> None:
        number, finished = step.position.step, step.progress >= 1
        due = finished or (self._is_due(step) and not step.stopping)
        if due or step.stopping or number % self._save_every == 0:
            self.save(step.position)  # before the evaluation: that may take long, or fail
        if not due:
            return
        self.latest = self._evaluate()
        self._report(number, self.latest)
        better = self.latest.ap > self.best
        self.best = max(self.best, self.latest.ap)
        checkpoint = self.save(step.position)
        if checkpoint is None or self._folder is None:
            return
        if better or not (self._folder / "best.pt").exists():
            save_checkpoint(self._folder / "best.pt", replace(checkpoint, training=None))

    def save(self, position: Position) -> Checkpoint | None:
        """Write last.pt, with the latest figures."""
        if self._folder is None:
            return None
        checkpoint = self._snapshot(position)
        if self.latest is not None:
            checkpoint = replace(
                checkpoint, metrics=self.latest.metrics, thresholds=self.latest.thresholds
            )
        training = {**(checkpoint.training or {}), "best": self.best}
        checkpoint = replace(checkpoint, training=training)
        save_checkpoint(self._folder / "last.pt", checkpoint)
        return checkpoint

    def _is_due(self, step: Step) -> bool:
        before, self._progress = self._progress, step.progress
        if self._eval_every is not None:
            return step.position.step % self._eval_every == 0
        # By progress, so that a run of so many hours is evaluated as often as one of steps.
        return int(EVALUATIONS * step.progress) > int(EVALUATIONS * before)


def _evaluation_of(checkpoint: Checkpoint) -> Evaluation | None:
    if checkpoint.metrics is None or checkpoint.thresholds is None:
        return None
    return Evaluation(checkpoint.metrics, {}, checkpoint.thresholds)
