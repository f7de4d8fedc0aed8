"""Ordinary training on labels; the baseline of every comparison."""

from dsl.methods.base import Losses, Method, normalise
from dsl.models.fcos import FCOS
from dsl.models.losses import Criterion
from dsl.ssod.teacher import make_teacher, update_teacher
from dsl.types import Batch


class Supervised(Method):
    """L = L_s, with averaged weights beside the trained ones."""

    def __init__(self, detector: FCOS, criterion: Criterion, *, keep_rate: float) -> None:
        super().__init__()
        self.student, self.teacher = detector, make_teacher(detector)
        self.criterion, self.keep_rate = criterion, keep_rate

    def forward(self, batch: Batch) -> Losses:
        output = self.student(batch.labeled.images)
        return normalise(self.criterion(output, batch.labeled.targets))

    def after_step(self, step: int) -> None:
        update_teacher(self.teacher, self.student, keep_rate=self.keep_rate, step=step)
