"""What does a semi-supervised step cost: n labeled + n unlabeled images against n labeled ones.

Student 3 units (forward 1, backward 2), teacher 1, student on the strong view 3, on the half-size
view 0.75: 7.75 against 3, so 2.58 at best. The teacher is random; its bars are set to its scores
so that FOREGROUND boxes an image are taught and as many again as IGNORED are not, as with a trained
one. MetaNet is on, with the crops of the presets for images of this size. Times: best of several,
interleaved.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.bars import Bar, finish, parser
from dsl.compose import build_detector, build_method
from dsl.config import load_config
from dsl.data.loader import collate_pairs, collate_samples
from dsl.data.views import Pair, Sample, Shuffle
from dsl.engine.memory import keep_freed_memory
from dsl.engine.optim import build_optimizer
from dsl.geometry import move_image
from dsl.methods import dsl as dsl_method
from dsl.methods.base import Method
from dsl.methods.dsl import DSL
from dsl.models.decode import Decoder
from dsl.ssod.adaptive_filter import AdaptiveThreshold, Curve
from dsl.types import Batch, Targets

CLASSES = 20
FOREGROUND, IGNORED = 6, 10  # boxes of an image: COCO has 7
SIZES = {"resnet18": (4, 256), "resnet50": (2, 256)}  # n images, side


def make_method(backbone: str, method: str) -> Method:
    """One preset for both sides; a seed, so that both start from the same weights."""
    settings = {
        "method": method, "model.backbone": backbone, "model.weights": "none",
        "model.aggregation": "off", "teaching.burn_in": 0.0, "teaching.metanet_bar": -1.0,
        "teaching.metanet_crop": 64, "optim.keep_rate": 0.9999,
        "teaching.one_class": False,  # a random teacher's boxes lie on each other: all would go
    }  # fmt: skip
    config = load_config("large", settings)
    torch.manual_seed(0)
    detector = build_detector(config, CLASSES)
    built = build_method(config, detector).to(memory_format=torch.channels_last).train()
    if isinstance(built, DSL):
        built.advance(1.0)
        # Scores of a random head are all alike: spread them, so that bars can lie between them.
        head: Any = built.teacher.get_submodule("head.class_logits")
        nn.init.normal_(head.weight, std=0.4)
    return built


def make_batch(count: int, side: int, *, unlabeled: bool) -> Batch:
    random = np.random.default_rng(0)
    images = [
        torch.from_numpy(random.integers(0, 255, (3, side, side), np.uint8)) for _ in range(count)
    ]
    samples = [Sample(image, _targets(random, side)) for image in images]
    pairs = []
    for image in images:
        moves = tuple(Shuffle(2).draw((side, side), random))
        pairs.append(Pair(image, move_image(image, moves), moves, None))
    return Batch(collate_samples(samples), collate_pairs(pairs) if unlabeled else None)


def _targets(random: np.random.Generator, side: int, count: int = 7) -> Targets:
    corners = torch.from_numpy(random.uniform(0, side * 0.6, (count, 2))).float()
    sizes = torch.from_numpy(random.uniform(side * 0.1, side * 0.4, (count, 2))).float()
    labels = torch.from_numpy(random.integers(0, CLASSES, count))
    return Targets(
        torch.cat([corners, corners + sizes], 1), labels, torch.zeros(count, dtype=torch.bool)
    )


class Side:
    """A method, its optimizer and its batch."""

    def __init__(self, backbone: str, method: str) -> None:
        count, side = SIZES[backbone]
        self.method = make_method(backbone, method)
        self.batch = make_batch(count, side, unlabeled=method == "dsl")
        self.optimizer = build_optimizer(
            self.method.student, "sgd", lr=1e-6, weight_decay=1e-4, momentum=0.9, bias_lr_factor=2
        )
        self.steps = 1_000_000  # late in a run: the average moves slowly, and the bars stay right
        if isinstance(self.method, DSL):
            self._set_bars(self.method)

    def _set_bars(self, method: DSL) -> None:
        """Between the scores that this teacher gives to this batch."""
        weak = self.batch.unlabeled.weak  # type: ignore[union-attr]
        with torch.no_grad():
            found = method.decoder(method.teacher(weak), weak.sizes)
        scores = torch.cat([d.scores for d in found]).sort(descending=True).values
        taught, seen = len(found) * FOREGROUND, len(found) * (FOREGROUND + IGNORED)
        bar = float(scores[taught])
        method.policy = AdaptiveThreshold(
            CLASSES, background=float(scores[seen]), curve=Curve(low=bar, high=bar)
        )
        method.policy.observe(torch.ones(1, 2, CLASSES))  # every class was seen: all get the bar

    def step(self) -> None:
        self.method(self.batch)["loss"].backward()
        nn.utils.clip_grad_norm_(self.method.student.parameters(), 35)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1
        self.method.after_step(self.steps)

    def saved_bytes(self) -> int:
        """Distinct storages that the backward pass keeps, weights apart."""
        weights = {p.untyped_storage().data_ptr() for p in self.method.parameters()}
        seen: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                seen[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)  # so that no address is used twice
            return tensor

        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            losses = self.method(self.batch)
        del losses
        return sum(seen.values())


@contextmanager
def stopwatch(owner: Any, names: list[str]) -> Iterator[list[float]]:
    """Adds up the time inside these functions of a module or class."""
    spent, originals = [0.0], {name: getattr(owner, name) for name in names}

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            result = function(*args, **options)
            spent[0] += time.perf_counter() - began
            return result

        return call

    for name, function in originals.items():
        setattr(owner, name, timed(function))
    try:
        yield spent
    finally:
        for name, function in originals.items():
            setattr(owner, name, function)


def best_times(sides: list[Side], repeats: int) -> list[float]:
    best = [float("inf")] * len(sides)
    for _ in range(repeats):
        for number, side in enumerate(sides):
            began = time.perf_counter()
            side.step()
            best[number] = min(best[number], time.perf_counter() - began)
    return best


def overhead(side: Side, repeats: int) -> float:
    """Share of a step spent on decoding, filtering, carrying boxes and averaging weights."""
    shares = []
    for _ in range(repeats):
        began = time.perf_counter()
        with (
            stopwatch(Decoder, ["__call__"]) as decoding,
            stopwatch(dsl_method, ["_carried", "_halved", "update_teacher"]) as geometry,
            stopwatch(DSL, ["_observe"]) as watching,
        ):
            side.step()
        spent = decoding[0] + geometry[0] + watching[0]
        shares.append(spent / (time.perf_counter() - began))
    return min(shares)


def peak_growth(backbone: str, method: str) -> float:
    """Megabytes that a step needs above what it started with, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.step_cost", "--growth", backbone, method]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _print_growth(backbone: str, method: str) -> None:
    side = Side(backbone, method)
    for group in side.optimizer.param_groups:  # momentum is there before the first step, not in it
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    side.optimizer.step()
    before = _status("VmRSS")
    side.step()
    print(max(_status("VmHWM") - before, 1) / 1024)


def _status(field: str) -> int:
    """Kilobytes, from the kernel."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field))


def measure(backbone: str, repeats: int) -> list[Bar]:
    plain, taught = Side(backbone, "supervised"), Side(backbone, "dsl")
    saved = taught.saved_bytes() / plain.saved_bytes()
    times = best_times([plain, taught], repeats)
    growth = peak_growth(backbone, "dsl") / peak_growth(backbone, "supervised")
    found = taught.method.pseudo_label(taught.batch.unlabeled.weak)  # type: ignore[operator]
    print(
        f"{backbone}: supervised {times[0]:.2f} s, DSL {times[1]:.2f} s; pseudo-labels per image: "
        f"{sum(int(f.foreground.sum()) for f in found) / len(found):.0f} foreground, "
        f"{sum(int(f.ignored.sum()) for f in found) / len(found):.0f} ignored"
    )
    return [
        Bar(f"{backbone}: time of a step, ratio", times[1] / times[0], 2.8, at_least=False),
        Bar(
            f"{backbone}: filter, geometry, EMA", 100 * overhead(taught, repeats), 6,
            at_least=False, unit=" %",
        ),
        Bar(f"{backbone}: bytes saved for backward, ratio", saved, 2.3, at_least=False),
        Bar(f"{backbone}: growth of peak memory, ratio", growth, 2.6, at_least=False),
    ]  # fmt: skip


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--repeats", type=int, default=4)
    options.add_argument("--growth", nargs=2, metavar=("BACKBONE", "METHOD"), help="used by itself")
    arguments = options.parse_args()
    if arguments.growth:
        _print_growth(*arguments.growth)
        return
    keep_freed_memory()
    bars = [bar for backbone in SIZES for bar in measure(backbone, arguments.repeats)]
    finish("step_cost", bars, json_file=arguments.json)


if __name__ == "__main__":
    main()
