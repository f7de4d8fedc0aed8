"""Single values that a user's file holds: what is allowed, and what is wrong with the rest.

It knows no file format; each reader adds the file and the place to the problem named here.
"""

import math
import posixpath
from pathlib import PureWindowsPath

from dsl.errors import show

MAX_COORDINATE = 1e6  # pixels; no image is so large, so the number is a slip


def name_problem(name: str) -> str | None:
    """Why this is no name of a file below an image folder; None if it is one."""
    if not name or "\0" in name:
        return f"{show(name)} is no file name"
    if name.startswith("/") or (name[1:2] == ":" and PureWindowsPath(name).is_absolute()):
        return f"{show(name)} is absolute; write it relative to the image folder"
    if ".." in name and posixpath.normpath(name.replace("\\", "/")).split("/")[0] == "..":
        return f"{show(name)} leaves the image folder; write it without '..'"
    if not name.isascii() and not _encodes(name):
        return f"{show(name)} is no valid text"
    return None


def class_name_problem(name: str) -> str | None:
    """Why this is no name of a class; None if it is one."""
    if not name.strip():
        return f"{show(name)} is empty; the class needs a name"
    if not name.isascii() and not _is_text(name):
        return f"{show(name)} is no valid text"
    return None


def _is_text(name: str) -> bool:
    """Whether the name can be printed and written; half a surrogate pair cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def coordinate(text: str) -> float | None:
    """A coordinate written as text; None where it is no number, or no sensible one."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) <= MAX_COORDINATE else None


def _encodes(name: str) -> bool:
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True
