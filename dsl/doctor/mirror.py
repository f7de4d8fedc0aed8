"""Mirror images: whether they are right is not guessed but asked for.

A flip that the recipe or the user states counts as an answer. Class names of one letter or digit,
or with left or right in them, make the question urgent.
"""

import re
from collections.abc import Iterator

from dsl.doctor.case import Case
from dsl.doctor.finding import Finding, listed

_SIDED = re.compile(r"(?<![a-z])(left|right)(?![a-z])", re.IGNORECASE)


def check_flip(case: Case) -> Iterator[Finding]:
    name, views = "flip", case.config.views
    if not views.flip and not views.flip_vertical:
        yield Finding("ok", name, "no mirror images")
        return
    if "flip" in views.model_fields_set or not views.flip:
        yield Finding("ok", name, "mirror images, as asked for")
        return
    sided = [c for c in case.labeled.classes if (len(c) == 1 and c.isalnum()) or _SIDED.search(c)]
    told = "mirror images are used; are your classes still right when mirrored"
    if sided:
        fix = "--no-flip turns it off; --flip says that it is right"
        yield Finding("warning", name, f"{told}: {listed(sided)}?", fix)
    else:
        told += " (text, digits, left/right)? --no-flip turns it off"
        yield Finding("ok", name, told)
