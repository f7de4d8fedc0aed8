"""Read a JSON object from a file piece by piece, so that a long array never exists as a whole.

The text passes through a small window, and the standard library's C scanner reads from it
as many elements as it holds. It knows JSON only, nothing of what the keys mean.
"""

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NoReturn

from dsl.errors import UserError
from dsl.files import GIGABYTE, MEGABYTE, check_file

# bytes; larger ones are slower: the objects of one window then reach the garbage collector
WINDOW = 1 << 16

MAX_FILE = 8 * GIGABYTE  # Objects365, the largest public set, has 3
_MAX_VALUE = 64 * MEGABYTE  # characters of one element; a mask of a large image has a few

# A number or literal that ends this close to the window's end may go on behind it: 12|5, 1.|5,
# 1e+|5, -Infi|nity, \ud8|3d.
_MARGIN = 32
_SPACE = re.compile(r"[ \t\n\r]*")
_OPENING = re.compile(r'\{[ \t\n\r]*"[^"\\]*"')  # of an object, with its first key
_DECODER = json.JSONDecoder()


class Elements:
    """The elements of one array, each read when it is asked for, and only once."""

    def __init__(self, elements: Iterator[object]) -> None:
        self._elements = elements

    def __iter__(self) -> Iterator[object]:
        return self._elements


def stream_object(
    path: Path, *, skip: str = "", window: int = WINDOW
) -> Iterator[tuple[str, object]]:
    """The keys of the top-level object with their values, in the order of the file.

    An array comes as `Elements`, which must be read before the next key is asked for (what is left
    of it is skipped then); anything else comes as its value. Arrays of arrays of numbers under the
    key `skip` may come as [], at any depth: COCO's polygons would take most of the time.
    """
    try:
        check_file(path, limit=MAX_FILE)
        with path.open("rb") as stream:
            yield from _object(_Window(path, stream, size=window, skip=skip))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def _object(text: "_Window") -> Iterator[tuple[str, object]]:
    if text.peek() != "{":
        text.fail(f"expected an object, '{{...}}', at the top, found {text.peek() or 'nothing'!r}")
    text.position += 1
    seen: set[str] = set()
    more = text.peek() != "}"
    if not more:
        text.position += 1
    while more:
        key = text.key()
        if key in seen:
            text.fail(f"key {key!r} occurs twice")
        seen.add(key)
        if text.peek() == "[":
            elements = _elements(text)
            yield key, Elements(elements)
            for _ in elements:
                pass
        else:
            yield key, text.value()
        more = text.separator("}")
    if text.peek():
        text.fail("something follows the end of the object")


def _elements(text: "_Window") -> Iterator[object]:
    text.position += 1
    if text.peek() == "]":
        text.position += 1
        return
    more = True
    while more:
        yield from text.batch()
        more = text.separator("]")


class _Window:
    """The part of the file that is in memory, and the position up to which it is read."""

    def __init__(self, path: Path, stream: BinaryIO, *, size: int, skip: str) -> None:
        self._path, self._stream, self._size = path, stream, size
        self._skip = f"{json.dumps(skip)}:" if skip else ""
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._passed = 0  # characters before the window
        self._at_end = False  # the window holds the last character of the file
        self._one_by_one = False
        self._text = ""
        self.position = 0

    def peek(self) -> str:
        """The next character that is not white space; '' at the end of the file."""
        while True:
            space = _SPACE.match(self._text, self.position)
            self.position = space.end() if space else self.position
            if self.position < len(self._text):
                return self._text[self.position]
            if self._at_end:
                return ""
            self._refill()

    def batch(self) -> list[object]:
        """Elements of an array from here on, and step behind the last: one, or many at once.

        Where the last object that begins like this one begins, the one before it most likely ends.
        If that is wrong, the text up to there is no array, and the elements are read one by one.
        """
        opening = _OPENING.match(self._text, self.position)
        cut = self._text.rfind(opening[0], self.position) if opening else self.position
        if cut > self.position and not self._one_by_one:
            inside = self._text[self.position : cut].rstrip(" \t\n\r,")
            try:
                values, end = _DECODER.raw_decode(f"[{inside}]")
            except (ValueError, RecursionError):
                self._one_by_one = True
            else:
                self.position += end - 2  # the brackets; less than all where the array ends early
                return list(values)
        return [self.value()]

    def value(self) -> object:
        """The value that starts here, and step behind it."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self.position)
            except json.JSONDecodeError as error:
                if self._at_end or self._is_certain(error):
                    self._fail_at(error)
            except RecursionError:
                self.fail("nested too deeply")
            except ValueError as error:  # a number of thousands of digits
                self.fail(str(error))
            else:
                if self._at_end or end < len(self._text) - _MARGIN:
                    self.position = end
                    return value
            self._refill()

    def key(self) -> str:
        """The key that starts here, and step behind its colon to its value."""
        if self.peek() != '"':
            self.fail("expected a key in double quotes")
        key = self.value()
        if self.peek() != ":":
            self.fail(f"expected ':' after key {key!r}")
        self.position += 1
        if not self.peek():
            self.fail("the file ends too early; is it copied completely?")
        return str(key)

    def separator(self, closing: str) -> bool:
        """Step behind a comma to what follows (True) or behind the closing bracket (False)."""
        mark = self.peek()
        if not mark:
            self.fail("the file ends too early; is it copied completely?")
        if mark not in (",", closing):
            self.fail(f"expected ',' or '{closing}', found {mark!r}")
        self.position += 1
        if mark == ",":
            self.peek()
        return mark == ","

    def fail(self, problem: str) -> NoReturn:
        """Refuse the file, naming the place."""
        place = self._passed + self.position
        raise UserError(f"{self._path}: not readable as JSON near character {place:,}: {problem}")

    def _fail_at(self, error: json.JSONDecodeError) -> NoReturn:
        cut = error.pos >= len(self._text) - 1 or error.msg.startswith("Unterminated string")
        self.position = error.pos
        self.fail("the file ends too early; is it copied completely?" if cut else error.msg)

    def _is_certain(self, error: json.JSONDecodeError) -> bool:
        """Whether more text could not mend it: only what touches the window's end may be cut."""
        open_string = error.msg.startswith("Unterminated string")
        return not open_string and error.pos < len(self._text) - _MARGIN

    def _refill(self) -> None:
        """Drop what is read, and at least double the rest: a long value is retried few times."""
        rest = self._text[self.position :]
        if len(rest) > _MAX_VALUE:
            self.fail(f"one value of more than {_MAX_VALUE:,} characters")
        self._passed += self.position
        self.position = 0
        self._one_by_one = False
        chunk = self._stream.read(max(self._size, len(rest)))
        self._at_end = not chunk
        try:
            text = rest + self._decode(chunk, self._at_end)
        except UnicodeDecodeError as error:
            place = self._passed + len(rest)
            raise UserError(
                f"{self._path}: not UTF-8 text behind character {place:,}: {error.reason};"
                " save it as UTF-8"
            ) from None
        self._text = _emptied(text, self._skip) if self._skip else text
        self._passed += len(text) - len(self._text)


def _emptied(text: str, mark: str) -> str:
    """The text with each [[1, 2], [3]] behind the mark replaced by []."""
    kept, done = [], 0
    start = text.find(mark)
    while start >= 0:
        begin = start + len(mark)
        if text[begin : begin + 3].lstrip().startswith("[["):
            end = text.find("]]", begin) + 2
            if end < 2:  # the window ends first; it is found again when the rest is there
                break
            # No quote between: it is numbers. No backslash before: the mark is not inside a text.
            if text.find('"', begin, end) < 0 and text[max(start - 1, 0)] != "\\":
                kept += [text[done:begin], "[]"]
                done = end
        start = text.find(mark, begin)
    return "".join([*kept, text[done:]])
