"""The point of it all, in one command: few labels, then the same labels and many images more.

Both trainings share detector, augmentation of the labeled images and number of optimizer steps, and
the averaged weights of the last step are compared on a test split that neither has seen.
"""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dsl import api
from dsl.data.scenes import SceneOptions, write_scenes
from dsl.engine.progress import CountBar
from dsl.report.html import write_report
from dsl.report.run_folder import read_run
from dsl.report.tables import percent

IMAGES, VAL, TEST = 1000, 200, 500


def run_demo(out: Path, *, labeled: int, steps: int, seed: int, console: Console) -> None:
    """OUT/scenes, OUT/supervised, OUT/dsl, OUT/pictures and OUT/report.html; ends with a table."""
    scenes = out / "scenes"
    with CountBar(console, "drawing scenes", IMAGES + VAL + TEST) as bar:
        write_scenes(
            scenes, SceneOptions(seed=seed), train=IMAGES, val=VAL, test=TEST, labeled=labeled,
            progress=bar,
        )  # fmt: skip
    settings = {"run.seed": seed, "run.steps": steps}
    rows = {}
    for method in ("supervised", "dsl"):
        console.print(f"\n{method}: {_about(method, labeled)}")
        outcome = api.train(
            scenes / "labeled.json", val=scenes / "val.json", out=out / method, recipe="digits",
            unlabeled=scenes / "unlabeled.json" if method == "dsl" else None, method=method,
            settings=settings, console=console,
        )  # fmt: skip
        if not outcome.finished:
            console.print(f"stopped; go on with: dsl train --resume {outcome.folder}")
            return
        tested = api.evaluate(out / method / "last.pt", scenes / "test.json", console=console)
        rows[method] = (tested, outcome.position.seconds)
    console.print(_table(rows, labeled))
    api.predict(
        out / "dsl" / "last.pt", [str(scenes / "images" / "test" / "00000*.png")],
        out=out / "pictures", console=console,
    )  # fmt: skip
    write_report(out / "report.html", [read_run(out / method) for method in rows])
    console.print(
        f"look at {out}/report.html, {out}/dsl/pseudo_labels (what the teacher taught: green is "
        f"learned, amber is ignored) and {out}/pictures"
    )


def _about(method: str, labeled: int) -> str:
    images = f"{labeled} labeled images"
    return images if method == "supervised" else f"{images} and {IMAGES - labeled} unlabeled ones"


def _table(rows: dict[str, tuple[dict[str, Any], float]], labeled: int) -> Table:
    title = f"Test split, {TEST} images; {labeled} of {IMAGES} training images labeled"
    table = Table("method", "AP", "AP50", "AP75", "training", title=title)
    for method, (tested, seconds) in rows.items():
        figures = [percent(tested[name]) for name in ("ap", "ap50", "ap75")]
        table.add_row(method, *figures, f"{seconds / 60:.1f} min")
    (few, _), (more, _) = rows.values()
    gains = [f"{100 * (more[n] - few[n]):+.1f}" for n in ("ap", "ap50", "ap75")]
    table.add_row("gained", *gains, "", style="bold")
    return table
