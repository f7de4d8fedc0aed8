"""Clean sets stay clean: digit scenes, and the two real sets where they are at hand."""

import json
from pathlib import Path

import pytest

from dsl import api
from dsl.data.scenes import SceneOptions, write_scenes
from dsl.doctor.finding import Finding

SHARED = Path(__file__).parents[3] / "shared" / "data"


def complaints(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level != "ok"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_digit_scenes(tmp_path: Path) -> None:
    write_scenes(tmp_path / "s", SceneOptions(), train=160, val=30, test=0, labeled=60)
    paths = {role: tmp_path / "s" / f"{role}.json" for role in ("labeled", "unlabeled", "val")}
    labeled, settings = paths.pop("labeled"), {"run.device": "cpu"}
    found = api.diagnose(labeled, recipe="digits", settings=settings, **paths)
    assert complaints(found) == []


@pytest.mark.parametrize(("name", "recipe"), [("bccd", "bccd"), ("coco_animals10_256", "animals")])
def test_real_sets(name: str, recipe: str, tmp_path: Path) -> None:
    """Half labeled, half unlabeled, the file's own validation set."""
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not at hand")
    content = json.loads((folder / "train.json").read_text())
    (tmp_path / "images").symlink_to(folder / "images")
    for part, role in enumerate(("labeled", "unlabeled")):
        images = content["images"][part::2]
        ids = {image["id"] for image in images}
        boxes = [a for a in content["annotations"] if a["image_id"] in ids]
        half = {**content, "images": images, "annotations": boxes}
        (tmp_path / f"{role}.json").write_text(json.dumps(half))
    found = api.diagnose(
        tmp_path / "labeled.json", unlabeled=tmp_path / "unlabeled.json",
        val=folder / "val.json", recipe=recipe, settings={"run.device": "cpu"},
    )  # fmt: skip
    assert complaints(found) == []
