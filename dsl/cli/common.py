"""What the commands share: where they print, and options that several of them have."""

import sys
from typing import Annotated

import typer
from rich.console import Console

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]


def console() -> Console:
    """Where everything but errors goes; wide enough for a table when it is not a terminal."""
    return Console(
        markup=False,  # class and file names may hold brackets
        highlight=False,
        soft_wrap=True,  # a path or a command to copy stays in one piece
        width=None if sys.stdout.isatty() else 120,
    )
