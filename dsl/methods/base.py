"""The contract between a method and the engine, and the one division that all losses share.

A method is one module whose `forward(batch)` is the whole iteration, so that DDP sees one forward
and one backward. What it needs to go on after a restart is in its `state_dict`.
"""

import torch
from torch import Tensor, distributed, nn

from dsl.models.losses import LossSums
from dsl.types import Batch

Losses = dict[str, Tensor]  # by name; "loss" is the one to minimise, the others are to look at


class Method(nn.Module):
    """Base of all methods."""

    shared_counts: bool  # losses are divided by the counts of all ranks, not by each one's own

    student: nn.Module
    teacher: nn.Module  # the averaged weights: evaluated, saved and exported

    def forward(self, batch: Batch) -> Losses:
        raise NotImplementedError

    def advance(self, progress: float) -> bool:
        """Told before each step what share of the run is done; True when a new phase begins, which
        may want other batches."""
        return False

    def ease(self) -> str | None:
        """Rely less on unlabeled images, for good; says what was done, None: nothing to lower."""
        return None

    @property
    def phase(self) -> str:
        """What the progress bar calls the present phase."""
        return "train"

    def after_step(self, step: int) -> None:
        """Called when optimizer step number `step` (from 1) is done."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> "Method":
        super().train(mode)
        self.teacher.eval()  # a teacher in train mode would be taught by its own pupils' batches
        return self


def num_ranks() -> int:
    """Processes that train together."""
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return distributed.get_world_size()


def mean_over_ranks(value: Tensor) -> Tensor:
    """The sum over all processes divided by their number; no gradient."""
    value = value.detach()
    if num_ranks() == 1:
        return value
    value = value.clone()
    distributed.all_reduce(value)
    return value / num_ranks()


def counts_of(sums: LossSums, *, shared: bool) -> Tensor:
    """(2,): what the sums are divided by, at least 1. `shared`: averaged over the ranks, because
    DDP averages the gradients, so the result is that of one process with all images; the least
    is then 1 for all of them together."""
    counts = torch.stack([sums.num_positives, sums.box_weights]).detach()
    if not shared:
        return counts.clamp(min=1)
    return mean_over_ranks(counts).clamp(min=1 / num_ranks())


def normalise(sums: LossSums, counts: Tensor) -> Losses:
    """Sums to means."""
    num_positives, weight = counts
    parts = {
        "class": sums.classification / num_positives,
        "box": sums.box / weight,
        "centerness": sums.centerness / num_positives,
    }
    return {"loss": sum(parts.values(), torch.zeros_like(num_positives)), **parts}
