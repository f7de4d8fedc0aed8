"""Ordinary training on labels; the baseline of every comparison."""

from dsl.methods.base import Losses, Method, counts_of, normalise
from dsl.models.fcos import FCOS
from dsl.models.losses import Criterion
from dsl.ssod.teacher import make_teacher, update_teacher
from dsl.types import Batch


class Supervised(Method):
    """L = L_s, with averaged weights beside the trained ones."""

    def __init__(
        self, detector: FCOS, criterion: Criterion, *, keep_rate: float, shared_counts: bool = True
    ) -> None:
        super().__init__()
        self.student, self.teacher = detector, make_teacher(detector)
        self.criterion, self.keep_rate = criterion, keep_rate
        self.shared_counts = shared_counts

    def forward(self, batch: Batch) -> Losses:
        sums = self.criterion(self.student(batch.labeled.images), batch.labeled.targets)
        return normalise(sums, counts_of(sums, shared=self.shared_counts))

    def after_step(self, step: int) -> None:
        update_teacher(self.teacher, self.student, keep_rate=self.keep_rate, step=step)
