"""`dsl bench`: methods x label shares x seeds x data sets."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from dsl.cli.common import console
from dsl.errors import UserError


def bench(
    out: Annotated[Path, typer.Argument(help="Folder of the comparison; goes on if it exists.")],
    data: Annotated[
        str,
        typer.Option(
            help='"digits" (embedded), or folders with train.json, val.json and perhaps test.json, '
            "each with @RECIPE; commas between."
        ),
    ] = "digits",
    method: Annotated[
        str, typer.Option(help="supervised, dsl, or rows of recipes/ablations; commas between.")
    ] = "supervised,dsl",
    percent: Annotated[str, typer.Option(help="Shares of the labels; commas between.")] = "10,100",
    seeds: Annotated[int, typer.Option(help="Each varies the fold and the start.")] = 3,
    steps: Annotated[int | None, typer.Option(help="Other than the recipe's.")] = None,
    jobs: Annotated[int, typer.Option(help="Cells trained at once, each on its cores.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke run: does it all work?")] = False,
    into: Annotated[
        str | None,
        typer.Option(
            help="PAGE, whose '<!-- bench DATA -->' ... '<!-- end -->' gets the table; PAGE#NAME: "
            "its '<!-- bench DATA NAME -->'."
        ),
    ] = None,
) -> None:
    """Compare fairly: same backbone, steps and augmentation, mean and spread over seeds.

    dsl bench runs/compare --quick

    dsl bench runs/compare --data photos@small --percent 5,10,100 --seeds 3
    """
    from dsl.bench.run import plan_of, run_bench, table_of

    screen = console()
    out.mkdir(parents=True, exist_ok=True)
    plan = plan_of(
        out, data=_listed(data, "--data"), methods=_listed(method, "--method"),
        percents=[_share(text) for text in _listed(percent, "--percent")], seeds=seeds,
        steps=steps, quick=quick,
    )  # fmt: skip
    command = shlex.join(["dsl", *sys.argv[1:]])
    rows = run_bench(out, plan, console=screen, command=command, into=into, jobs=jobs)
    screen.print(table_of(rows))
    screen.print(f"written: {out}/results.md, {out}/results.png, {out}/results.json")


def _listed(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError(f"{option}: nothing named")
    return parts


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--percent {text!r}: expected numbers such as 5,10,100") from None
