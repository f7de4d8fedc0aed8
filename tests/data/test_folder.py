"""Folders and lists of images, in a fixed order and whatever lies beside them."""

import time
from pathlib import Path

import pytest

from dsl.data.folder import read_folder, read_list
from dsl.errors import UserError


def _touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def _names(index) -> list[str]:
    return [index.names[i] for i in range(len(index))]


def test_images_below_the_folder_sorted(tmp_path):
    _touch(tmp_path, "b.JPG", "a.png", "sub/x/c.webp", "sub/d.jpeg", "e.tif", "f.TIFF", "g.bmp")
    _touch(tmp_path, ".hidden.jpg", ".git/h.jpg", "notes.txt", "jpg", "sub/._c.jpg")
    (tmp_path / "folder.jpg").mkdir()
    index = read_folder(tmp_path)
    expected = ["a.png", "b.JPG", "e.tif", "f.TIFF", "g.bmp", "sub/d.jpeg", "sub/x/c.webp"]
    assert _names(index) == expected
    assert index.annotations is None
    assert index.classes == ()
    assert index.sizes.tolist() == [[0, 0]] * 7
    assert all(index.path(i).is_file() for i in range(7))


def test_links_are_followed_once(tmp_path):
    _touch(tmp_path, "set/a.jpg", "elsewhere/b.jpg")
    (tmp_path / "set" / "loop").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "elsewhere")
    assert _names(read_folder(tmp_path / "set")) == ["a.jpg", "linked/b.jpg"]


def test_names_that_are_not_utf8(tmp_path):
    Path(str(tmp_path / "a") + "\udcff.jpg").touch()
    index = read_folder(tmp_path)
    assert index.path(0).is_file()


def test_an_empty_and_an_absent_folder(tmp_path):
    with pytest.raises(UserError, match="holds no images"):
        read_folder(tmp_path)
    with pytest.raises(UserError, match="absent"):
        read_folder(tmp_path / "absent")


def test_a_list_is_relative_to_its_folder_or_absolute(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("sub/a.jpg\n\n/data/b.png\r\n  ../c d.jpg  \n")
    index = read_list(path)
    assert _names(index) == ["sub/a.jpg", "/data/b.png", "../c d.jpg"]
    assert index.path(0) == tmp_path / "sub/a.jpg"
    assert index.path(1) == Path("/data/b.png")
    assert index.annotations is None


@pytest.mark.parametrize("content", [b"", b"\n\n", b"a.jpg\nb.gif2\n", b"a.jpg 1\n", b"a\0.jpg\n"])
def test_bad_lists_are_named(tmp_path, content):
    path = tmp_path / "list.txt"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_list(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_absent_list(tmp_path):
    with pytest.raises(UserError, match=r"absent\.txt"):
        read_list(tmp_path / "absent.txt")


def test_a_long_list_opens_fast(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("".join(f"folder/{i:09d}.jpg\n" for i in range(100_000)))
    start = time.process_time()
    assert len(read_list(path)) == 100_000
    assert time.process_time() - start < 3
