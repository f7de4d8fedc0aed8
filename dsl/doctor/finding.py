"""What a check says: one line, how grave it is, and what to do about it."""

from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table. What is not ok says how to mend it."""

    level: Level
    check: str
    message: str
    fix: str = ""

    def __post_init__(self) -> None:
        if self.level not in get_args(Level):
            raise ValueError(f"level: {self.level!r} is none of {', '.join(get_args(Level))}")
        if self.level != "ok" and not self.fix:
            raise ValueError(f"{self.check}: a {self.level} needs a fix")


def listed(things: list[str], most: int = 5) -> str:
    """The first few, and how many more there are."""
    rest = len(things) - most
    return ", ".join(things[:most]) + (f" and {rest} more" if rest > 0 else "")
