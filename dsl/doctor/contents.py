"""Tell equal image files without decoding them: file size and a hash of the first 64 KB.

Digests are kept in the user's cache folder, under the path, time and size of the file; nothing is
ever written next to the user's data. Without a writable cache all is computed anew.
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dsl.data.index import Index

HEAD = 64 * 1024  # bytes of each file that are hashed
MAX_STAT = 200_000  # files of a set whose size is looked up: a million would take minutes on a NAS
ABSENT = -1
_THREADS = 8


class Files:
    """The files of a set: absolute paths at once, sizes when first asked for."""

    def __init__(self, index: Index) -> None:
        self.paths = list(_absolute(index))

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(N,) bytes; ABSENT where there is no file or where it was not looked up."""
        sizes = np.full(len(self.paths), ABSENT, np.int64)
        for position in spaced(len(self.paths), MAX_STAT):
            try:
                sizes[position] = os.stat(self.paths[position]).st_size
            except OSError:
                continue
        return sizes


def spaced(count: int, most: int) -> NDArray[np.int64]:
    """All positions, or `most` of them, evenly spaced."""
    if count <= most:
        return np.arange(count)
    return (2 * np.arange(most) + 1) * count // (2 * most)


def _absolute(index: Index) -> Iterator[bytes]:
    """Paths as bytes, each normal: a million of them in a second."""
    root = os.fsencode(index.root.resolve())
    text, ends = index.names.text.numpy().tobytes(), index.names.offsets.tolist()
    for start, end in pairwise(ends):
        path = os.path.join(root, text[start:end])
        yield os.path.normpath(path) if b"/." in path or b"//" in path else path


def digests(paths: Sequence[bytes]) -> Mapping[bytes, bytes]:
    """Path to digest, of the files that can be read."""
    keys = {path: key for path in paths if (key := _key(path)) is not None}
    with closing(_open_cache()) as cache:
        known = {path: kept for path, key in keys.items() if (kept := _look_up(cache, key))}
        rest = [path for path in keys if path not in known]
        with ThreadPoolExecutor(_THREADS) as pool:
            made = zip(rest, pool.map(_digest, rest), strict=True)
            fresh = {path: digest for path, digest in made if digest is not None}
        rows = [(keys[path], digest) for path, digest in fresh.items()]
        try:
            with cache:
                cache.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?)", rows)
        except sqlite3.Error:  # a full disk or another doctor at work: next time it is read again
            pass
    return {**known, **fresh}


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsl"


def _key(path: bytes) -> bytes | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    told = b"%b\0%d\0%d" % (path, state.st_mtime_ns, state.st_size)
    return blake2b(told, digest_size=16).digest()


def _digest(path: bytes) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return blake2b(file.read(HEAD), digest_size=16).digest()
    except OSError:
        return None


def _open_cache() -> sqlite3.Connection:
    table = "CREATE TABLE IF NOT EXISTS digests (key BLOB PRIMARY KEY, digest BLOB)"
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        cache = sqlite3.connect(cache_folder() / "doctor.sqlite")
        cache.execute(table)
    except (OSError, sqlite3.Error):  # a home that cannot be written, a damaged cache
        cache = sqlite3.connect(":memory:")
        cache.execute(table)
    return cache


def _look_up(cache: sqlite3.Connection, key: bytes) -> bytes | None:
    try:
        row = cache.execute("SELECT digest FROM digests WHERE key = ?", (key,)).fetchone()
    except sqlite3.Error:
        return None
    return bytes(row[0]) if row else None
