"""The command line: parse, call, print. A user's mistake is one line and exit code 2.

torch is imported inside the commands, so that `--help` answers at once.
"""

import sys
from typing import Any

import typer

from dsl.cli.bench import bench
from dsl.cli.data import SpreadPercents, convert, join, scenes, show, split
from dsl.cli.doctor import doctor
from dsl.cli.look import report, watch
from dsl.cli.train import demo, train
from dsl.cli.use import evaluate, export, label, predict
from dsl.errors import UserError

app = typer.Typer(
    name="dsl", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    help="Train object detectors from few labels and many unlabeled images.",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
app.command()(train)
app.command("eval")(evaluate)
app.command()(predict)
app.command()(doctor)
app.command()(export)
app.command()(label)
app.command()(demo)
app.command()(bench)
app.command()(report)
app.command()(watch)

data_app = typer.Typer(no_args_is_help=True, help="Make and inspect data sets.")
data_app.command()(scenes)
data_app.command(cls=SpreadPercents)(split)
data_app.command()(join)
data_app.command()(convert)
data_app.command()(show)
app.add_typer(data_app, name="data")

# typer brings its own click in some versions and imports it in others; these are its classes.
_UsageError: Any = typer.BadParameter.__mro__[1]
_ClickError: Any = typer.BadParameter.__mro__[2]


def main() -> None:
    """Run the command; errors that a user can cause become one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        code = _fail(str(error))
    except typer.Abort:
        code = 130
    except _ClickError as error:
        code = _fail(_describe(error))
    except OSError as error:  # a full disk, a forbidden folder
        code = _fail(f"{error.filename or 'file system'}: {error.strerror or error}")
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _describe(error: Any) -> str:
    """typer's message with the value that was given, which it leaves out."""
    context = error.ctx if isinstance(error, _UsageError) else None
    hint = f" (see {context.command_path} --help)" if context else ""
    return f"{error.format_message()}{hint}"


def _fail(message: str) -> int:
    print(f"dsl: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
