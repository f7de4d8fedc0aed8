"""Mutated files: valid or refused, never a crash. What the fuzzer found stays here."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fuzz import TARGETS, Tally, Target, attempt, fuzz
from dsl.config import load_config
from dsl.data.formats import open_dataset
from dsl.engine.checkpoint import load_checkpoint
from dsl.errors import UserError

NAMES = [target.name for target in TARGETS]
BY_NAME = {target.name: target for target in TARGETS}


@pytest.mark.parametrize("target", TARGETS, ids=NAMES)
def test_mutations_are_valid_or_refused(target: Target) -> None:
    tally = fuzz(target, seed=1, tries=60)
    assert tally.crashes == []
    assert 0 < tally.valid < 60  # the good files are good, and some others are not


def test_the_fuzzer_notices_a_crash() -> None:
    def read(folder: Path, content: bytes) -> None:
        if b"7" in content:
            raise KeyError("seven")

    tally = fuzz(Target("sevens", read, (b"1234567",)), seed=0, tries=20)
    assert tally.crashes
    assert "KeyError" in tally.crashes[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
FEW = settings(max_examples=60, deadline=None, derandomize=True, database=None)
ROW = st.dictionaries(
    st.sampled_from(
        ["id", "file_name", "width", "image_id", "category_id", "bbox", "name", "area"]
    ),
    JSON,
)


@FEW
@given(st.dictionaries(st.sampled_from(["images", "annotations", "categories"]), st.lists(ROW)))
def test_any_document_is_a_coco_set_or_refused(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, object]
) -> None:
    _holds("COCO", json.dumps(document).encode(), tmp_path_factory)


@FEW
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    for name in ("VOC page", "VOC split", "list of images", "YOLO yaml", "recipe", "--set"):
        _holds(name, text.encode("utf-8", "surrogatepass"), tmp_path_factory)


def _holds(name: str, content: bytes, factory: pytest.TempPathFactory) -> None:
    folder = factory.mktemp("fuzz")
    for part in ("images", "labels", "Annotations"):
        (folder / part).mkdir()
    tally = Tally()
    attempt(BY_NAME[name], content, folder, tally)
    assert tally.crashes == []


# Inputs that once came through as something else than a refusal.

YAMLS = {
    "a name too long for the disk": f"train: {'x' * 5000}\nnames: [cat]\n",
    "a root too long for the disk": f"path: {'x' * 5000}\ntrain: absent\nnames: [cat]\n",
    "an integer of no digits": "train: x\nnames: !!int ''\n",
    "a float of no digits": "train: x\nnames: !!float ''\n",
    "no timestamp": "train: x\nnames: !!timestamp x\n",
    "no truth value": "train: x\nnames: !!bool x\n",
    "an integer too long to print": f"train: 0x{'f' * 5000}\nnames: [cat]\n",
}


@pytest.mark.parametrize("text", YAMLS.values(), ids=YAMLS)
def test_yaml_regressions(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UserError, match=r"a\.yaml"):
        open_dataset(tmp_path / "a.yaml")


def test_a_coco_name_too_long_for_the_disk_is_an_absent_image(tmp_path: Path) -> None:
    image = {"id": 1, "file_name": "x" * 5000}
    (tmp_path / "a.json").write_text(json.dumps({"images": [image]}))
    assert len(open_dataset(tmp_path / "a.json")) == 1


@pytest.mark.parametrize(
    "text", ["run.steps = " + "9" * 5000, "x = " + "[" * 5000, f'extends = "{"x" * 5000}.toml"']
)
def test_recipe_regressions(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(UserError):
        load_config(str(tmp_path / "a.toml"))


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "x"}, {"weights": {1: torch.ones(1)}}, {"classes": [1]}, {"classes": "cat"},
        {"settings": "[]"}, {"settings": "[" * 5000}, {"metrics": "5"}, {"training": 5},
        {"thresholds": ["x"]}, {"thresholds": {"a": 1}},
    ],
    ids=str,
)  # fmt: skip
def test_checkpoint_regressions(change: dict[str, object], tmp_path: Path) -> None:
    content = {
        "format": "dsl-checkpoint", "version": 1, "settings": "{}", "classes": ["cat"],
        "weights": {"w": torch.ones(1)}, "thresholds": None, "metrics": "null", "training": None,
    }  # fmt: skip
    torch.save(content, tmp_path / "good.pt")
    assert load_checkpoint(tmp_path / "good.pt").classes == ("cat",)
    torch.save(content | change, tmp_path / "bad.pt")
    with pytest.raises(UserError, match=r"bad\.pt"):
        load_checkpoint(tmp_path / "bad.pt")
