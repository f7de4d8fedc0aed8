"""A comparison to read: Markdown and a plot. It sees summary rows only."""

import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from dsl.bench.summary import PAPER, PAPER_ALL, Row, paper_ablation, paper_closure
from dsl.errors import UserError

COLUMNS = (
    "method", "labels", "AP", "by seed", "AP50", "gap closure", "paper, COCO", "precision",
    "recall", "time",
)  # fmt: skip


def markdown(rows: Sequence[Row], *, command: str) -> str:
    """One table per data set, with the command that made it."""
    parts = [f"    {command}\n"]
    for data in dict.fromkeys(row.data for row in rows):
        mine = [row for row in rows if row.data == data]
        steps = sorted({cell.steps for row in mine for cell in row.cells})
        parts.append(
            f"**{data}**, {' or '.join(f'{n:,}' for n in steps)} optimizer steps in every arm, "
            "averaged weights of the last step:\n"
        )
        head = [_joined(COLUMNS), "|---" * len(COLUMNS) + "|"]
        parts.append("\n".join([*head, *map(_line, mine)]) + "\n")
    return "\n".join(parts)


def _line(row: Row) -> str:
    ap50 = sum(cell.test_ap50 for cell in row.cells) / len(row.cells)
    columns = [
        row.arm, f"{row.percent:g} %", row.shown,
        ", ".join(f"{cell.test_ap:.1f}" for cell in row.cells), f"{ap50:.1f}",
        _number(row.closure), _paper(row), _number(row.taught("precision")),
        _number(row.taught("recall")), f"{row.minutes:.1f} min",
    ]  # fmt: skip
    return _joined(columns)


def _joined(columns: Sequence[str]) -> str:
    return f"| {' | '.join(columns)} |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _paper(row: Row) -> str:
    """What the paper has at this share, where the row is one of its."""
    if row.arm == "supervised" and row.percent == 100:
        return f"{PAPER_ALL:.1f}"
    if row.arm not in ("supervised", "dsl"):
        return (paper_ablation(row.arm) or "") if row.percent == 10 else ""
    if row.percent not in PAPER:
        return ""
    figure = PAPER[row.percent][row.arm == "dsl"]
    closure = paper_closure(row.percent)
    return f"{figure:.1f}" + (f" ({closure:.2f})" if row.arm == "dsl" else "")


def plot(rows: Sequence[Row], file: Path) -> None:
    """AP against the share of labels, a line per method, bars for the spread over seeds."""
    names = list(dict.fromkeys(row.data for row in rows))
    figure, axes = pyplot.subplots(1, len(names), figsize=(5 * len(names), 4), squeeze=False)
    for axis, data in zip(axes[0], names, strict=True):
        mine = [row for row in rows if row.data == data]
        for arm in dict.fromkeys(row.arm for row in mine):
            line = sorted((r for r in mine if r.arm == arm), key=lambda row: row.percent)
            axis.errorbar(
                [row.percent for row in line], [row.mean for row in line],
                yerr=[row.spread for row in line], marker="o", capsize=3, label=arm,
            )  # fmt: skip
        shares = sorted({row.percent for row in mine})
        axis.set(title=data, xlabel="labeled images, %", ylabel="test AP", xscale="log")
        axis.set_xticks(shares, [f"{share:g}" for share in shares])
        axis.minorticks_off()
        axis.legend()
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def put_into(page: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- bench NAME -->` and `<!-- end -->` in a page."""
    content = page.read_text()
    pattern = re.compile(rf"(<!-- bench {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(content):
        raise UserError(f"{page}: no '<!-- bench {name} -->' ... '<!-- end -->' to write between")
    page.write_text(pattern.sub(lambda match: match[1] + text + match[2], content))
