"""About how much memory and time a run takes on its device, from one small probe.

Memory by formula: what the optimizer holds for each parameter, and what autograd keeps for each
pixel, counted in the probe. Time: one forward of the probe, scaled to the pixels of a step.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsl.compose import build_detector, find_device
from dsl.doctor.case import Case
from dsl.doctor.finding import Finding
from dsl.doctor.images import sizes_of
from dsl.models.fcos import FCOS

PROBE = 128  # pixels of the probe's sides
REPEATS = 3
BACKWARD = 2.0  # forwards that a backward costs
MAX_MEMORY = 0.9  # share of what is free
MAX_DAYS = 3.0
_FLOAT = 4  # bytes
_GB = 1024**3


@dataclass(frozen=True)
class Probe:
    """One image of PROBE x PROBE pixels through the detector."""

    parameters: int
    kept: int  # bytes that autograd holds for the backward pass
    seconds: float  # of a forward without gradients


@dataclass(frozen=True)
class Work:
    """Images of one step, in units of the full view."""

    trained: float  # with gradients
    looked_at: float  # by the teacher


def check_cost(case: Case) -> Iterator[Finding]:
    """Warns where the estimate exceeds the free memory or some days; it is never an error."""
    name, optim, run = "cost", case.config.optim, case.config.run
    device = find_device(run.device)
    probe = measure(build_detector(case.config, len(case.labeled.classes), restored=True), device)
    work, share = work_of(case), pixels_of(case) / PROBE**2
    images = optim.batch / (optim.accumulate * run.devices * run.nodes)
    held = probe.parameters * _FLOAT * (5 if optim.optimizer == "adamw" else 4)
    memory = held + probe.kept * share * images * work.trained
    step = probe.seconds * share * images * optim.accumulate
    step *= (1 + BACKWARD) * work.trained + work.looked_at
    free, steps = free_memory(device), case.length.steps
    days = 0.0 if steps is None else steps * step / 86400
    rounded = float(f"{step:.2g}")  # two digits, but 260 and not 2.6e+02
    told = f"about {memory / _GB:.1f} of {free / _GB:.1f} GB of free memory, {rounded:g} s a step"
    told += f" on {device.type} in fp32, as busy as it is now"
    if steps is not None:
        told += f", {_duration(steps * step)} in all"
    if memory > MAX_MEMORY * free:
        fix = f"--set optim.accumulate={2 * optim.accumulate}, or a smaller preset"
        yield Finding("warning", name, told, fix)
    elif days > MAX_DAYS:
        fix = "a GPU (--device), a smaller preset, or fewer --steps"
        yield Finding("warning", name, told, fix)
    else:
        yield Finding("ok", name, told)


def measure(detector: FCOS, device: torch.device) -> Probe:
    """Kept bytes from a forward with gradients, seconds from the best of a few without."""
    detector = detector.to(device).to(memory_format=torch.channels_last)
    image = torch.zeros(1, 3, PROBE, PROBE, device=device)
    image = image.to(memory_format=torch.channels_last)
    weights = {p.data_ptr() for p in detector.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Any:
        if tensor.data_ptr() not in weights:
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = detector.train().dense(image)
    del output
    seconds = float("inf")
    with torch.inference_mode():
        for _ in range(REPEATS):
            began = time.perf_counter()
            # Reading a value waits for the device.
            float(detector.eval().dense(image).class_logits[-1].sum())
            seconds = min(seconds, time.perf_counter() - began)
    return Probe(sum(p.numel() for p in detector.parameters()), sum(kept.values()), seconds)


def work_of(case: Case) -> Work:
    """The views of `methods/dsl.py`: the teacher looks at the weak one, the others are learned."""
    if not case.teaches:
        return Work(1.0, 0.0)
    teaching = case.config.teaching
    half = 0.25 if teaching.half_view or teaching.scale_weight else 0.0
    return Work(2.0 + half, 1.0)


def pixels_of(case: Case) -> float:
    """Pixels of a typical image at the input of the detector."""
    views, sizes = case.config.views, sizes_of(case.labeled)
    short_side = float(np.mean(views.short_sides))
    aspects = sizes.max(axis=1) / sizes.min(axis=1) if len(sizes) else np.ones(1)
    long = np.minimum(short_side * aspects, views.max_side)
    return float(np.mean(long * long / aspects))


def free_memory(device: torch.device) -> float:
    """Bytes that this process may still take, as far as the system tells."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as lines:
            return next(1024.0 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable"))
    except (OSError, StopIteration):  # not Linux: all that the machine has
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"
