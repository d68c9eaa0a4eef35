"""The one error class whose message is meant for the person at the keyboard."""


class LmdError(Exception):
    """Something the user can fix; the message says what, where and how."""
