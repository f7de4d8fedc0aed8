"""How good is it: how much of the gap between few and all labels do unlabeled images close?

Gap closure = (DSL - supervised 10 %) / (supervised 100 % - supervised 10 %), on the test split. All
arms share backbone, augmentation of the labeled images and number of optimizer steps; the averaged
weights of the last step are measured, nothing is selected by score. Seeds vary the fold and the
initialisation. `--part closure` (default), `order` (paired comparisons of the paper's ablations),
`ablations` (every other row, one seed), or `bccd`, `animals` (photos, where ../shared is present).
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bars import Bar, finish, parser
from benchmarks.cells import ROOT, WORK, Arm, Dataset, cell
from dsl.config import shipped_recipes
from dsl.data.scenes import SceneOptions, write_scenes

SHARED = ROOT.parent / "shared" / "data"


def scenes() -> Path:
    """Digit scenes, drawn once. Not the default seed: that one was looked at while tuning."""
    folder = WORK / "scenes"
    if not folder.exists():
        write_scenes(folder, SceneOptions(seed=2022), train=1000, val=200, test=500)
    return folder


DIGITS = Dataset("digits", "digits", scenes, "val.json", "test.json")
BCCD = Dataset("bccd", "bccd", lambda: SHARED / "bccd", "val.json", "test.json")
ANIMALS = Dataset(
    "animals", "animals", lambda: SHARED / "coco_animals10_256", "val.json", "val.json"
)

ALL = Arm("supervised", "supervised", percent=100)
FEW = Arm("supervised", "supervised", percent=10)
FULL = Arm("dsl")
ROWS = [r.removeprefix("ablations/") for r in shipped_recipes() if r.startswith("ablations/")]
ARMS = {name: Arm(name, row=f"ablations/{name}") for name in ROWS if name != "full"} | {"dsl": FULL}
# (better, worse): the difference must be positive in every seed.
ORDER = [
    ("dsl", "single-1"),
    ("dsl", "single-2"),
    ("dsl", "single-3"),
    ("teacher-ema", "teacher-none"),
    ("dsl", "component-af"),
]
Trained = Callable[[Arm, int], dict[str, Any]]


def closure_bars(
    trained: Trained, seeds: int, *, closure: float, few: float = 0, full: float = 0
) -> list[Bar]:
    """The gap, and the conditions without which it says nothing."""
    by_seed = [[trained(arm, s)["test_ap"] for arm in (ALL, FEW, FULL)] for s in range(seeds)]
    everything, few_labels, taught = (list(column) for column in zip(*by_seed, strict=True))
    shares = [(d - f) / (a - f) for a, f, d in by_seed]
    gains = [d - f for _, f, d in by_seed]
    return [
        Bar("supervised, all labels: AP", statistics.mean(everything), full),
        Bar("supervised, 10 %: AP", statistics.mean(few_labels), few),
        Bar("DSL, 10 %: AP", statistics.mean(taught), 0),
        Bar("gap closure, mean of seeds", statistics.mean(shares), closure),
        Bar("least gain of a seed, AP", min(gains), 0),
    ]


def order_bars(trained: Trained, seeds: int) -> list[Bar]:
    """Paired differences."""
    bars = []
    for better, worse in ORDER:
        pairs = [
            trained(ARMS[better], seed)["test_ap"] - trained(ARMS[worse], seed)["test_ap"]
            for seed in range(seeds)
        ]
        bars.append(Bar(f"{better} - {worse}: least difference", min(pairs), 0.0))
    return bars


def print_rows(cells: list[dict[str, Any]], console: Console) -> None:
    """Every cell that this run looked at."""
    table = Table("arm", "labels", "seed", "AP", "AP50", "fg/img", "precision", "recall", "time")
    for c in cells:
        taught = c["teaching"] or {}
        shown = [taught.get(name) for name in ("foreground", "precision", "recall")]
        table.add_row(
            c["arm"], f"{c['percent']} %", str(c["seed"]), f"{c['test_ap']:.1f}",
            f"{c['test_ap50']:.1f}", *("-" if v is None else f"{v:.2f}" for v in shown),
            f"{c['seconds'] / 60:.1f} min",
        )  # fmt: skip
    console.print(table)


def main() -> None:
    options = parser(__doc__ or "")
    parts = ("closure", "order", "ablations", "bccd", "animals")
    options.add_argument("--part", choices=parts, default="closure")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--steps", type=int, default=None, help="other than the recipe's: a trial")
    arguments = options.parse_args()
    console = Console(highlight=False, width=110)
    dataset = {"bccd": BCCD, "animals": ANIMALS}.get(arguments.part, DIGITS)
    cells: dict[str, dict[str, Any]] = {}

    def trained(arm: Arm, seed: int) -> dict[str, Any]:
        result = cell(dataset, arm, seed, steps=arguments.steps, console=console)
        cells[f"{arm.name}-{arm.percent}-{seed}"] = result
        return result

    seeds = arguments.seeds
    if arguments.part == "closure":
        bars = closure_bars(trained, seeds, closure=0.75, few=32, full=85)
        longest = max(c["seconds"] for c in cells.values() if c["arm"] == "supervised") / 60
        bars.append(Bar("longest supervised training", longest, 8, at_least=False, unit=" min"))
    elif arguments.part == "order":
        bars = order_bars(trained, seeds)
    elif arguments.part == "ablations":
        bars = [Bar(f"{name}: AP", trained(arm, 0)["test_ap"], 0) for name, arm in ARMS.items()]
    elif arguments.part == "bccd":
        bars = closure_bars(trained, seeds, closure=0.5)
    else:
        bars = closure_bars(trained, seeds, closure=0.3)
        bars[-1] = Bar("least gain of a seed, AP", bars[-1].value, 2.0)
    print_rows(list(cells.values()), console)
    finish("quality", bars, json_file=arguments.json, details={"cells": list(cells.values())})


if __name__ == "__main__":
    main()
