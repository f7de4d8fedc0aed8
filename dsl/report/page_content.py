"""What the page's script is given: runs as plain lists, thinned to what a screen can show.

The one place that knows the shape of the page's JSON; templates/*.js read exactly this.
"""

import base64
import io
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from dsl.report.gallery_steps import Box, GalleryImage, Labels, TrueBox
from dsl.report.run_folder import Run, Share, Teaching, TrainPoint
from dsl.report.verdict import Arm, Headline, headline_of, latest_ap, teaching_start

Content = Mapping[str, Any]  # JSON
Point = TypeVar("Point")

CURVE_POINTS = 240  # of a curve: more than that is finer than the plot
TEACHING_POINTS = 80
GALLERY_STEPS = 24
PICTURE_SIDE = 640  # pixels, the longer one
PICTURE_QUALITY = 84


def content_of(runs: Sequence[Run]) -> Content:
    """All that the page shows."""
    headline = headline_of(runs)
    arm_of = {id(run): place for place, arm in enumerate(headline.arms) for run in arm.runs}
    return {
        "title": " · ".join(run.name for run in runs).encode(errors="replace").decode(),
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "headline": _headline(headline),
        "runs": [_run(run, arm_of[id(run)]) for run in runs],
    }


def _headline(headline: Headline) -> Content:
    gap = headline.gap
    return {
        "verdict": headline.verdict,
        "remarks": headline.remarks,
        "gain": headline.gain,
        "gap": gap and {"few": gap.few, "taught": gap.taught, "full": gap.full,
                        "closure": gap.closure},
        "arms": [_arm(arm) for arm in headline.arms],
    }  # fmt: skip


def _arm(arm: Arm) -> Content:
    aps = list(arm.aps.values())
    return {
        "name": arm.name, "method": arm.method, "mean": arm.mean, "num": len(aps),
        "low": min(aps, default=None), "high": max(aps, default=None),
    }  # fmt: skip


def _run(run: Run, arm: int) -> Content:
    steps = run.setting("run", "steps")
    length = run.setting("run", "seconds")
    share = run.seconds / length if length else run.step / steps if steps else None
    return {
        "name": run.name,
        "arm": arm,
        "method": run.method,
        "seed": run.seed,
        "step": run.step,
        "steps": None if length or run.setting("run", "epochs") else steps,
        "seconds": run.seconds,
        "progress": 1.0 if run.finished else share,
        "finished": run.finished,
        "classes": run.classes,
        "final": _final(run),
        "taught_from": teaching_start(run),
        "tau1": run.setting("teaching", "background"),
        "half_view": bool(run.setting("teaching", "half_view")),
        "scale": bool(run.setting("teaching", "scale_weight")),
        "losses": _losses(run.train),
        "val": _validations(run),
        "teaching": _teaching(run),
        "gallery": _gallery(run),
        "notes": [[note.step, note.kind, note.message] for note in run.notes[-200:]],
        "settings": _settings(run),
    }


def _final(run: Run) -> Content:
    last = run.validations[-1] if run.validations else None
    taught = run.teaching[-1] if run.teaching else None
    return {
        "ap": latest_ap(run),
        "ap50": last and last.teacher.ap50,
        "ap75": last and last.teacher.ap75,
        "student": last and last.student and last.student.ap,
        "precision": taught and taught.precision and taught.precision.overall,
        "recall": taught and taught.recall and taught.recall.overall,
        "images": run.environment.get("images"),
    }


def _losses(points: Sequence[TrainPoint]) -> Content:
    """Means of equal stretches of the run: thinning by leaving out would hide peaks."""
    size = -(-len(points) // CURVE_POINTS) or 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    names = sorted({name for point in points for name in point.losses})
    curves = {}
    for name in names:
        curves[name] = [_mean([p.losses[name] for p in g if name in p.losses]) for g in groups]
    return {"steps": [group[-1].step for group in groups], "curves": curves}


def _mean(values: Sequence[float]) -> float | None:
    return _short(sum(values) / len(values)) if values else None


def _validations(run: Run) -> Content:
    kept = thin(run.validations, CURVE_POINTS)
    return {
        "steps": [v.step for v in kept],
        "teacher": [v.teacher.ap for v in kept],
        "teacher50": [v.teacher.ap50 for v in kept],
        "student": [v.student.ap if v.student else None for v in kept],
        "per_class": [[v.teacher.per_class.get(name) for v in kept] for name in run.classes],
    }


def _teaching(run: Run) -> Content | None:
    kept = thin(run.teaching, TEACHING_POINTS)
    if not kept:
        return None

    def curve(pick: Callable[[Teaching], Share | None]) -> Content:
        shares = [pick(point) for point in kept]
        return {
            "all": [_short(share.overall) if share else None for share in shares],
            "per_class": [
                [_short(share.per_class.get(name)) if share else None for share in shares]
                for name in run.classes
            ],
        }

    return {
        "steps": [point.step for point in kept],
        "tau2": [[_short(point.tau2.get(name)) for point in kept] for name in run.classes],
        "foreground": curve(lambda point: point.counts["foreground"]),
        "ignored": curve(lambda point: point.counts["ignored"]),
        "rejected": curve(lambda point: point.counts["rejected"]),
        "precision": curve(lambda point: point.precision),
        "recall": curve(lambda point: point.recall),
        "scores": [
            h and [h.true_positive, h.misplaced, h.background]
            for h in (point.histogram for point in kept)
        ],
    }


def _gallery(run: Run) -> Content:
    steps = thin(run.gallery, GALLERY_STEPS)
    place = {name: number for number, name in enumerate(run.classes)}
    known = any(image.truth is not None for image in run.images)
    order = list(range(len(run.images)))
    if steps:
        last = steps[-1].labels
        worth = [labels.mistakes if known else labels.uncertainty for labels in last]
        order.sort(key=lambda number: -worth[number])
    return {
        "judged": known,
        "order": order,
        "images": [_image(image, place) for image in run.images],
        "steps": [
            {"step": step.step, "labels": [_labels(labels, place) for labels in step.labels]}
            for step in steps
        ],
    }


def _image(image: GalleryImage, place: Mapping[str, int]) -> Content:
    strong = image.strong
    return {
        "name": image.name, "width": image.width, "height": image.height,
        "src": _picture(image.file),
        "truth": None if image.truth is None else [_true(box, place) for box in image.truth],
        "strong": strong and {
            "src": _picture(strong.file), "width": strong.width, "height": strong.height,
            "shuffled": strong.shuffled,
            "targets": [_true(box, place) for box in strong.targets],
        },
    }  # fmt: skip


def _true(true: TrueBox, place: Mapping[str, int]) -> list[Any]:
    return [*true.box, place.get(true.name, -1), true.ignored]


def _labels(labels: Labels, place: Mapping[str, int]) -> Content:
    return {"boxes": [_box(box, place) for box in labels.boxes], "missed": labels.missed}


def _box(box: Box, place: Mapping[str, int]) -> list[Any]:
    corners = [round(value, 1) for value in box.box]
    return [*corners, round(box.score, 3), place.get(box.name, -1), box.part, box.right]


def _picture(file: Path | None) -> str | None:
    """A JPEG inside the page; None where there is none to show."""
    if file is None:
        return None
    try:
        with Image.open(file) as image:
            image.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
            small = image.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    encoded = io.BytesIO()
    small.save(encoded, "JPEG", quality=PICTURE_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(encoded.getvalue()).decode()


def _settings(run: Run) -> list[list[str]]:
    """Dotted names and values, as `dsl train --set` takes them."""
    rows: list[list[str]] = []
    for part, value in {**run.settings, "machine": run.environment}.items():
        if isinstance(value, dict):
            rows += [[f"{part}.{name}", str(inner)] for name, inner in value.items()]
        else:
            rows.append([part, str(value)])
    return rows


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most so many of them, evenly spread, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(k * (len(points) - 1) / (most - 1))] for k in range(most)]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
