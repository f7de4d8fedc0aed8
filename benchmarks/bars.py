"""What all benchmarks share: a table of values against bars, and the exit code."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Bar:
    """One measured value and what it must reach."""

    name: str
    value: float
    bar: float
    at_least: bool = True
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar


def parser(description: str) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    return options


def finish(
    name: str, bars: list[Bar], *, json_file: Path | None, details: Mapping[str, Any] | None = None
) -> None:
    """Print the table and the closing line; exit with 1 when a bar is missed."""
    table = Table("measured", "value", "bar", "", title=name)
    for bar in bars:
        sign = ">=" if bar.at_least else "<="
        verdict = "met" if bar.met else "SHORT"
        table.add_row(
            bar.name, f"{bar.value:.2f}{bar.unit}", f"{sign} {bar.bar:g}{bar.unit}", verdict
        )
    Console(width=110).print(table)
    met = sum(bar.met for bar in bars)
    if json_file is not None:
        rows = [{**vars(bar), "met": bar.met} for bar in bars]
        json_file.write_text(json.dumps({"bars": rows, "details": details or {}}, indent=2) + "\n")
    print(f"{name}: {met} of {len(bars)} bars met")
    sys.exit(0 if met == len(bars) else 1)
