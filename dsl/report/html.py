"""One page that needs nothing else: runs become JSON, and a template with its own style and script.

The page is the same for `dsl report` and `dsl watch`; the latter fetches its JSON anew. User text
only ever travels as JSON and is put into the page as text, never as markup. The page's own content
security policy lists the hashes of our style and script, so nothing else can run in it.
"""

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from dsl.report.page_content import Content, content_of
from dsl.report.run_folder import Run

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("plots.js", "gallery.js", "report.js")


def write_report(path: Path, runs: Sequence[Run]) -> None:
    """Written beside and moved into place: an open browser never loads half a page."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_text(render(content_of(runs)), encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def render(content: Content, *, live: bool = False) -> str:
    """The page. `live`: it asks data.json, beside it, for what is new."""
    # No loader is ever given a user's path, and whatever a template prints is escaped.
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True)
    return environment.get_template("report.html.jinja").render(
        title=content["title"],
        policy=security_policy(live=live),
        style=Markup(_style()),
        script=Markup(_script()),
        content=Markup(safe_json(content)),
        live=live,
    )


def safe_json(content: Content) -> str:
    """JSON that cannot end the script element it stands in, nor a line of script."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def security_policy(*, live: bool) -> str:
    """Our own style and script, pictures inside the page, and on a live page its own server."""
    rules = {
        "default-src": "'none'",
        "style-src": _hash(_style()),
        "script-src": _hash(_script()),
        "img-src": "data:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@cache
def _style() -> str:
    return (TEMPLATES / "report.css").read_text(encoding="utf-8")


@cache
def _script() -> str:
    """All parts in one function, so that their names stay among themselves."""
    parts = [(TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join(['(function () {\n"use strict";', *parts, "})();"])
