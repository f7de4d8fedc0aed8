"""Mean, spread and gap closure, and the pages made of them."""

import math
from pathlib import Path

import pytest

from dsl.bench.cells import Cell
from dsl.bench.pages import markdown, plot, put_into
from dsl.bench.summary import paper_closure, summarise
from dsl.errors import UserError


def cell(arm: str, percent: float, seed: int, ap: float, **more: object) -> Cell:
    values = {
        "key": "k", "data": "digits", "arm": arm, "percent": percent, "seed": seed, "steps": 100,
        "seconds": 60.0, "test_ap": ap, "test_ap50": ap + 10, "val_ap": ap, "teaching": None,
    }  # fmt: skip
    return Cell(**(values | more))  # type: ignore[arg-type]


CELLS = [
    cell("supervised", 10, 0, 30.0),
    cell("supervised", 100, 0, 80.0),
    cell("dsl", 10, 0, 70.0, teaching={"precision": 0.9, "recall": None}),
    cell("supervised", 10, 1, 40.0),
    cell("supervised", 100, 1, 80.0),
    cell("dsl", 10, 1, 60.0, teaching={"precision": 0.7, "recall": 0.5}),
]


def test_closure_is_taken_seed_by_seed_and_then_averaged() -> None:
    few, everything, taught = summarise(CELLS)
    assert (few.mean, everything.mean, taught.mean) == (35.0, 80.0, 65.0)
    # (70 - 30) / 50 = .8 and (60 - 40) / 40 = .5; the closure of the means would be .667.
    assert taught.closures == pytest.approx((0.8, 0.5))
    assert taught.closure == pytest.approx(0.65)
    assert few.closure is None
    assert few.spread == pytest.approx(math.sqrt(50))  # standard deviation of 30 and 40


def test_closure_needs_both_ends_of_the_gap() -> None:
    [row] = summarise([cell("dsl", 10, 0, 70.0)])
    assert row.closure is None
    assert row.spread == 0.0
    _, _, row = summarise(
        [cell("supervised", 10, 0, 50), cell("supervised", 100, 0, 50), cell("dsl", 10, 0, 60)]
    )
    assert row.closure is None  # no gap to close


def test_figures_of_pseudo_labels_skip_what_was_not_measured() -> None:
    row = summarise(CELLS)[2]
    assert row.taught("precision") == pytest.approx(0.8)
    assert row.taught("recall") == 0.5
    assert row.taught("rejected") is None


def test_one_seed_has_no_spread() -> None:
    both = [cell("dsl", 10, 0, 70.0), cell("dsl", 10, 1, 60.0)]
    assert [row.shown for row in summarise(both[:1])] == ["70.0"]
    assert [row.shown for row in summarise(both)] == ["65.0 ± 7.1"]


def test_the_papers_gap_closure_at_ten_percent() -> None:
    assert paper_closure(10) == pytest.approx(0.76, abs=0.005)
    assert paper_closure(7) is None


def test_markdown_says_every_seed_and_the_command() -> None:
    text = markdown(summarise(CELLS), command="dsl bench out")
    assert "    dsl bench out" in text
    assert (
        "| dsl | 10 % | 65.0 ± 7.1 | 70.0, 60.0 | 75.0 | 0.65 | 36.2 (0.76) | 0.80 | 0.50 |" in text
    )
    assert "100 optimizer steps in every arm" in text


def test_the_papers_ablations_stand_beside_ours_at_its_share() -> None:
    rows = summarise(
        [cell("single-2", 10, 0, 50), cell("alpha-4", 10, 0, 50), cell("single-2", 5, 0, 50)]
    )
    text = markdown(rows, command="x")
    assert "| single-2 | 10 % | 50.0 | 50.0 | 60.0 |  | 30.7 |" in text
    assert "| alpha-4 | 10 % | 50.0 | 50.0 | 60.0 |  | diverges |" in text
    assert "| single-2 | 5 % | 50.0 | 50.0 | 60.0 |  |  |" in text


def test_a_plot_is_written(tmp_path: Path) -> None:
    plot(summarise(CELLS), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5_000


def test_a_page_keeps_what_stands_around_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench digits -->\nold\n<!-- end -->\nafter <!-- end -->\n")
    put_into(page, "digits", r"new \1 table" + "\n")
    expected = "before\n<!-- bench digits -->\nnew \\1 table\n<!-- end -->\nafter <!-- end -->\n"
    assert page.read_text() == expected
    with pytest.raises(UserError, match="bench bccd"):
        put_into(page, "bccd", "x")
