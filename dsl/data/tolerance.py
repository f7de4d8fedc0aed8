"""How many bad entries a data set may have: a few are slips, many mean that something is wrong."""

from collections.abc import Sequence

_SHARE = 0.01
_COUNT = 3
NAMED = 3  # that many are named one by one


def is_too_many(count: int, total: int) -> bool:
    return count > max(_SHARE * total, _COUNT)


def account(count: int, total: int, *, what: str, examples: Sequence[str]) -> str:
    """'4 of 900 images cannot be used (a.jpg: ...; b.jpg: ...; c.jpg: ...; ...)'."""
    named = "; ".join(examples[:NAMED]) + ("; ..." if count > NAMED else "")
    return f"{count:,} of {total:,} {what} ({named})"
