"""`dsl doctor`: look at data and settings before a training."""

from pathlib import Path
from typing import Annotated

import typer

from dsl.cli.common import console
from dsl.errors import UserError


def doctor(
    labeled: Annotated[Path, typer.Option(help="Labeled images, as of dsl train.")],
    unlabeled: Annotated[Path | None, typer.Option(help="More images.")] = None,
    val: Annotated[
        Path | None, typer.Option(help="Validation set; without it a tenth of the labeled images.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="supervised or dsl.")] = None,
    preset: Annotated[str, typer.Option(help="A recipe, or a TOML file.")] = "small",
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    flip: Annotated[
        bool | None, typer.Option("--flip/--no-flip", help="Mirror training images.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting, as of dsl train. Repeatable.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the findings to this new file.")
    ] = None,
) -> None:
    """Look for faults in data and settings; the exit code is 1 where there is an error.

    dsl doctor --labeled data/few.json --unlabeled data/many/ --val data/val.json
    """
    import json
    from dataclasses import asdict

    from dsl import api
    from dsl.config import parse_overrides
    from dsl.doctor.checks import findings_table

    if json_file is not None and json_file.exists():
        raise UserError(f"--json: {json_file} exists already; choose another name")
    overrides = parse_overrides(settings or [])
    if steps is not None:
        overrides |= {"run.epochs": None}
    options = {"run.steps": steps, "views.flip": flip, "run.device": device}
    overrides |= {key: value for key, value in options.items() if value is not None}
    findings = api.diagnose(
        labeled, val=val, unlabeled=unlabeled, method=method, recipe=preset, settings=overrides
    )
    counts = {level: sum(f.level == level for f in findings) for level in ("warning", "error")}
    console().print(findings_table(findings))
    console().print(f"doctor: {counts['error']} errors, {counts['warning']} warnings")
    if json_file is not None:
        content = {"findings": [asdict(finding) for finding in findings], "counts": counts}
        json_file.write_text(json.dumps(content, indent=2) + "\n")
    if counts["error"]:
        raise typer.Exit(1)
