"""Randomness is a function of (seed, stream, position), and epochs are permutations."""

from itertools import pairwise

import pytest

from dsl.randomness import generator, key_of, shuffled


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 1000, 1025])
def test_each_epoch_shows_every_item_once(count: int) -> None:
    for epoch in range(3):
        positions = range(epoch * count, (epoch + 1) * count)
        drawn = [shuffled(p, count, seed=5, stream="labeled") for p in positions]
        assert sorted(drawn) == list(range(count))


def test_epochs_seeds_and_streams_differ() -> None:
    def order(seed: int, stream: str, epoch: int) -> list[int]:
        return [shuffled(p + 50 * epoch, 50, seed=seed, stream=stream) for p in range(50)]

    orders = [order(0, "a", 0), order(0, "a", 1), order(1, "a", 0), order(0, "b", 0)]
    assert len({tuple(o) for o in orders}) == 4
    assert all(o != list(range(50)) for o in orders)


def test_a_shuffle_mixes_well() -> None:
    """Neighbours in the stream are not neighbours in the set."""
    count = 10_000
    drawn = [shuffled(p, count, seed=0, stream="x") for p in range(1000)]
    steps = [abs(a - b) for a, b in pairwise(drawn)]
    assert sum(steps) / len(steps) == pytest.approx(count / 3, rel=0.1)
    assert sum(drawn) / len(drawn) == pytest.approx(count / 2, rel=0.1)


def test_a_sample_is_the_same_whenever_it_is_drawn() -> None:
    first = generator(3, "labeled", 77).random(4).tolist()
    generator(3, "labeled", 78).random(100)
    assert generator(3, "labeled", 77).random(4).tolist() == first
    assert generator(3, "labeled", 78).random(4).tolist() != first


def test_keys_are_the_same_on_every_machine() -> None:
    assert key_of(0, "labeled", 1) == 6476500638890000236
