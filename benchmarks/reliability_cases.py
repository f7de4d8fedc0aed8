"""One line of the reliability table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """Something that was tried so many times, how often it held, and what was lost where not."""

    case: str
    tries: int
    survived: int
    lost: str
