"""Equal files are told by path and by content; large sets are sampled, and that is said."""

import os
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from dsl.data.folder import read_folder, read_list
from dsl.doctor import contents, overlap
from dsl.doctor.contents import Files, cache_folder, digests, spaced
from dsl.doctor.overlap import compare


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder: Path, files: dict[str, bytes]) -> Files:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return Files(read_folder(folder))


def test_equal_names_in_other_folders_prove_nothing(tmp_path: Path) -> None:
    first = write(tmp_path / "a", {"0.png": b"one", "1.png": b"two"})
    second = write(tmp_path / "b", {"0.png": b"six", "2.png": b"two"})
    common = compare(first, second)
    assert common.by_path == ()
    assert common.by_content == (1,)  # "two", under another name


def test_a_difference_beyond_the_head_is_told_by_the_size(tmp_path: Path) -> None:
    head = bytes(contents.HEAD)
    first = write(tmp_path / "a", {"0.png": head + b"1", "1.png": head})
    second = write(tmp_path / "b", {"0.png": head + b"12"})
    assert compare(first, second).by_content == ()


def test_the_same_file_by_other_ways_is_one_path(tmp_path: Path) -> None:
    write(tmp_path / "a", {"x/0.png": b"one"})
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "list.txt").write_text(f"a/./x//0.png\n{tmp_path}/a/x/1.png\n")
    listed, linked = Files(read_list(tmp_path / "list.txt")), Files(read_folder(tmp_path / "link"))
    assert compare(listed, linked).by_path == (0,)


def test_absent_files_are_compared_by_path_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0.png\n1.png\n")
    (tmp_path / "b.txt").write_text("1.png\n2.png\n")
    one, other = (Files(read_list(tmp_path / f"{name}.txt")) for name in "ab")
    common = compare(one, other)
    assert (common.by_path, common.by_content) == ((1,), ())


def test_empty_files_are_no_images(tmp_path: Path) -> None:
    assert compare(
        write(tmp_path / "a", {"0.png": b""}), write(tmp_path / "b", {"1.png": b""})
    ).by_content == ()  # fmt: skip


def test_a_large_set_is_sampled_but_equal_names_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap, "MAX_HASHED", 4)
    one = {f"{n}.png": bytes([n]) + bytes(n) for n in range(40)}
    other = {f"other{n}.png": bytes([n + 100]) + bytes(n) for n in range(40)}
    del other["other17.png"]
    first = write(tmp_path / "a", one)
    second = write(tmp_path / "b", {**other, "17.png": one["17.png"]})
    common = compare(first, second)
    assert [first.paths[p] for p in common.by_content] == [os.fsencode(tmp_path / "a/17.png")]
    assert (common.compared, common.sizes) == (4, 40)


def test_digests_are_kept_and_follow_the_file(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "x.png")
    (tmp_path / "x.png").write_bytes(b"one")
    first = digests([path])[path]
    [(kept,)] = sqlite3.connect(cache_folder() / "doctor.sqlite").execute(
        "SELECT digest FROM digests"
    )
    assert kept == first
    (tmp_path / "x.png").write_bytes(b"another")
    assert digests([path])[path] != first
    assert digests([os.fsencode(tmp_path / "absent.png")]) == {}


def test_the_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.fsencode(tmp_path / "x.png")
    (tmp_path / "x.png").write_bytes(b"one")
    first = digests([path])
    monkeypatch.setattr(contents, "_digest", lambda path: pytest.fail("read again"))
    assert digests([path]) == first


@pytest.mark.parametrize("obstacle", ["a file where the folder should be", "a damaged cache"])
def test_no_cache_is_no_obstacle(tmp_path: Path, obstacle: str) -> None:
    (tmp_path / "x.png").write_bytes(b"one")
    if obstacle.startswith("a file"):
        (tmp_path / "cache").write_text("")
    else:
        cache_folder().mkdir(parents=True)
        (cache_folder() / "doctor.sqlite").write_bytes(b"no database" * 1000)
    assert len(digests([os.fsencode(tmp_path / "x.png")])) == 1


def test_spaced_positions() -> None:
    assert spaced(3, 5).tolist() == [0, 1, 2]
    assert spaced(9, 3).tolist() == [1, 4, 7]
    assert len(spaced(9, 0)) == len(spaced(0, 4)) == 0
    assert np.unique(spaced(1001, 1000)).size == 1000
