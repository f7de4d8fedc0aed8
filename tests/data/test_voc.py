"""VOC folders in their usual shapes, and each slip named."""

import os
from pathlib import Path

import pytest

from dsl.data.voc import read_voc
from dsl.errors import UserError

_SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def _object(name: str = "cat", box: str = "1 2 30 40", extra: str = "") -> str:
    corners = "".join(
        f"<{key}>{value}</{key}>"
        for key, value in zip(("xmin", "ymin", "xmax", "ymax"), box.split(), strict=True)
    )
    return f"<object><name>{name}</name>{extra}<bndbox>{corners}</bndbox></object>"


def _page(*objects: str, filename: str = "a.jpg", size: str = "100 50") -> str:
    width, height = size.split()
    return (
        f"<annotation><filename>{filename}</filename><size><width>{width}</width>"
        f"<height>{height}</height></size>{''.join(objects)}</annotation>"
    )


def _root(tmp_path: Path, pages: dict[str, str], images: str = "JPEGImages") -> Path:
    (tmp_path / "Annotations").mkdir()
    (tmp_path / images).mkdir(exist_ok=True)
    for stem, text in pages.items():
        (tmp_path / "Annotations" / f"{stem}.xml").write_text(text)
        (tmp_path / images / f"{stem}.jpg").touch()
    return tmp_path


def test_boxes_count_from_one_and_hold_both_corners(tmp_path):
    difficult = "<difficult>1</difficult>"
    part = "<part><name>head</name><bndbox><xmin>9</xmin></bndbox></part>"
    objects = (_object("dog", "1 1 100 50"), _object("cat", "11 21 13.5 24", difficult + part))
    index = read_voc(_root(tmp_path, {"b": _page(filename="b.jpg"), "a": _page(*objects)}))
    assert index.classes == ("cat", "dog")
    assert index.category_ids == (1, 2)
    assert [index.names[i] for i in range(2)] == ["JPEGImages/a.jpg", "JPEGImages/b.jpg"]
    assert index.path(0).is_file()
    assert index.sizes.tolist() == [[50, 100], [50, 100]]
    found = index.annotations
    assert found.offsets.tolist() == [0, 2, 2]
    assert found.boxes.tolist() == [[0, 0, 100, 50], [10, 20, 13.5, 24]]
    assert found.labels.tolist() == [1, 0]
    assert found.ignored.tolist() == [False, True]
    assert found.areas.tolist() == [5000, 14]


@pytest.mark.parametrize("images", ["JPEGImages", "images", "Annotations"])
def test_images_are_found_whatever_their_suffix(tmp_path, images):
    _root(tmp_path, {"x1": _page(_object(), filename="x1.png")}, images)
    for path in (tmp_path, tmp_path / "Annotations"):
        index = read_voc(path)
        assert os.path.samefile(index.path(0), tmp_path / images / "x1.jpg")


def test_from_inside_the_folder(tmp_path, monkeypatch):
    _root(tmp_path, {"x1": _page(_object())})
    for inside in (tmp_path, tmp_path / "Annotations"):
        monkeypatch.chdir(inside)
        assert read_voc(Path()).path(0).is_file()


def test_the_stem_of_the_page_helps_where_its_filename_is_wrong(tmp_path):
    index = read_voc(
        _root(tmp_path, {"x1": _page(filename="image"), "x2": _page(filename="image")})
    )
    assert [index.names[i] for i in range(2)] == ["JPEGImages/x1.jpg", "JPEGImages/x2.jpg"]


def test_a_split_file_chooses_and_orders(tmp_path):
    _root(tmp_path, {stem: _page(_object(), filename=f"{stem}.jpg") for stem in "abc"})
    split = tmp_path / "ImageSets" / "Main" / "train.txt"
    split.parent.mkdir(parents=True)
    split.write_text("c\na -1\n\n")
    index = read_voc(split)
    assert [index.names[i] for i in range(2)] == ["JPEGImages/c.jpg", "JPEGImages/a.jpg"]
    for content, named in (
        ("a\na\n", "twice"),
        ("z\n", "z.xml"),
        ("\n", "empty"),
        ("a 5\n", "line 1"),
        ("../a\n", "line 1"),
    ):
        split.write_text(content)
        with pytest.raises(UserError, match=named):
            read_voc(split)


def test_given_classes_keep_their_order_and_refuse_others(tmp_path):
    _root(tmp_path, {"a": _page(_object("cat"), _object("dog"))})
    index = read_voc(tmp_path, classes=("dog", "cat", "cow"))
    assert index.classes == ("dog", "cat", "cow")
    assert index.annotations.labels.tolist() == [1, 0]
    with pytest.raises(UserError, match="'cat'"):
        read_voc(tmp_path, classes=("dog",))


def test_unknown_sizes_clip_at_zero_only(tmp_path):
    _root(tmp_path, {"a": _page(_object(box="0 1 900 900"), size="0 0")})
    index = read_voc(tmp_path)
    assert index.size(0) is None
    assert index.annotations.boxes.tolist() == [[0, 0, 900, 900]]


@pytest.mark.parametrize("box", ["5 5 5 20", "5 5 20 5", "20 5 5 20", "101 5 120 20"])
def test_empty_boxes_are_dropped_and_named(tmp_path, box):
    _root(tmp_path, {"a": _page(_object(box=box), _object())})
    index = read_voc(tmp_path)
    assert len(index.annotations.boxes) == 1
    assert "1 of 2 boxes" in index.notes[0]
    assert "a.xml object[0]" in index.notes[0]


def test_many_empty_boxes_are_an_error(tmp_path):
    _root(tmp_path, {"a": _page(*[_object(box="5 5 5 5")] * 4)})
    with pytest.raises(UserError, match="4 of 4"):
        read_voc(tmp_path)


_BOMB = '<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;">]><annotation>&c;</annotation>'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "XML"),
        ("<annotation>", "XML"),
        ("no xml", "XML"),
        (_BOMB, "DOCTYPE"),
        ('<!DOCTYPE annotation SYSTEM "x.dtd"><annotation/>', "DOCTYPE"),
        ('<?xml version="1.0" encoding="nonsense"?><annotation/>', "XML"),
        ("<other/>", "other"),
        (_page(_object(name=" ")), "object[0]"),
        (_page(_object(), "<object><name>cat</name></object>"), "object[1]"),
        (_page(_object(box="1 2 3 x")), "ymax"),
        (_page(_object(box="nan 2 3 4")), "xmin"),
        (_page(_object(box="1 inf 3 4")), "ymin"),
        (_page(_object(box="1 2 3e6 4")), "xmax"),
        (_page(_object(extra="<difficult>maybe</difficult>")), "difficult"),
        (_page(size="100 -50"), "height"),
        (_page(size="wide 50"), "width"),
        (_page(filename="/abs/a.jpg"), "/abs/a.jpg"),
        (_page(filename="../a.jpg"), "../a.jpg"),
    ],
)
def test_each_slip_is_named(tmp_path, text, named):
    _root(tmp_path, {"a": text})
    with pytest.raises(UserError) as caught:
        read_voc(tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "Annotations" / "a.xml") in message
    assert named in message
    assert "\n" not in message


def test_two_pages_of_one_image(tmp_path):
    _root(tmp_path, {"a": _page(), "b": _page()})
    with pytest.raises(UserError, match=r"b\.xml.*a\.xml"):
        read_voc(tmp_path)


def test_a_folder_without_pages(tmp_path):
    with pytest.raises(UserError, match="no XML"):
        read_voc(tmp_path)


def test_real_set():
    folder = _SHARED / "bccd" / "annotations_voc"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent")
    index = read_voc(folder)
    assert index.classes == ("Platelets", "RBC", "WBC")
    assert len(index) == len(list(folder.glob("*.xml")))
    assert index.path(0).is_file()
    first = index.annotations[0]
    assert first.boxes[0].tolist() == [259, 176, 491, 376]
    assert first.labels[0] == 2


def test_gathered_classes_are_not_declared(tmp_path):
    """So that a validation set without one of the classes is not refused."""
    (tmp_path / "a.xml").write_text(
        "<annotation><object><name>cat</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>4</xmax>"
        "<ymax>4</ymax></bndbox></object></annotation>"
    )
    assert not read_voc(tmp_path).classes_declared
    assert read_voc(tmp_path, classes=["cat", "dog"]).classes_declared
