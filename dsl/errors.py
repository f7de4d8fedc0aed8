"""The one error type that a user can cause.

Its message is one line that names the file or argument, the value and the fix. The command line
prints it and exits with code 2; a traceback would mean a defect of ours.
"""

import reprlib

_SHORT = reprlib.Repr()  # a few bytes of YAML can stand for a list of billions
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 4, 200, 200
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 16


class UserError(ValueError):
    """Something the user gave us cannot be used; the message says what and how to fix it."""


def show(value: object) -> str:
    """The value on one line and not too long, for an error message."""
    try:
        text = ascii(value) if isinstance(value, str) else " ".join(_SHORT.repr(value).split())
    except ValueError:  # Python does not print integers of thousands of digits
        return f"a very long {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
