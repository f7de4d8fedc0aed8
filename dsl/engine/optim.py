"""Optimizers and learning-rate schedules. A schedule is a pure function of the run's progress, so
there is nothing to save and nothing to get out of step."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

WARMUP_START = 1 / 3


def build_optimizer(
    module: nn.Module, name: Literal["adamw", "sgd"], *, lr: float, weight_decay: float,
    momentum: float, bias_lr_factor: float, fused: bool = True,
    slow: Collection[str] = (), slow_factor: float = 1.0,
) -> Optimizer:  # fmt: skip
    """Weights decay; biases and normalisation do not. Biases may learn at another rate, and so may
    all parameters that `slow` names.

    Each group remembers its `base_lr`, which the schedule scales.
    """
    trained = {n: p for n, p in module.named_parameters() if p.requires_grad}
    parts = [({n: p for n, p in trained.items() if n not in slow}, lr)]
    if slow:
        parts.append(({n: p for n, p in trained.items() if n in slow}, lr * slow_factor))
    groups = []
    for part, rate in parts:
        weights, norms, biases = _kinds(part)
        groups += [
            {"params": weights, "lr": rate, "weight_decay": weight_decay},
            {"params": norms, "lr": rate, "weight_decay": 0.0},
            {"params": biases, "lr": rate * bias_lr_factor, "weight_decay": 0.0},
        ]
    optimizer: Optimizer
    if name == "adamw":
        optimizer = AdamW(groups, lr=lr, fused=fused)
    else:
        optimizer = SGD(groups, lr=lr, momentum=momentum, fused=fused)
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    return optimizer


def _kinds(parameters: Mapping[str, Parameter]) -> tuple[list[Parameter], ...]:
    """Weights, what scales a normalisation, and biases."""
    weights, norms, biases = [], [], []
    for name, parameter in parameters.items():
        if parameter.ndim > 1:
            weights.append(parameter)
        elif name.endswith("bias"):
            biases.append(parameter)
        else:
            norms.append(parameter)
    return weights, norms, biases


@dataclass(frozen=True)
class Schedule:
    """Factor of the base learning rate at any moment of a run."""

    kind: Literal["onecycle", "cosine", "steps"]
    milestones: tuple[float, ...] = ()  # kind "steps": shares of the run
    warmup_steps: int = 0
    rise: float = 0.1  # kind "onecycle": share of the run that climbs
    restart: float = 0.0  # share of the run after which the decay begins anew; 0: never

    def __call__(self, progress: float, step: int) -> float:
        """`progress` is the share of the run that is done, `step` the steps done."""
        return self._decay(self._part(progress)) * self._warmup(progress, step)

    def _part(self, progress: float) -> float:
        """The share that is done of the part before the restart, or of the one after it."""
        if progress < self.restart:
            return progress / self.restart
        return (progress - self.restart) / (1 - self.restart)

    def _decay(self, progress: float) -> float:
        if self.kind == "steps":
            return 0.1 ** sum(progress >= milestone for milestone in self.milestones)
        if self.kind == "cosine":
            return _cosine(progress)
        if progress < self.rise:
            return 0.04 + 0.96 * (1 - _cosine(progress / self.rise))
        return _cosine((progress - self.rise) / (1 - self.rise))

    def _warmup(self, progress: float, step: int) -> float:
        # Over at a tenth of the run at the latest: a short run must not spend itself on it.
        done = max(step / self.warmup_steps if self.warmup_steps else 1.0, progress / 0.1)
        return WARMUP_START + (1 - WARMUP_START) * min(1.0, done)


def _cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


def set_learning_rate(optimizer: Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
