"""Never worse than the burn-in: when alpha is lowered, which weights are kept, what is said."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dsl.engine import observers
from dsl.engine.checkpoint import Checkpoint, load_checkpoint
from dsl.engine.observers import Evaluation, Keeper
from dsl.engine.train import Position, Step
from dsl.engine.watch import Verdict, Watch
from dsl.errors import UserError


def step_of(number: int, *, of: int = 10, stopping: bool = False) -> Step:
    return Step(
        Position(number, 0.0), "train", progress=number / of, losses={}, lr=0.1, grad_norm=1.0,
        num_images=1, unreadable=(), stopping=stopping,
    )  # fmt: skip


class Kept:
    """A keeper whose evaluations are scripted; the weights are the number of the step."""

    def __init__(self, folder: Path, aps: list[float], **options: Any) -> None:
        self.aps: Iterator[float] = iter(aps)
        self.said: list[str] = []
        self.reported: list[tuple[int, str]] = []
        self.eased = 0
        self.watch = Watch(self.ease)
        self.keeper = Keeper(
            folder, snapshot=self.snapshot, evaluate=self.evaluate,
            report=lambda step, _, phase: self.reported.append((step, phase)),
            say=lambda _, text: self.said.append(text), watch=self.watch,
            **{"eval_every": 2, "save_every": 1, **options},
        )  # fmt: skip

    def ease(self) -> str | None:
        self.eased += 1
        return "halved"

    def snapshot(self, position: Position) -> Checkpoint:
        weights = {"step": torch.tensor(float(position.step))}
        return Checkpoint({}, ("a",), weights, training={"step": position.step})

    def evaluate(self) -> Evaluation:
        return Evaluation({"ap": next(self.aps)}, {"ap": 0.1}, (0.5,))


def said_of(
    burn_in: float, *, best: float, final: float, taught: bool = True, num_images: int = 50
) -> str:
    return Verdict(burn_in, best, final).words(taught=taught, num_images=num_images)


def step_in(path: Path) -> int:
    return int(load_checkpoint(path).weights["step"])


@pytest.mark.parametrize(
    ("burn_in", "ap", "clearly"),
    [
        (0.5, 0.46, False), (0.5, 0.44, True),  # more than a tenth
        (0.1, 0.085, False), (0.1, 0.075, True),  # more than two points
        (0.0, 0.0, False), (0.5, 0.6, False),
    ],
)  # fmt: skip
def test_clearly_below_is_two_points_and_a_tenth(burn_in: float, ap: float, clearly: bool) -> None:
    text = Watch(lambda: "halved", burn_in=burn_in).look(ap)
    assert (text is not None) == clearly
    assert text is None or text.endswith("of the burn-in: halved")


def test_nothing_is_compared_before_the_burn_in_is_over() -> None:
    watch = Watch(lambda: "halved")
    assert watch.look(0.0) is None
    assert watch.verdict(best=0.5, final=0.5) is None


def test_the_burn_in_model_stays_the_best_when_teaching_harms(tmp_path: Path) -> None:
    kept = Kept(tmp_path, [0.3, 0.5, 0.2, 0.45])
    for number in (1, 2):
        kept.keeper(step_of(number))
    kept.keeper.end_of_burn_in(Position(2, 0.0))
    for number in (3, 4, 5, 6):
        kept.keeper(step_of(number))
    assert step_in(tmp_path / "best.pt") == 2
    assert step_in(tmp_path / "last.pt") == 6
    assert kept.keeper.best == 0.5
    assert kept.eased == 1
    assert kept.reported == [(2, ""), (2, "burn_in"), (4, ""), (6, "")]
    [said] = kept.said
    assert "20.0 is clearly below the 50.0" in said
    verdict = kept.watch.verdict(best=kept.keeper.best, final=0.45)
    assert verdict is not None
    assert "did not help" in verdict.words(taught=True, num_images=50)


def test_the_summary_says_by_how_much_it_helped() -> None:
    said = said_of(0.402, best=0.451, final=0.449)
    assert "better with the unlabeled images: val AP 40.2" in said
    assert "45.1 at best (+4.9), 44.9 at the end" in said
    # The burn-in was shorter: by itself this does not prove what the images were worth.
    assert "the same steps on labels alone: --method supervised" in said


def test_a_gain_that_does_not_show_is_not_called_better() -> None:
    said = said_of(0.00011, best=0.00022, final=0.00021)
    assert said.startswith("no difference with the unlabeled images: val AP 0.0")
    assert "more steps" in said


def test_images_that_taught_nothing_get_no_credit() -> None:
    said = said_of(0.402, best=0.451, final=0.449, taught=False)
    assert said.startswith("the unlabeled images taught nothing: val AP 40.2")
    assert "better" not in said


@pytest.mark.parametrize(("num_images", "trusted"), [(2, False), (19, False), (20, True)])
def test_a_handful_of_validation_images_is_called_chance(num_images: int, trusted: bool) -> None:
    said = said_of(0.402, best=0.451, final=0.449, num_images=num_images)
    assert said.endswith(f"{num_images} images makes this mostly chance") is not trusted


def test_what_the_keeper_knows_survives_a_resume(tmp_path: Path) -> None:
    kept = Kept(tmp_path, [0.5, 0.4])
    kept.keeper.end_of_burn_in(Position(1, 0.0))
    kept.keeper(step_of(2))
    again = Kept(tmp_path, [0.3], resumed=load_checkpoint(tmp_path / "last.pt"))
    assert again.watch.burn_in == 0.5
    assert again.keeper.best == 0.5
    assert again.keeper.latest == kept.keeper.latest
    again.keeper.catch_up(Position(2, 0.0))  # there is nothing to catch up with
    assert again.reported == []


def test_an_evaluation_that_was_cut_short_is_made_up_for(tmp_path: Path) -> None:
    kept = Kept(tmp_path, [])  # the first evaluation dies
    with pytest.raises(StopIteration):
        kept.keeper(step_of(2))
    again = Kept(tmp_path, [0.3], resumed=load_checkpoint(tmp_path / "last.pt"))
    again.keeper.catch_up(Position(2, 0.0))
    assert again.reported == [(2, "")]
    assert step_in(tmp_path / "best.pt") == 2


def test_one_that_was_due_when_the_user_stopped_too(tmp_path: Path) -> None:
    kept = Kept(tmp_path, [])
    kept.keeper(step_of(2, stopping=True))
    again = Kept(tmp_path, [0.3], resumed=load_checkpoint(tmp_path / "last.pt"))
    again.keeper.catch_up(Position(2, 0.0))
    assert again.reported == [(2, "")]


def test_a_resumed_run_is_evaluated_as_often_as_a_whole_one(tmp_path: Path) -> None:
    """By progress: five times a run, and not once more because it was resumed."""
    kept = Kept(tmp_path, [0.1] * 9, eval_every=None)
    for number in range(1, 6):
        kept.keeper(step_of(number))
    again = Kept(
        tmp_path, [0.1] * 9, eval_every=None, resumed=load_checkpoint(tmp_path / "last.pt")
    )
    for number in range(6, 11):
        again.keeper(step_of(number))
    assert [step for step, _ in kept.reported + again.reported] == [2, 4, 6, 8, 10]


def test_weights_that_are_not_finite_replace_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path, [0.1] * 9)
    kept.keeper(step_of(1))
    kept.snapshot = lambda position: Checkpoint({}, (), {"w": torch.tensor([torch.inf])})  # type: ignore[method-assign]
    kept.keeper._snapshot = kept.snapshot
    kept.keeper(step_of(3))
    assert step_in(tmp_path / "last.pt") == 1
    assert "not finite; the one from before is still there; training goes on" in kept.said[0]


def test_a_full_disk_is_a_warning_on_the_way_and_an_error_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real full disk is in tests/test_holds.py; this is who says what."""
    kept = Kept(tmp_path, [0.1] * 9)
    kept.keeper(step_of(1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(observers, "save_checkpoint", full)
    kept.keeper(step_of(3))
    assert kept.said == [
        f"{tmp_path}/last.pt: could not be saved (No space left on device); "
        "the one from before is still there; training goes on"
    ]
    with pytest.raises(UserError, match=r"No space left.*--resume"):
        kept.keeper(step_of(3, stopping=True))
    assert step_in(tmp_path / "last.pt") == 1
