"""Errors that users can fix."""


class LmdError(Exception):
    """An error that the user can fix; the message says what is wrong, where, and what to do.

    Messages name the options of the commands; in Python, ``--skip-bad`` is ``skip_bad=True``.
    """


class DivergedError(LmdError):
    """A loss became infinite or undefined: these settings cannot be trained."""
