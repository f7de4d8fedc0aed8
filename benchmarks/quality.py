"""How good is it: how much of the gap between few and all labels do unlabeled images close?

Gap closure = (DSL - supervised 10 %) / (supervised 100 % - supervised 10 %), on the test split. All
arms share backbone, augmentation of the labeled images and number of optimizer steps; the averaged
weights of the last step are measured, nothing is selected by score. Seeds vary the fold and the
initialisation. `--part closure` (default), `order` (paired comparisons of the paper's ablations),
`ablations` (every other row, one seed), or `bccd`, `animals` (photos, where ../shared is present).
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.bars import Bar, finish, parser
from dsl.bench.cells import Arm, Cell, Dataset, Runner
from dsl.bench.jobs import train_apart
from dsl.bench.run import digit_scenes, table_of
from dsl.bench.summary import summarise
from dsl.config import shipped_recipes

ROOT = Path(__file__).parents[1]
# As `dsl bench benchmarks/results` has them, so that it makes its tables from the same cells.
RESULTS = ROOT / "benchmarks" / "results" / "cells"
WORK = ROOT / "benchmarks" / "results" / "work"
SHARED = ROOT.parent / "shared" / "data"


def dataset_of(part: str) -> Dataset:
    if part == "bccd":
        return Dataset("bccd", "bccd", SHARED / "bccd")
    if part == "animals":
        return Dataset("coco_animals10_256", "animals", SHARED / "coco_animals10_256")
    return Dataset("digits", "digits", digit_scenes(WORK))


ALL = Arm("supervised", "supervised", percent=100)
FEW = Arm("supervised", "supervised", percent=10)
FULL = Arm("dsl")
ROWS = [r.removeprefix("ablations/") for r in shipped_recipes() if r.startswith("ablations/")]
ARMS = {name: Arm(name, row=f"ablations/{name}") for name in ROWS} | {"dsl": FULL}
# (better, worse): the difference must be positive in every seed.
ORDER = [
    ("dsl", "single-1"),
    ("dsl", "single-2"),
    ("dsl", "single-3"),
    ("teacher-ema", "teacher-none"),
    ("dsl", "component-af"),
]
Trained = Callable[[Arm, int], Cell]


def closure_bars(
    trained: Trained, seeds: int, *, closure: float, few: float = 0, full: float = 0
) -> list[Bar]:
    """The gap, and the conditions without which it says nothing."""
    cells = [trained(arm, seed) for seed in range(seeds) for arm in (ALL, FEW, FULL)]
    everything, few_labels, taught = summarise(cells)
    gains = [t.test_ap - f.test_ap for t, f in zip(taught.cells, few_labels.cells, strict=True)]
    return [
        Bar("supervised, all labels: AP", everything.mean, full),
        Bar("supervised, 10 %: AP", few_labels.mean, few),
        Bar("DSL, 10 %: AP", taught.mean, 0),
        Bar("gap closure, mean of seeds", taught.closure or 0.0, closure),
        Bar("least gain of a seed, AP", min(gains), 0),
    ]


def order_bars(trained: Trained, seeds: int) -> list[Bar]:
    """Paired differences."""
    bars = []
    for better, worse in ORDER:
        pairs = [
            trained(ARMS[better], seed).test_ap - trained(ARMS[worse], seed).test_ap
            for seed in range(seeds)
        ]
        bars.append(Bar(f"{better} - {worse}: least difference", min(pairs), 0.0))
    return bars


def wanted_of(part: str, seeds: int) -> list[tuple[Arm, int]]:
    """The cells of a part, in the order in which they are trained."""
    if part == "ablations":
        return [(arm, 0) for arm in ARMS.values()]
    arms = [ALL, FEW, FULL]
    if part == "order":
        arms = [ARMS[name] for name in dict.fromkeys(name for pair in ORDER for name in pair)]
    return [(arm, seed) for seed in range(seeds) for arm in arms]


def bars_of(part: str, trained: Trained, seeds: int, *, seen: Sequence[Cell]) -> list[Bar]:
    """`seen`: what `trained` has given so far."""
    if part == "order":
        return order_bars(trained, seeds)
    if part == "ablations":
        return [Bar(f"{name}: AP", trained(arm, 0).test_ap, 0) for name, arm in ARMS.items()]
    if part == "bccd":
        return closure_bars(trained, seeds, closure=0.5)
    if part == "animals":
        bars = closure_bars(trained, seeds, closure=0.3)
        return [*bars[:-1], Bar("least gain of a seed, AP", bars[-1].value, 2.0)]
    bars = closure_bars(trained, seeds, closure=0.75, few=32, full=85)
    longest = max(c.seconds for c in seen if c.arm == "supervised") / 60
    return [*bars, Bar("longest supervised training", longest, 8, at_least=False, unit=" min")]


def main() -> None:
    options = parser(__doc__ or "")
    parts = ("closure", "order", "ablations", "bccd", "animals")
    options.add_argument("--part", choices=parts, default="closure")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--steps", type=int, default=None, help="other than the recipe's: a trial")
    options.add_argument("--jobs", type=int, default=1, help="cells at once, each on its cores")
    arguments = options.parse_args()
    console = Console(highlight=False, width=110)
    dataset = dataset_of(arguments.part)
    runner = Runner(RESULTS, WORK, arguments.steps)
    cells: list[Cell] = []

    def trained(arm: Arm, seed: int) -> Cell:
        cell = runner.cell(dataset, arm, seed, console=console)
        if cell not in cells:
            cells.append(cell)
        return cell

    if arguments.jobs != 1:
        wanted = [(dataset, *each) for each in wanted_of(arguments.part, arguments.seeds)]
        train_apart(runner, wanted, jobs=arguments.jobs, console=console)
    bars = bars_of(arguments.part, trained, arguments.seeds, seen=cells)
    console.print(table_of(summarise(cells)))
    finish("quality", bars, json_file=arguments.json, details={"cells": [asdict(c) for c in cells]})


if __name__ == "__main__":
    main()
