"""The same images are held out on every machine, whatever the order of the file."""

from pathlib import Path

import pytest

from dsl.data.folder import read_list
from dsl.data.splits import hold_out
from dsl.errors import UserError


def _list(tmp_path: Path, names: list[str]):
    path = tmp_path / "list.txt"
    path.write_text("\n".join(names))
    return read_list(path)


def _names(index) -> list[str]:
    return [index.names[i] for i in range(len(index))]


def test_both_sides_make_the_whole(tmp_path):
    names = [f"{i:03d}.jpg" for i in range(200)]
    train, held = hold_out(_list(tmp_path, names), 0.1, seed=3)
    assert len(held) == 20
    assert sorted(_names(train) + _names(held)) == names
    assert _names(train) == sorted(_names(train))
    assert "20 of 200" in held.notes[0]


def test_depends_on_seed_and_names_not_on_order(tmp_path):
    names = [f"{i:03d}.jpg" for i in range(200)]
    _, held = hold_out(_list(tmp_path, names), 0.1, seed=3)
    _, reverse = hold_out(_list(tmp_path, names[::-1]), 0.1, seed=3)
    _, other = hold_out(_list(tmp_path, names), 0.1, seed=4)
    assert set(_names(held)) == set(_names(reverse)) != set(_names(other))


def test_is_the_same_for_ever(tmp_path):
    _, held = hold_out(_list(tmp_path, [f"{i}.jpg" for i in range(10)]), 0.2, seed=0)
    assert _names(held) == ["7.jpg", "8.jpg"]


@pytest.mark.parametrize(("fraction", "expected"), [(0.01, (2, 1)), (0.99, (1, 2))])
def test_each_side_has_one_image(tmp_path, fraction, expected):
    train, held = hold_out(_list(tmp_path, ["a.jpg", "b.jpg", "c.jpg"]), fraction, seed=0)
    assert (len(train), len(held)) == expected


def test_what_cannot_be_divided(tmp_path):
    index = _list(tmp_path, ["a.jpg"])
    with pytest.raises(UserError, match=r"list\.txt"):
        hold_out(index, 0.5, seed=0)
    for fraction in (0, 1, -0.5, float("nan")):
        with pytest.raises(UserError, match="fraction"):
            hold_out(index, fraction, seed=0)
