"""The error classes for mistakes that the user can fix."""

from lmd.base.interface import spoken


class LmdError(Exception):
    """An error that the user can fix; the message says what is wrong, where, and what to do.

    Messages are written with the options of the commands; in Python they have the keywords.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(spoken(message))


class DivergedError(LmdError):
    """A loss became infinite or undefined: these settings cannot be trained."""
