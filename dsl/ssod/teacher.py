"""The teacher: an exponential moving average of the student (DSL, Eq. 8)."""

import copy

import torch
from torch import nn


def make_teacher(student: nn.Module) -> nn.Module:
    """An exact copy in eval mode that no optimizer touches."""
    teacher = copy.deepcopy(student).requires_grad_(False)
    return teacher.eval()


@torch.no_grad()
def update_teacher(teacher: nn.Module, student: nn.Module, *, keep_rate: float, step: int) -> None:
    """teacher <- keep * teacher + (1 - keep) * student, buffers too; `step` counts from 1.

    keep = min(keep_rate, 1 - 1 / (step + 1)) (epsilon), so that a young teacher follows closely.
    Frozen tensors are equal on both sides and stay so.
    """
    keep = min(keep_rate, 1 - 1 / (step + 1))
    of_student = [*student.parameters(), *student.buffers()]
    of_teacher = [*teacher.parameters(), *teacher.buffers()]
    floats, sources = [], []
    for target, source in zip(of_teacher, of_student, strict=True):
        if target.is_floating_point():
            floats.append(target)
            sources.append(source)
        else:
            target.copy_(source)  # counters of batches: nothing to average
    torch._foreach_lerp_(floats, sources, 1 - keep)
