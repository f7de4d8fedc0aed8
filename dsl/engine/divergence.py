"""What happens when a loss or a gradient is not finite: nothing of it reaches the weights.

The step is skipped on all ranks together and leaves no trace in the method's buffers (BatchNorm's
statistics, the thresholds' window). Three in a row: the unlabeled images count half. Six, or three
where there is nothing to lower: the last saved state comes back. Nine: the run stops and says why.
It knows a method by its contract, and files not at all.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import distributed
from torch.amp import GradScaler

from dsl.errors import UserError
from dsl.methods.base import Method
from dsl.types import Batch

PATIENCE = 3  # bad steps in a row before anything else is done about them
MAX_RESTORES = 3  # of a run
SHOWN_IMAGES = 4  # of a step, in the message; the log has all of them

_FINE, _OVERFLOW, _BAD = 0, 1, 2


@dataclass(frozen=True)
class Fault:
    """Why a step was skipped, and what else was done about it."""

    causes: tuple[str, ...]  # losses that were not finite; "gradient" where all of them were
    images: tuple[str, ...]  # of the step, over all ranks
    action: str = ""

    def __str__(self) -> str:
        shown = ", ".join(self.images[:SHOWN_IMAGES]).encode("utf-8", "backslashreplace").decode()
        more = f" and {len(self.images) - SHOWN_IMAGES} more" if self.images[SHOWN_IMAGES:] else ""
        what = f"{', '.join(self.causes)} not finite, with the images {shown}{more}"
        return f"{what}; {self.action}" if self.action else what


class Guard:
    """Judges every step before it is taken. What it counts is saved with the run."""

    def __init__(
        self, fabric: Fabric, method: Method, *, restore: Callable[[], None],
        saved: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`restore` loads the last saved weights and optimizer; `saved` is an earlier `state()`."""
        self._fabric, self._method, self._restore = fabric, method, restore
        self._scaler: GradScaler | None = getattr(fabric.strategy.precision, "scaler", None)
        of_teacher = {id(buffer) for buffer in method.teacher.buffers()}  # no forward changes it
        self._buffers = [b for b in method.buffers() if id(b) not in of_teacher]
        self._kept = [buffer.clone() for buffer in self._buffers]
        counts = saved or {}
        self.skipped = int(counts.get("skipped", 0))
        self._in_row, self._restored = int(counts.get("row", 0)), int(counts.get("restored", 0))

    def state(self) -> dict[str, int]:
        return {"skipped": self.skipped, "row": self._in_row, "restored": self._restored}

    @torch.no_grad()
    def remember(self) -> None:
        """Called before each step: what its forward passes are about to change."""
        torch._foreach_copy_(self._kept, self._buffers)

    @torch.no_grad()
    def undo(self) -> None:
        """As if the forward passes since `remember` had not been."""
        torch._foreach_copy_(self._buffers, self._kept)

    def check(
        self, losses: Mapping[str, float], grad_norm: float, parts: Sequence[Batch]
    ) -> Fault | None:
        """None: take the step. All ranks come to the same result."""
        causes = [name for name, value in losses.items() if not math.isfinite(value)]
        if not causes and not math.isfinite(grad_norm):
            causes = ["gradient"]
        verdict = self._agreed(self._verdict(causes))
        if verdict == _FINE:
            self._in_row = 0
            return None
        self.undo()
        self.skipped += 1
        if self._scaler is not None:
            self._scaler.update()
        fault = self._gathered(Fault(tuple(causes), sum((part.names for part in parts), ())))
        if verdict == _OVERFLOW:
            return Fault(fault.causes, fault.images, "lowered the scale of fp16")
        self._in_row += 1
        return Fault(fault.causes, fault.images, self._act(fault))

    def _verdict(self, causes: Sequence[str]) -> int:
        if not causes:
            return _FINE
        # fp16 finds its loss scale by overflowing now and then; below 1 it is no such search.
        searching = self._scaler is not None and self._scaler.get_scale() >= 1
        return _OVERFLOW if searching and list(causes) == ["gradient"] else _BAD

    def _act(self, fault: Fault) -> str:
        """What is done beside skipping."""
        if self._in_row % PATIENCE:
            return ""
        if self._in_row == PATIENCE and (eased := self._method.ease()):
            return eased
        if self._in_row >= 3 * PATIENCE or self._restored >= MAX_RESTORES:
            raise UserError(
                f"training diverged, {self._in_row} steps in a row: {fault}; the last good state "
                "is in last.pt. Lower optim.lr, or look at these images"
            )
        self._restore()
        self._restored += 1
        eased = self._method.ease()  # what was saved is from before it was lowered
        return "went back to the last saved weights" + (f", {eased}" if eased else "")

    def _agreed(self, verdict: int) -> int:
        if self._fabric.world_size == 1:
            return verdict
        worst = torch.tensor(float(verdict), device=self._fabric.device)
        distributed.all_reduce(worst, op=distributed.ReduceOp.MAX)
        return int(worst)

    def _gathered(self, own: Fault) -> Fault:
        if self._fabric.world_size == 1:
            return own
        found: list[Any] = [None] * self._fabric.world_size
        distributed.all_gather_object(found, own)
        causes = dict.fromkeys(cause for fault in found for cause in fault.causes)
        return Fault(tuple(causes), tuple(name for fault in found for name in fault.images))
