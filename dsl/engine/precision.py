"""Which arithmetic to train in, and how Fabric is told.

Our own plugins, because Fabric's round every float *input* to the low precision: boxes are inputs
here, and bfloat16 moves the corner (301, 215) to (302, 215).
"""

import timeit
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, cast

import torch
from lightning_fabric.plugins import MixedPrecision, Precision
from torch import Tensor, nn

Choice = Literal["auto", "bf16-mixed", "fp16-mixed", "fp32"]


class _FullPrecision(Precision):
    def convert_input(self, data: Any) -> Any:
        return data


class _AutocastPrecision(MixedPrecision):
    def convert_input(self, data: Any) -> Any:
        return data


def choose_precision(choice: Choice, device: str) -> tuple[Choice, str | None]:
    """The precision to use on this kind of device, and a line for the user where it was changed."""
    if choice == "auto":
        return _best(device), None
    if choice == "bf16-mixed" and not _has_bf16(device):
        return "fp32", f"bfloat16 gains nothing on this {device}: training in fp32"
    if choice == "fp16-mixed" and device == "cpu":
        best = _best(device)
        return best, f"fp16-mixed needs a GPU: training in {best}"
    return choice, None


def _best(device: str) -> Choice:
    if device == "mps":
        return "fp32"
    if _has_bf16(device):
        return "bf16-mixed"
    return "fp16-mixed" if device == "cuda" else "fp32"


def _has_bf16(device: str) -> bool:
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device == "cpu" and _cpu_gains_from_bf16()


@cache
def _cpu_gains_from_bf16() -> bool:
    """Measured, not looked up: on some processors bfloat16 is 2-3 times faster, on others its
    emulation is several times slower, and no list of processor flags stays complete."""
    jobs = {dtype: _convolution(dtype) for dtype in (torch.float32, torch.bfloat16)}
    best = dict.fromkeys(jobs, float("inf"))
    with torch.inference_mode():
        # In turns, and the best of many: another process that takes the cores for a moment must
        # not decide for a whole training.
        for _ in range(20):
            for dtype, job in jobs.items():
                best[dtype] = min(best[dtype], timeit.timeit(job, number=2))
    return best[torch.bfloat16] < 0.9 * best[torch.float32]


def _convolution(dtype: torch.dtype) -> Callable[[], Tensor]:
    conv = nn.Conv2d(64, 64, 3, padding=1, dtype=dtype).to(memory_format=torch.channels_last)
    image = torch.zeros(1, 64, 40, 40, dtype=dtype).to(memory_format=torch.channels_last)
    return lambda: cast(Tensor, conv(image))


def make_plugin(precision: Choice, device: str) -> Precision:
    if precision == "fp32":
        return _FullPrecision()
    return _AutocastPrecision("bf16-mixed" if precision == "bf16-mixed" else "16-mixed", device)
