"""What the table of methods knows about each of its rows."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lmd.base.errors import LmdError
from lmd.contract.stage import Stage


@dataclass(frozen=True)
class Method:
    """One row: ``make(model, task, **settings)`` yields its stages.

    ``preset`` are the settings that make this row differ from its family (an ablation);
    ``profiles`` name further sets of values for the same keywords; ``head`` is ``linear`` or
    ``cosine``. A ``note`` says what a reader of a table must know (a reconstruction, say).
    ``first_settings`` are those that shape the first of several stages (``None``: all do); a
    benchmark expects rows to have it in common where its name and these settings agree.
    """

    key: str
    title: str
    make: Callable[..., Iterator[Stage]]
    paper: str
    stages: tuple[str, ...]
    head: Literal["linear", "cosine"] = "linear"
    family: str = ""
    note: str = ""
    preset: Mapping[str, Any] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    first_settings: tuple[str, ...] | None = None

    def defaults(self) -> dict[str, Any]:
        """Every keyword of ``make`` with its default, the preset applied."""
        keywords = {
            name: parameter.default
            for name, parameter in inspect.signature(self.make).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        return keywords | dict(self.preset)

    def settings(self, given: Mapping[str, Any], profile: str = "default") -> dict[str, Any]:
        """All settings: defaults, then the profile's, the preset's, and last what was given."""
        if profile != "default" and profile not in self.profiles:
            valid = ", ".join(["default", *self.profiles])
            raise LmdError(f"method {self.key!r} has no profile {profile!r}; it has: {valid}")
        known = self.defaults()
        for name in given:
            if name not in known:
                valid = ", ".join(sorted(known)) or "none"
                raise LmdError(
                    f"method {self.key!r} has no setting {name!r}; its settings are: {valid}"
                )
        return known | dict(self.profiles.get(profile, {})) | dict(self.preset) | dict(given)
