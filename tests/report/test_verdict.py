"""The words at the top: right, and no stronger than the seeds allow."""

from pathlib import Path

import pytest
from made_run import make_run

from dsl.report.run_folder import Run, read_run
from dsl.report.verdict import headline_of


def runs(folder: Path, *kinds: tuple[str, int, float, int]) -> list[Run]:
    """(method, seed, ap, labeled images) each."""
    return [
        read_run(make_run(folder / f"{m}-{n}-{s}", method=m, seed=s, ap=ap, labeled=n))
        for m, s, ap, n in kinds
    ]


def test_gain_spread_and_gap_closure_over_seeds(tmp_path: Path) -> None:
    headline = headline_of(runs(
        tmp_path, ("dsl", 0, 0.6, 10), ("dsl", 1, 0.7, 10), ("supervised", 0, 0.5, 10),
        ("supervised", 1, 0.5, 10), ("supervised", 0, 0.9, 100), ("supervised", 1, 0.9, 100),
    ))  # fmt: skip
    assert "helped" in headline.verdict
    assert "every one of 2 seeds" in headline.verdict
    assert headline.gain == pytest.approx(0.15)
    assert headline.remarks == ("Gain over 2 seeds: +10.0 to +20.0 AP.",)
    assert headline.gap is not None
    assert headline.gap.closure == pytest.approx(0.15 / 0.4)
    assert [arm.name for arm in headline.arms] == [
        "DSL, 10 labels", "Supervised, 10 labels", "Supervised, 100 labels",
    ]  # fmt: skip
    assert [len(arm.runs) for arm in headline.arms] == [2, 2, 2]


def test_one_seed_says_that_the_spread_is_unknown(tmp_path: Path) -> None:
    headline = headline_of(runs(tmp_path, ("supervised", 0, 0.5, 10), ("dsl", 0, 0.6, 10)))
    assert "helped" in headline.verdict
    assert "not known" in headline.remarks[0]
    assert headline.gap is None


@pytest.mark.parametrize(
    ("aps", "word"),
    [((0.4,), "harm"), ((0.505,), "No clear difference"), ((0.6, 0.4), "seeds disagree"),
     ((0.4, 0.3), "harm")],
)  # fmt: skip
def test_harm_and_doubt_are_said_plainly(tmp_path: Path, aps: tuple[float, ...], word: str) -> None:
    taught = [("dsl", seed, ap, 10) for seed, ap in enumerate(aps)]
    plain = [("supervised", seed, 0.5, 10) for seed in range(len(aps))]
    assert word in headline_of(runs(tmp_path, *taught, *plain)).verdict


def test_runs_on_other_labels_are_not_compared(tmp_path: Path) -> None:
    headline = headline_of(runs(tmp_path, ("dsl", 0, 0.6, 10), ("supervised", 0, 0.5, 99)))
    assert "cannot be compared" in headline.verdict
    assert headline.gain is None


def test_one_run_alone_says_what_it_has(tmp_path: Path) -> None:
    [run] = runs(tmp_path, ("dsl", 0, 0.6, 10))
    headline = headline_of([run])
    assert headline.verdict == "Validation AP 60.0."
    assert headline.remarks[0].startswith("AP 20.0 at the last evaluation before teaching")
    unfinished = make_run(tmp_path / "half", method="supervised", finished=False)
    assert "so far" in headline_of([read_run(unfinished)]).verdict
    (unfinished / "log.jsonl").write_text("")
    assert headline_of([read_run(unfinished)]).verdict == "No evaluation yet."


def test_seeds_of_one_method(tmp_path: Path) -> None:
    headline = headline_of(runs(tmp_path, ("dsl", 0, 0.6, 10), ("dsl", 1, 0.5, 10)))
    assert "Over 2 seeds: 50.0 to 60.0." in headline.verdict
