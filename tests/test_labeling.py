"""Bars and ranking on detections whose order is known."""

import csv
import io

import pytest
import torch

from dsl.labeling import (
    Bars,
    Proposal,
    doubt,
    known_shares,
    rank,
    ranking_csv,
    to_annotations,
)
from dsl.types import Detections

BARS = Bars.of(torch.tensor([0.6, 0.4, 0.15, 0.05]))


def found(*pairs: tuple[float, int]) -> Detections:
    """Detections of these scores and labels."""
    return Detections(
        torch.tensor([[0.0, 0.0, 2.0 + i, 3.0] for i in range(len(pairs))]).reshape(-1, 4),
        torch.tensor([score for score, _ in pairs]),
        torch.tensor([label for _, label in pairs], dtype=torch.int64),
    )


def test_the_lower_bar_is_half_but_never_noise_nor_above_the_other() -> None:
    assert BARS.uncertain.tolist() == pytest.approx([0.3, 0.2, 0.1, 0.05])
    with pytest.raises(ValueError, match="bars"):
        Bars(torch.tensor([0.2]), torch.tensor([0.3]))


def test_boxes_are_certain_uncertain_or_dropped() -> None:
    proposal = Proposal.of(found((0.6, 0), (0.59, 0), (0.3, 0), (0.29, 0), (0.05, 3)), BARS)
    assert proposal.detections.scores.tolist() == pytest.approx([0.6, 0.59, 0.3, 0.05])
    assert proposal.uncertain.tolist() == [False, True, True, False]


def test_doubt_is_one_bit_at_the_bar_and_none_at_the_ends() -> None:
    bar = torch.tensor(0.4)
    bits = doubt(torch.tensor([0.0, 0.2, 0.4, 0.7, 1.0]), bar)
    assert bits[2] == pytest.approx(1)
    assert bits[[0, 4]].tolist() == pytest.approx([0, 0], abs=1e-4)
    assert bits[1] == pytest.approx(0.8113, abs=1e-4)  # entropy of odds 1 to 3
    assert bits[3] == pytest.approx(0.8113, abs=1e-4)


def test_doubtful_images_come_first_and_empty_ones_last() -> None:
    images = [
        found(),
        found((0.99, 0)),
        found((0.5, 0), (0.55, 0)),
        found((0.5, 0), (0.55, 1)),
        found(),
    ]
    ranked = rank([Proposal.of(each, BARS) for each in images], BARS)
    assert [each.position for each in ranked] == [3, 2, 1, 0, 4]
    assert [each.num_uncertain for each in ranked] == [1, 2, 0, 0, 0]
    assert ranked[0].class_entropy == pytest.approx(1)
    assert ranked[0].least_known == (0,)
    assert ranked[-1].bits == 0


def test_a_class_that_is_hardly_known_counts_more() -> None:
    easy = [Proposal.of(found((0.9, 1)), BARS) for _ in range(9)]
    one = Proposal.of(found((0.39, 1)), BARS)  # the tenth of its class
    other = Proposal.of(found((0.585, 0)), BARS)  # the only one of its class; equal doubt
    proposals = [*easy, one, other]
    assert known_shares(proposals, num_classes=4).tolist() == pytest.approx([0, 0.9, 0, 0])
    first, second = rank(proposals, BARS)[:2]
    assert (first.position, second.position) == (10, 9)
    assert first.bits == pytest.approx(2 * second.bits / 1.1, rel=1e-3)


def test_proposals_as_labels() -> None:
    images = [found((0.7, 0), (0.5, 0)), found(), found((0.2, 1))]
    annotations, scores = to_annotations([Proposal.of(each, BARS) for each in images])
    assert annotations.offsets.tolist() == [0, 2, 2, 3]
    assert annotations.ignored.tolist() == [False, True, True]
    assert annotations.areas.tolist() == [6, 9, 6]
    assert scores.tolist() == pytest.approx([0.7, 0.5, 0.2])
    nothing, no_scores = to_annotations([])
    assert len(nothing) == len(no_scores) == 0


def test_the_table_survives_awkward_names() -> None:
    proposals = [Proposal.of(found((0.5, 0)), BARS), Proposal.of(found(), BARS)]
    text = ranking_csv(
        rank(proposals, BARS), ['a,"b".png', "c.png"], classes=["x, y", "z", "u", "v"]
    )
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["image"] for row in rows] == ['a,"b".png', "c.png"]
    assert [row["rank"] for row in rows] == ["1", "2"]
    assert rows[0]["least_known"] == "x, y"
    assert rows[0]["uncertain"] == "1"
