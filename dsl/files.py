"""A user's file before it is opened: a regular one, and no larger than its kind can be.

Opening a pipe waits for ever, a device never ends, and a small download can unfold to gigabytes. It
knows no format and imports no torch.
"""

import os
import stat
from pathlib import Path

from dsl.errors import UserError

MEGABYTE = 1 << 20
GIGABYTE = 1 << 30


def check_file(path: str | Path, *, limit: int) -> None:
    """Refuse what is no regular file (links are followed) or has more than `limit` bytes.

    An absent or forbidden file raises the usual OSError: the caller knows what it was looking for.
    """
    state = os.stat(path)
    if not stat.S_ISREG(state.st_mode):
        raise UserError(f"{path}: is {_kind(state.st_mode)}, not a regular file")
    if state.st_size > limit:
        raise UserError(
            f"{path}: has {state.st_size:,} bytes; more than {limit:,} are refused, so split it"
        )


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
