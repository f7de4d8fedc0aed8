"""A row of `make reliability`: what was tried, how often it survived, and what was lost."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One kind of trouble."""

    case: str
    tries: int
    survived: int
    lost: str  # in words, e.g. "at most 1 step"

    def __post_init__(self) -> None:
        if not 0 <= self.survived <= self.tries:
            raise ValueError(f"{self.case}: {self.survived} of {self.tries} survived")
