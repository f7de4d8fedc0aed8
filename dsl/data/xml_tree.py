"""Read an XML file that a user gave: whole, and refused where it could grow beyond its size.

It knows XML only, nothing of what the elements mean.
"""

import re
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

from dsl.errors import UserError, show
from dsl.files import MEGABYTE, check_file

# XML 1.0 cannot say these, not even escaped; a carriage return becomes a line feed on reading.
NOT_IN_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _DoctypeError(Exception):
    """Raised inside the parser, which does not know the file's name."""


class _Builder(ElementTree.TreeBuilder):
    """Refuses a document type: only there can entities be declared that grow to gigabytes."""

    def doctype(self, name: str, _public: str | None, _system: str | None) -> NoReturn:
        raise _DoctypeError(f"has a DOCTYPE ({show(name)}); remove it")


def parse_xml(path: Path, *, limit: int = 512 * MEGABYTE) -> ElementTree.Element:
    """The top element of a file of at most `limit` bytes. An absent file is a
    FileNotFoundError: the caller knows who named it."""
    parser = ElementTree.XMLParser(target=_Builder())
    try:
        check_file(path, limit=limit)
        return ElementTree.parse(path, parser).getroot()
    except _DoctypeError as error:
        raise UserError(f"{path}: {error}") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise UserError(f"{path}: not readable as XML: {error}") from error


def top_tag(path: Path) -> str | None:
    """The name of the top element, from the first bytes of the file; None if there is none."""
    try:
        with path.open("rb") as file:
            for _, element in ElementTree.iterparse(file, events=("start",)):
                return str(element.tag)
    except (ElementTree.ParseError, ValueError, LookupError, OSError):
        pass
    return None
