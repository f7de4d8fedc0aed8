"""From cells to a comparison: mean and spread over seeds, gap closure, the paper's figures beside.

Gap closure = (method - supervised at its share) / (supervised at 100 % - supervised at its share),
seed by seed. It sees finished cells only, and trains nothing.
"""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dsl.bench.cells import Cell
from dsl.config import RECIPES

BASELINE = "supervised"
# COCO mAP of the paper's Table 1: supervised and DSL at each share of the labels, and all labels.
PAPER = {1.0: (9.53, 22.03), 2.0: (11.71, 25.19), 5.0: (18.74, 30.87), 10.0: (23.70, 36.22)}
PAPER_ALL = 40.2


@dataclass(frozen=True)
class Row:
    """One method on one share of the labels of one data set, over its seeds."""

    data: str
    arm: str
    percent: float
    cells: tuple[Cell, ...]
    closures: tuple[float, ...]  # of the seeds that have both ends of the gap

    @property
    def mean(self) -> float:
        return statistics.mean(cell.test_ap for cell in self.cells)

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds; 0 of a single one."""
        return statistics.stdev(c.test_ap for c in self.cells) if len(self.cells) > 1 else 0.0

    @property
    def shown(self) -> str:
        """The mean, with its spread where there is one."""
        return f"{self.mean:.1f}" + (f" ± {self.spread:.1f}" if len(self.cells) > 1 else "")

    @property
    def closure(self) -> float | None:
        return statistics.mean(self.closures) if self.closures else None

    def taught(self, name: str) -> float | None:
        """Mean of a figure of the pseudo-labels."""
        values = [value for cell in self.cells if (value := cell.taught(name)) is not None]
        return statistics.mean(values) if values else None

    @property
    def minutes(self) -> float:
        return statistics.mean(cell.seconds for cell in self.cells) / 60


def summarise(cells: Sequence[Cell]) -> list[Row]:
    """One row per data set, method and share, in the order in which they first come."""
    groups: dict[tuple[str, str, float], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.data, cell.arm, cell.percent), []).append(cell)
    baseline = {(c.data, c.percent, c.seed): c.test_ap for c in cells if c.arm == BASELINE}
    rows = []
    for (data, arm, percent), members in groups.items():
        closures = [] if arm == BASELINE else [_closure(cell, baseline) for cell in members]
        known = tuple(value for value in closures if value is not None)
        rows.append(Row(data, arm, percent, tuple(members), known))
    return rows


def paper_closure(percent: float) -> float | None:
    """The paper's own gap closure on COCO at this share of the labels."""
    if percent not in PAPER:
        return None
    few, taught = PAPER[percent]
    return (taught - few) / (PAPER_ALL - few)


def paper_ablation(arm: str) -> str | None:
    """What the paper has for a row of its ablations (COCO 10 %), as the recipe's comment says."""
    recipe = RECIPES / "ablations" / f"{arm}.toml"
    if not recipe.is_file():
        return None
    found = re.search(r"Paper: ([\d.]+|diverges)", recipe.read_text())
    return found and found[1]


def _closure(cell: Cell, baseline: dict[tuple[str, float, int], float]) -> float | None:
    few = baseline.get((cell.data, cell.percent, cell.seed))
    everything = baseline.get((cell.data, 100, cell.seed))
    if few is None or everything is None or everything == few:
        return None
    return (cell.test_ap - few) / (everything - few)
