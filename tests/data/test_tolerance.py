"""A few bad entries pass, many do not."""

import pytest

from dsl.data.tolerance import account, is_too_many


@pytest.mark.parametrize(
    ("count", "total", "expected"),
    [(0, 0, False), (3, 3, False), (4, 4, True), (4, 400, False), (4, 399, True), (11, 1000, True)],
)
def test_limit(count, total, expected):
    assert is_too_many(count, total) == expected


def test_account_names_the_first_few():
    text = account(4, 900, what="images are bad", examples=["a", "b", "c", "d"])
    assert text == "4 of 900 images are bad (a; b; c; ...)"
    assert account(1, 9, what="x", examples=["a"]) == "1 of 9 x (a)"
