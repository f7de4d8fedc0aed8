"""The table of all checks, and the two ways to run them: `dsl doctor`, and before a training.

A new check is a function in the file of its group, and one line here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from dsl.doctor.boxes import check_boxes
from dsl.doctor.case import Case
from dsl.doctor.classes import check_classes, check_labels, check_measurable, check_unlabeled
from dsl.doctor.cost import check_cost
from dsl.doctor.finding import Finding
from dsl.doctor.images import check_files, check_sizes
from dsl.doctor.mirror import check_flip
from dsl.doctor.overlap import check_overlap
from dsl.doctor.schedule import (
    check_averaging,
    check_batch,
    check_burn_in,
    check_length,
    check_rate,
    check_window,
)  # fmt: skip

_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


@dataclass(frozen=True)
class Check:
    """One check; `before_training`: it is quick, and a training does not do the same by itself."""

    run: Callable[[Case], Iterator[Finding]]
    before_training: bool = True


CHECKS = (
    Check(check_classes),
    Check(check_labels),
    Check(check_measurable),
    Check(check_unlabeled),
    Check(check_overlap),
    Check(check_files, before_training=False),  # training opens every labeled image
    Check(check_sizes),
    Check(check_boxes),
    Check(check_flip),
    Check(check_batch),
    Check(check_rate),
    Check(check_length),
    Check(check_burn_in),
    Check(check_window),
    Check(check_averaging),
    Check(check_cost, before_training=False),  # the training itself will tell, better
)


def examine(case: Case) -> list[Finding]:
    """Everything, in the order of the table."""
    return [finding for check in CHECKS for finding in check.run(case)]


def warn_before_training(case: Case, console: Console) -> None:
    """One line for each warning and error. It stops nothing: what makes a training impossible is
    refused by the part that meets it, and the user may know better about all else."""
    if console.quiet:
        return
    for check in CHECKS:
        for finding in check.run(case) if check.before_training else ():
            if finding.level != "ok":
                text = f"{finding.level}: {finding.check}: {finding.message}; {finding.fix}"
                console.print(text, style=_STYLES[finding.level])


def findings_table(findings: list[Finding]) -> Table:
    """For a terminal."""
    table = Table("", "check", "found", "what to do")
    for finding in findings:
        table.add_row(
            finding.level, finding.check, finding.message, finding.fix,
            style=None if finding.level == "ok" else _STYLES[finding.level],
        )  # fmt: skip
    return table
