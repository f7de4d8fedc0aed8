"""`dsl bench`: plan the cells, train those that are missing, write the comparison down."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dsl.bench.cells import Arm, Cell, Dataset, Runner
from dsl.bench.jobs import train_apart
from dsl.bench.pages import markdown, plot, put_into
from dsl.bench.summary import BASELINE, Row, summarise
from dsl.config import shipped_recipes
from dsl.data import scenes
from dsl.data.scenes import SceneOptions
from dsl.errors import UserError

DIGITS = "digits"
SEED = 1116  # of the scenes that are reported on; others were looked at while tuning
QUICK_STEPS = 20


@dataclass(frozen=True)
class Plan:
    """What is compared."""

    datasets: tuple[Dataset, ...]
    arms: tuple[Arm, ...]
    seeds: int
    steps: int | None = None


def plan_of(
    out: Path, *, data: Sequence[str], methods: Sequence[str], percents: Sequence[float],
    seeds: int, steps: int | None = None, quick: bool = False,
) -> Plan:  # fmt: skip
    """From names: "digits" or FOLDER[@RECIPE]; "supervised", "dsl" or an ablation's recipe."""
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: at least one")
    for percent in percents:
        if not 0 < percent <= 100:
            raise UserError(f"--percent {percent:g}: expected a share of the labels, up to 100")
    arms = [
        _arm(method, percent)
        for method in methods
        for percent in percents
        # With all labels nothing is left to learn without them.
        if percent < 100 or method == BASELINE
    ]
    if not arms:
        raise UserError("--percent 100: leaves nothing unlabeled; add a smaller share")
    datasets = tuple(_dataset(name, out, quick=quick) for name in data)
    if quick:
        seeds, steps = 1, QUICK_STEPS
    return Plan(datasets, tuple(arms), seeds, steps)


def run_bench(
    out: Path, plan: Plan, *, console: Console, command: str, into: str | None = None,
    jobs: int = 1,
) -> list[Row]:  # fmt: skip
    """Every cell of the plan, seed by seed; what is finished is written after each one, or with
    several `jobs` when all are. `into`: PAGE, or PAGE#TABLE where a page has several of a set."""
    runner = Runner(out / "cells", out / "work", plan.steps)
    wanted = [
        (dataset, arm, seed)
        for seed in range(plan.seeds)
        for dataset in plan.datasets
        for arm in plan.arms
    ]
    if jobs != 1:
        train_apart(runner, wanted, jobs=jobs, console=console)
    cells: list[Cell] = []
    for each in wanted:
        cells.append(runner.cell(*each, console=console))
        _write(out, cells, command)
    rows = summarise(cells)
    if into is not None:
        page, _, table = into.partition("#")
        for name in dict.fromkeys(row.data for row in rows):
            text = markdown([row for row in rows if row.data == name], command=command)
            put_into(Path(page), f"{name} {table}".strip(), text)
    return rows


def table_of(rows: Sequence[Row]) -> Table:
    """The comparison on a terminal."""
    table = Table("data", "method", "labels", "AP", "gap closure", "precision", "recall", "time")
    for row in rows:
        figures = (row.closure, row.taught("precision"), row.taught("recall"))
        table.add_row(
            row.data, row.arm, f"{row.percent:g} %", row.shown,
            *("-" if value is None else f"{value:.2f}" for value in figures),
            f"{row.minutes:.1f} min",
        )  # fmt: skip
    return table


def _write(out: Path, cells: Sequence[Cell], command: str) -> None:
    rows = summarise(cells)
    (out / "results.json").write_text(json.dumps([asdict(c) for c in cells], indent=2) + "\n")
    (out / "results.md").write_text(markdown(rows, command=command))
    plot(rows, out / "results.png")


def _arm(method: str, percent: float) -> Arm:
    if method in (BASELINE, "dsl"):
        return Arm(method, method, percent)
    row = f"ablations/{method}"
    if row not in shipped_recipes():
        known = [r.removeprefix("ablations/") for r in shipped_recipes() if "ablations/" in r]
        raise UserError(f"--method {method}: expected supervised, dsl or one of {', '.join(known)}")
    return Arm(method, "dsl", percent, row)


def _dataset(name: str, out: Path, *, quick: bool) -> Dataset:
    if name == DIGITS:
        return Dataset(DIGITS, DIGITS, digit_scenes(out / "work", quick=quick))
    folder, _, recipe = name.partition("@")
    return Dataset(Path(folder).resolve().name, recipe or "small", Path(folder))


def digit_scenes(work: Path, *, quick: bool = False) -> Path:
    """The embedded data set, drawn once; anew when the code that draws it has changed."""
    options = SceneOptions(seed=SEED)
    train, val, test = (60, 10, 10) if quick else (1000, 200, 500)
    drawn_by = [Path(scenes.__file__).read_text(), repr(options), train, val, test]
    folder = work / f"scenes-{hashlib.sha256(json.dumps(drawn_by).encode()).hexdigest()[:8]}"
    if not folder.exists():
        scenes.write_scenes(folder, options, train=train, val=val, test=test)
    return folder
