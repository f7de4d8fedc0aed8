"""Metrics as tables on a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

ROWS = (
    ("AP", "ap", "IoU .50:.95"), ("AP50", "ap50", "IoU .50"), ("AP75", "ap75", "IoU .75"),
    ("AP small", "ap_small", "area < 32x32"), ("AP medium", "ap_medium", "32x32 to 96x96"),
    ("AP large", "ap_large", "area > 96x96"), ("AR 1", "ar1", "1 detection an image"),
    ("AR 10", "ar10", "10 detections"), ("AR 100", "ar100", "100 detections"),
    ("AR small", "ar_small", ""), ("AR medium", "ar_medium", ""), ("AR large", "ar_large", ""),
)  # fmt: skip


def percent(value: float | None) -> str:
    """One decimal, a dash for what could not be measured."""
    return "-" if value is None or value != value else f"{100 * value:.1f}"


def coco_table(metrics: Mapping[str, Any], title: str) -> Table:
    """The twelve figures of COCO."""
    table = Table("metric", "%", "", title=title)
    for name, key, meaning in ROWS:
        table.add_row(name, percent(metrics[key]), meaning)
    return table


def class_table(
    metrics: Mapping[str, Any], thresholds: Sequence[float], *, voc: Mapping[str, Any] | None = None
) -> Table:
    """AP and operating point of each class."""
    table = Table("class", "AP", "AP50", "best-F1 score", title="Per class")
    if voc is not None:
        table.add_column("VOC AP50")
        table.add_column("VOC AP50, 11 points")
    for row, (entry, threshold) in enumerate(zip(metrics["per_class"], thresholds, strict=True)):
        cells = [entry["name"], percent(entry["ap"]), percent(entry["ap50"]), f"{threshold:.2f}"]
        if voc is not None:
            mine = voc["per_class"][row]
            cells += [percent(mine["ap"]), percent(mine["ap_11_point"])]
        table.add_row(*cells)
    return table
