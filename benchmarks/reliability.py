"""Does it hold? Kills, faults, hostile files, many processes and a soak, in one table.

make reliability
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from benchmarks import fuzz, reliability_kills, reliability_many, reliability_soak
from benchmarks.bars import parser
from benchmarks.reliability_cases import Case

ROOT = Path(__file__).parents[1]
TESTS = {
    "two processes equal one": "tests/test_processes.py",
    "hostile input refused": "tests/test_hostile.py",
    "mutated files valid or refused": "tests/test_fuzz.py",
    "properties of geometry, assignment, decoding, thresholds": "tests/test_properties.py",
}
LIMIT = 600  # seconds of one file of tests


def from_tests() -> list[Case]:
    """The quick ones, which `make test` runs too."""
    return [_from_file(title, file) for title, file in TESTS.items()]


def _from_file(title: str, file: str) -> Case:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.xml"
        command = [sys.executable, "-m", "pytest", file, f"--junitxml={result}", "-p", "no:xdist"]
        try:
            subprocess.run(command, cwd=ROOT, capture_output=True, timeout=LIMIT, check=False)
        except subprocess.TimeoutExpired:
            return Case(title, 1, 0, f"{file} took more than {LIMIT} s")
        if not result.exists():
            return Case(title, 1, 0, f"{file} could not be run")
        cases = list(ElementTree.parse(result).getroot().iter("testcase"))
    ran = [case for case in cases if case.find("skipped") is None]
    failed = [c for c in ran if c.find("failure") is not None or c.find("error") is not None]
    names = ", ".join(case.get("name", "") for case in failed[:3])
    return Case(title, max(1, len(ran)), len(ran) - len(failed), names or "nothing")


JOBS: tuple[Callable[[], list[Case]], ...] = (
    from_tests,
    reliability_kills.run,
    reliability_many.run,
    lambda: fuzz.run(seconds=300),
    reliability_soak.run,
)


def all_cases(console: Console) -> Iterator[Case]:
    for job in JOBS:
        for case in job():
            console.print(f"{case.case}: {case.survived} of {case.tries}", style="dim")
            yield case


def main() -> None:
    options = parser("Everything that must hold, tried.").parse_args()
    console = Console(width=120)
    cases = list(all_cases(Console(stderr=True)))
    table = Table("case", "tries", "survived", "lost", title="reliability")
    for case in cases:
        table.add_row(case.case, f"{case.tries:,}", f"{case.survived:,}", case.lost)
    console.print(table)
    met = sum(case.survived == case.tries for case in cases)
    if options.json is not None:
        options.json.write_text(json.dumps([vars(case) for case in cases], indent=2) + "\n")
    print(f"reliability: {met} of {len(cases)} bars met")
    sys.exit(0 if met == len(cases) else 1)


if __name__ == "__main__":
    main()
