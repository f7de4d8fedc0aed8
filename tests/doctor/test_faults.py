"""Planted faults: the doctor names each by the right check at the right level, and nothing else."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dsl import api
from dsl.config import load_config
from dsl.doctor import cost
from dsl.doctor.case import Case, open_case
from dsl.doctor.checks import CHECKS, examine
from dsl.doctor.cost import check_cost
from dsl.doctor.finding import Finding
from dsl.errors import UserError
from tests.conftest import write_coco

SETTINGS: dict[str, Any] = {
    "views.short_sides": [64], "views.test_short_side": 64, "views.max_side": 107,
    "model.size_ranges": [32, 64, 128, 256], "run.steps": 200, "teaching.window": 100,
    "run.device": "cpu", "method": "dsl",
}  # fmt: skip


@dataclass
class Setup:
    """A sound set of files and settings, for a fault to be planted in."""

    folder: Path
    settings: dict[str, Any] = field(default_factory=lambda: dict(SETTINGS))
    roles: list[str] = field(default_factory=lambda: ["labeled", "val", "unlabeled"])

    def path(self, role: str) -> Path:
        return self.folder / f"{role}.json"

    def image(self, role: str, number: int) -> Path:
        return self.folder / "images" / f"{role}_{number:03d}.png"

    def edit(self, role: str, change: Callable[[dict[str, Any]], object]) -> None:
        content = json.loads(self.path(role).read_text())
        change(content)
        self.path(role).write_text(json.dumps(content))

    def set(self, **settings: Any) -> None:
        self.settings |= {key.replace("__", "."): value for key, value in settings.items()}

    def case(self) -> Case:
        data = {f"data.{role}": str(self.path(role)) for role in self.roles}
        return open_case(load_config("tiny", {**data, **self.settings}))

    def draw(self, role: str, *, size: tuple[int, int]) -> None:
        """Every image of the set anew, of this height and width, with its boxes moved along."""
        random = np.random.default_rng(len(role))

        def change(content: dict[str, Any]) -> None:
            factor = size[0] / content["images"][0]["height"]
            for image in content["images"]:
                pixels = random.integers(0, 255, (*size, 3), np.uint8)
                Image.fromarray(pixels).save(self.folder / "images" / image["file_name"])
                image.update(height=size[0], width=size[1])
            for box in content["annotations"]:
                box["bbox"] = [value * factor for value in box["bbox"]]

        self.edit(role, change)


def quick(case: Case) -> Iterator[Finding]:
    """All findings but the estimate, which builds a detector."""
    for check in CHECKS:
        if check.run is not check_cost:
            yield from check.run(case)


def faults(findings: Iterator[Finding] | list[Finding]) -> set[tuple[str, str]]:
    return {(f.level, f.check) for f in findings if f.level != "ok"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    for seed, (role, count) in enumerate({"labeled": 40, "val": 12, "unlabeled": 40}.items()):
        write_coco(folder, count=count, name=role, seed=seed)
    return folder


@pytest.fixture
def setup(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Setup(Path(shutil.copytree(sound, tmp_path / "data")))


def rename(*names: str) -> Callable[[dict[str, Any]], object]:
    """Give the classes other names, in the order of their ids."""
    return lambda d: d.update(categories=[{"id": i + 1, "name": n} for i, n in enumerate(names)])


def copy_image(setup: Setup, source: Path, role: str) -> None:
    """Put a copy of the image over the first image of a set."""
    shutil.copy(source, setup.image(role, 1))


def list_images(setup: Setup, *roles: str) -> None:
    """The images of these sets as the unlabeled file."""
    images = [i for r in roles for i in json.loads(setup.path(r).read_text())["images"]]
    numbered = [{**image, "id": n} for n, image in enumerate(images)]
    setup.path("unlabeled").write_text(json.dumps({"images": numbered}))


def shrink(only: int | None) -> Callable[[dict[str, Any]], object]:
    """Boxes of 2 px, of all classes or of one, away from the middles of cells."""

    def change(content: dict[str, Any]) -> None:
        for number, box in enumerate(content["annotations"]):
            if only is None or box["category_id"] == only:
                box["bbox"] = [8 * (number % 5), 8 * (number % 7), 2, 2]

    return change


def put_boxes(*box: int) -> Callable[[dict[str, Any]], object]:
    """All boxes where this one is."""
    return lambda d: [a.update(bbox=list(box)) for a in d["annotations"]]


def keep_boxes(condition: Callable[[dict[str, Any]], bool]) -> Callable[[dict[str, Any]], object]:
    return lambda d: d.update(annotations=[a for a in d["annotations"] if condition(a)])


def few_of_one_class(content: dict[str, Any]) -> None:
    bars = [a["id"] for a in content["annotations"] if a["category_id"] == 2]
    keep_boxes(lambda a: a["category_id"] == 1 or a["id"] in bars[:4])(content)


def grow_some(setup: Setup) -> None:
    """Every fourth labeled image twelve times as large."""

    def change(content: dict[str, Any]) -> None:
        for image in content["images"][::4]:
            Image.new("RGB", (1152, 768)).save(setup.folder / "images" / image["file_name"])
            image.update(height=768, width=1152)
            for box in content["annotations"]:
                if box["image_id"] == image["id"]:
                    box["bbox"] = [value * 12 for value in box["bbox"]]

    setup.edit("labeled", change)


FAULTS: dict[str, tuple[str, str, Callable[[Setup], object]]] = {
    "val: another class name": (
        "error", "classes", lambda s: s.edit("val", rename("Square", "bar"))),
    "val: another order": ("warning", "classes", lambda s: s.edit("val", rename("bar", "square"))),
    "unlabeled: labels of other classes": (
        "error", "classes", lambda s: s.edit("unlabeled", rename("cat", "dog"))),
    "unlabeled: labels in another order": (
        "warning", "classes", lambda s: s.edit("unlabeled", rename("bar", "square"))),
    "classes that look alike": (
        "warning", "classes",
        lambda s: [s.edit(r, rename("Traffic light", "traffic_light")) for r in s.roles]),
    "val: a copy of a labeled image": (
        "warning", "overlap", lambda s: copy_image(s, s.image("labeled", 7), "val")),
    "val: the labeled images themselves": (
        "warning", "overlap", lambda s: shutil.copy(s.path("labeled"), s.path("val"))),
    "unlabeled: the labeled images too": (
        "warning", "overlap", lambda s: list_images(s, "labeled", "unlabeled")),
    "unlabeled: a copy of a labeled image": (
        "warning", "overlap", lambda s: copy_image(s, s.image("labeled", 7), "unlabeled")),
    "unlabeled: a copy of a validation image": (
        "warning", "overlap", lambda s: copy_image(s, s.image("val", 3), "unlabeled")),
    "a class with few labels": ("warning", "labels", lambda s: s.edit("labeled", few_of_one_class)),
    "a class without labels": (
        "warning", "labels",
        lambda s: s.edit("labeled", keep_boxes(lambda a: a["category_id"] == 1))),
    "no label at all": (
        "error", "labels", lambda s: s.edit("labeled", keep_boxes(lambda a: False))),
    "most images without a box": (
        "warning", "labels",
        lambda s: s.edit("labeled", keep_boxes(lambda a: a["image_id"] % 3 == 0))),
    "val: no box": ("error", "validation", lambda s: s.edit("val", keep_boxes(lambda a: False))),
    "val: a class is never shown": (
        "warning", "validation",
        lambda s: s.edit("val", keep_boxes(lambda a: a["category_id"] == 2))),
    "unlabeled images that no method uses": (
        "warning", "unlabeled", lambda s: s.set(method="supervised")),
    "no unlabeled images for dsl": ("error", "unlabeled", lambda s: s.roles.remove("unlabeled")),
    "all boxes too small": ("error", "box sizes", lambda s: s.edit("labeled", shrink(None))),
    "one class too small": ("warning", "box sizes", lambda s: s.edit("labeled", shrink(2))),
    "size ranges for other boxes": (
        "warning", "box sizes",
        lambda s: [s.set(model__size_ranges=[1, 2, 3, 4], views__short_sides=[128],
                         views__max_side=214),
                   s.edit("labeled", put_boxes(0, 0, 96, 64))]),
    "images absent": (
        "error", "images", lambda s: [s.image("val", n).unlink() for n in range(1, 13)]),
    "a broken image": (
        "warning", "images", lambda s: s.image("labeled", 5).write_bytes(b"no image")),
    "an image cut short": (
        "warning", "images",
        lambda s: s.image("labeled", 5).write_bytes(s.image("labeled", 5).read_bytes()[:2000])),
    "another size than annotated": (
        "error", "images",
        lambda s: s.edit("val", lambda d: [i.update(width=97) for i in d["images"]])),
    "small images, large input": (
        "warning", "image sizes",
        lambda s: s.set(views__short_sides=[192], views__max_side=320)),
    "very long images": (
        "warning", "image sizes",
        lambda s: [s.draw("labeled", size=(64, 512)), s.edit("labeled", put_boxes(40, 0, 64, 64))]),
    "sizes all over the place": ("warning", "image sizes", grow_some),
    "sharp labeled images, coarse unlabeled ones": (
        "warning", "image sizes", lambda s: s.draw("labeled", size=(320, 480))),
    "digits mirrored": (
        "warning", "flip", lambda s: [s.edit(r, rename("6", "9")) for r in s.roles]),
    "sides mirrored": (
        "warning", "flip",
        lambda s: [s.edit(r, rename("left_hand", "Hand, right")) for r in s.roles]),
    "a batch larger than the set": ("warning", "batch", lambda s: s.set(optim__batch=48)),
    "a batch that cannot be divided": (
        "error", "batch", lambda s: s.set(optim__batch=8, optim__accumulate=3)),
    "a rate scaled too far": (
        "warning", "learning rate", lambda s: s.set(optim__batch=32, optim__lr_batch=2)),
    "a rate that diverges": ("warning", "learning rate", lambda s: s.set(optim__lr=0.5)),
    "labels never seen": (
        "warning", "length",
        lambda s: s.set(run__steps=4, optim__keep_rate=0.1, teaching__window=4)),
    "unlabeled images never seen": (
        "warning", "length",
        lambda s: s.set(run__steps=5, optim__keep_rate=0.1, teaching__window=4)),
    "labels seen too often": ("warning", "length", lambda s: s.set(run__steps=10_000)),
    "a burn-in inside the warm-up": (
        "warning", "burn-in", lambda s: s.set(teaching__burn_in=0.05)),
    "a burn-in that leaves little": (
        "warning", "burn-in", lambda s: s.set(teaching__burn_in=0.8)),
    "a burn-in beyond the first milestone": (
        "warning", "burn-in",
        lambda s: s.set(teaching__burn_in=0.6, optim__schedule="steps", optim__milestones=[0.5])),
    "a window of many passes": (
        "warning", "thresholds", lambda s: s.set(teaching__window=500)),
    "a window longer than the run": (
        "warning", "thresholds",
        lambda s: s.set(teaching__window=300, run__steps=50, optim__keep_rate=0.9)),
    "averaging over more than the run": (
        "warning", "averaging", lambda s: s.set(optim__keep_rate=0.9999)),
    "a teacher averaged over more than it teaches": (
        "warning", "averaging", lambda s: s.set(teaching__keep_rate=0.9999)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(setup: Setup, fault: str) -> None:
    level, check, plant = FAULTS[fault]
    plant(setup)
    found = list(quick(setup.case()))
    assert faults(found) == {(level, check)}, [f for f in found if f.level != "ok"]
    assert all(f.fix for f in found if f.level != "ok")


def test_the_sound_set_has_no_fault(setup: Setup) -> None:
    found = examine(setup.case())
    assert faults(found) == set(), found
    assert {f.check for f in found} >= {check for _, check, _ in FAULTS.values()} | {"cost"}


def test_more_memory_than_there_is(setup: Setup) -> None:
    setup.set(optim__batch=1_000_000, optim__lr_batch=1_000_000)
    [finding] = check_cost(setup.case())
    assert finding.level == "warning"
    assert "optim.accumulate=2" in finding.fix


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.0123, "0.012 s"), (1.26, "1.3 s"), (263, "260 s")]
)
def test_the_time_of_a_step_is_told_in_plain_digits(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, seconds: float, told: str
) -> None:
    monkeypatch.setattr(cost, "pixels_of", lambda case: cost.PROBE**2)
    monkeypatch.setattr(cost, "work_of", lambda case: cost.Work(0.0, 1.0))
    monkeypatch.setattr(cost, "measure", lambda *_: cost.Probe(1, 1, seconds))
    setup.set(optim__batch=1)
    [finding] = check_cost(setup.case())
    assert f", {told} a step" in finding.message


def test_labels_of_unlabeled_images_are_told_to_measure_only(setup: Setup) -> None:
    told = [f for f in quick(setup.case()) if f.check == "unlabeled"]
    assert [f.level for f in told] == ["ok"]
    assert "measure the teacher, and train nothing" in told[0].message
    setup.edit("unlabeled", lambda d: d.pop("annotations"))
    told = [f for f in quick(setup.case()) if f.check == "unlabeled"]
    assert "without labels" in told[0].message


def test_a_flip_that_was_asked_for_is_not_questioned(setup: Setup) -> None:
    for role in setup.roles:
        setup.edit(role, rename("6", "9"))
    setup.set(views__flip=True)
    assert faults(quick(setup.case())) == set()
    setup.set(views__flip=False)
    assert faults(quick(setup.case())) == set()
    for upset, told in ((False, "no mirror images"), (True, "mirror images, as asked for")):
        setup.set(views__flip_vertical=upset)
        assert [f.message for f in quick(setup.case()) if f.check == "flip"] == [told]


def test_without_val_a_tenth_is_held_out_as_in_training(setup: Setup) -> None:
    setup.roles.remove("val")
    case = setup.case()
    assert (len(case.labeled), len(case.val)) == (36, 4)
    assert ("warning", "overlap") not in faults(quick(case))


def test_a_plain_folder_is_measured_by_a_sample(setup: Setup, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    for number in range(5):
        Image.new("RGB", (12, 8 + number)).save(tmp_path / "small" / f"{number}.png")
    setup.set(data__unlabeled=str(tmp_path / "small"), teaching__window=40)
    setup.roles.remove("unlabeled")
    told = [f for f in quick(setup.case()) if f.check == "image sizes" and f.level == "warning"]
    assert len(told) == 2  # enlarged, and far from the labeled ones
    assert "10 px" in told[0].message


def test_what_cannot_be_opened_is_refused(setup: Setup) -> None:
    with pytest.raises(UserError, match="no labels"):
        api.diagnose(setup.folder / "images")
    with pytest.raises(UserError, match="does not exist"):
        api.diagnose(setup.path("labeled"), val=setup.folder / "nowhere.json")
