"""The error classes for mistakes that the user can fix."""


class LmdError(Exception):
    """An error that the user can fix; the message says what is wrong, where, and what to do."""


class DivergedError(LmdError):
    """A loss became infinite or undefined: these settings cannot be trained."""
