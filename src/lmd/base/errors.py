"""The error class for mistakes that the user can fix."""


class LmdError(Exception):
    """An error that the user can fix; the message says what is wrong, where, and what to do."""
