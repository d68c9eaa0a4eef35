"""Errors that users can fix."""

from importlib.util import find_spec


class LmdError(Exception):
    """An error that the user can fix; the message says what is wrong, where, and what to do.

    Messages name the options of the commands; in Python, ``--skip-bad`` is ``skip_bad=True``.
    """


class DivergedError(LmdError):
    """A loss became infinite or undefined: these settings cannot be trained."""


def not_installed(purpose: str, package: str, extra: str) -> LmdError:
    """Return the error for a package that one of the extras of lmd installs."""
    return LmdError(
        f"{purpose} needs {package}, which is not installed: run pip install 'lmd[{extra}]'"
    )


def need_extra(purpose: str, extra: str, *packages: str) -> None:
    """Raise an ``LmdError`` if a package of an optional extra of lmd is not installed."""
    for package in packages:
        if find_spec(package) is None:
            raise not_installed(purpose, package, extra)
