"""The error classes for mistakes that the user can fix."""

from lmd.base.interface import spoken


class LmdError(Exception):
    """An error that the user can fix; the message says what is wrong, where, and what to do.

    Messages name the options of the commands; in Python they show the keywords instead.
    """

    def __str__(self) -> str:
        return spoken(super().__str__())


class DivergedError(LmdError):
    """A loss became infinite or undefined: these settings cannot be trained."""
