"""What one looks at: `dsl report` and `dsl watch`."""

from pathlib import Path
from typing import Annotated

import typer

from dsl.cli.common import console
from dsl.errors import UserError


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, finished or not.")],
    out: Annotated[
        Path | None,
        typer.Option(help="HTML file; default for one run: its own report.html, written anew."),
    ] = None,
) -> None:
    """Write a page about one training, or about several side by side.

    dsl report runs/first

    dsl report runs/supervised runs/dsl --out compared.html
    """
    from dsl.report.html import write_report
    from dsl.report.run_folder import read_run

    if out is None and len(runs) > 1:
        raise UserError("--out is missing: several runs need a file, e.g. --out compared.html")
    path = runs[0] / "report.html" if out is None else out
    if out is not None and out.exists():
        raise UserError(f"--out {out}: exists already; name a new file")
    found = [read_run(run) for run in runs]
    write_report(path, found)
    console().print(f"written: {path} ({path.stat().st_size / 1e6:.1f} MB); open it in a browser")


def watch(
    run: Annotated[Path, typer.Argument(help="Folder of a training that goes on.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8010,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on. Others than loopback show the run to the net."),
    ] = "127.0.0.1",
) -> None:
    """Follow a training in the browser, on this machine alone.

    dsl watch runs/first
    """
    from dsl.watch import serve

    serve(run, host=host, port=port, console=console())
