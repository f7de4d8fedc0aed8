"""The one error type that a user can cause.

Its message is one line that names the file or argument, the value and the fix. The command line
prints it and exits with code 2; a traceback would mean a defect of ours.
"""


class UserError(ValueError):
    """Something the user gave us cannot be used; the message says what and how to fix it."""
