"""Whatever the window cuts, the stream equals json.loads, and no bad file passes."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsl.data.json_stream import Elements, stream_object
from dsl.errors import UserError

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
_RECORDS = st.lists(st.fixed_dictionaries({"id": st.integers(), "x": _VALUES}), max_size=12)
_DOCUMENTS = st.dictionaries(st.text(max_size=6), _VALUES | _RECORDS, max_size=5)


def _load(path: Path, **options: object) -> dict[str, object]:
    return {
        key: list(value) if isinstance(value, Elements) else value
        for key, value in stream_object(path, **options)
    }


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(_DOCUMENTS, st.integers(1, 90), st.sampled_from([None, 2]), st.booleans())
def test_equals_json_loads(document, window, indent, ascii_only):
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.json"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            with pytest.raises(UserError):
                _load(path, window=window)
        else:
            assert _load(path, window=window) == document


@pytest.mark.parametrize("window", range(1, 70))
def test_numbers_and_literals_are_never_cut(tmp_path, window):
    text = (
        '{"a": [1234567890, 1.5e+10, -0.25, true, false, null, "\\ud83d\\ude00",'
        ' "\u00e9\U0001f600"],'
        ' "b": 12345.678, "c": [], "d": {}, "e": [[1, 2], [3]], "f": [{"k": 1}, {"k": 2.5}]}\n'
    )
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")
    assert _load(path, window=window) == json.loads(text)


def test_a_byte_order_mark_is_passed(tmp_path):
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert _load(tmp_path / "a.json") == {"a": 1}


def test_what_is_left_of_an_array_is_skipped(tmp_path):
    (tmp_path / "a.json").write_text('{"a": [{"i": 1}, {"i": 2}], "b": 3}')
    assert [key for key, _ in stream_object(tmp_path / "a.json")] == ["a", "b"]


@pytest.mark.parametrize("window", [1, 7, 30, 64, 1000, 1 << 16])
def test_skipped_polygons_come_empty_and_nothing_else_does(tmp_path, window):
    records = [
        {"p": [[1.5, 2], [3, 4]], "id": 1},
        {"p": [], "id": 2, "q": [[5, 6]]},
        {"p": {"counts": [1, 2], "size": [3, 4]}, "id": 3},
        {"note": 'a "p": [[1, 2]] inside', "id": 4, "p": [[7]]},
        {'tricky"p': [[8, 9]], "id": 5, "p": [["text"]]},
    ]
    (tmp_path / "a.json").write_text(json.dumps({"a": records}))
    loaded = _load(tmp_path / "a.json", skip="p", window=window)["a"]
    records[0]["p"] = records[3]["p"] = []
    assert loaded == records


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"   ",
        b"[1, 2]",
        b"12",
        b'"text"',
        b"{",
        b'{"a"',
        b'{"a":',
        b'{"a": ',
        b'{"a": 1',
        b'{"a": 1,',
        b'{"a": [',
        b'{"a": [1',
        b'{"a": [1,',
        b'{"a": [{"b": 1}, {"b": ',
        b'{"a": [{"b": "long',
        b'{"a": 1} x',
        b'{"a": 1}}',
        b'{"a": [1,]}',
        b'{"a": [,1]}',
        b'{"a": [{"b": 1},, {"b": 2}]}',
        b'{"a": [{"b": 1} {"b": 2}]}',
        b'{"a": 1,}',
        b"{a: 1}",
        b"{'a': 1}",
        b'{"a": 01}',
        b'{"a": tru}',
        b'{"a" 1}',
        b'{"a": 1 "b": 2}',
        b'{"a": 1, "a": 2}',
        b'{"a": "\xff"}',
        b'{"a": "\xe2\x82',
        '{"a": 1}'.encode("utf-16"),
        b'{"a": ' + b"[" * 100_000,
        b'{"a": [' + b'{"a":' * 100_000,
        b'{"a": ' + b"9" * 10_000 + b"}",
        b"\x89PNG\r\n\x1a\n\0\0",
    ],
)
@pytest.mark.parametrize("window", [5, 1 << 16])
def test_bad_files_are_refused_in_one_line(tmp_path, content, window):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        _load(path, window=window)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_absent_file_and_folder(tmp_path):
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(UserError, match=str(path)):
            _load(path)


def test_a_broken_start_is_refused_without_reading_on(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": [{"x": 1 2}, ' + '{"x": 1}, ' * 100_000)
    with pytest.raises(UserError, match=r"near character 1[0-9]:"):
        _load(path, window=1000)
