"""What a run keeps for the gallery's pictures."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from dsl.report.views import Shown, StrongView, write_views
from dsl.types import Targets


def test_views_hold_pictures_truth_and_targets(tmp_path: Path) -> None:
    pixels = np.zeros((20, 30, 3), np.uint8)
    strong = StrongView(pixels[:10], Targets.empty(), shuffled=False)
    shown = [
        Shown("a.png", pixels, Targets.empty(), strong),
        Shown("b.png", pixels, None, None),
    ]
    write_views(tmp_path / "views", shown, ("cat",))
    first, second = json.loads((tmp_path / "views" / "views.json").read_text())
    assert (first["width"], first["height"], first["truth"]) == (30, 20, [])
    assert first["strong"]["targets"] == []
    assert Image.open(tmp_path / "views" / first["strong"]["file"]).size == (30, 10)
    assert "truth" not in second
    assert "strong" not in second
    assert not list((tmp_path / "views").glob("*.part"))


def test_no_images_at_all(tmp_path: Path) -> None:
    write_views(tmp_path / "views", [], ("cat",))
    assert json.loads((tmp_path / "views" / "views.json").read_text()) == []
