"""A row of the table of methods."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lmd.base.errors import LmdError
from lmd.base.text import unknown
from lmd.methods.settings import Setting, Settings, keywords_of
from lmd.methods.stage import Stages, Task
from lmd.model import Model


def own_epochs(settings: Mapping[str, Any]) -> int | None:
    """The setting of methods that train the classifier again with a budget of their own."""
    return settings.get("classifier_epochs")


def never(_settings: Mapping[str, Any]) -> bool:
    """For a method that can be trained without a validation part."""
    return False


def always(_settings: Mapping[str, Any]) -> bool:
    """For a method that learns from the validation part."""
    return True


def above(name: str, limit: float) -> Callable[[Mapping[str, Any]], bool]:
    """For a method that balances the classes if a setting is above a limit."""
    return lambda settings: settings[name] > limit


def by_effective_number(settings: Mapping[str, Any]) -> bool:
    """For class weights by effective number, which balance classes of up to 1 / (1 - β) images.

    With β = 0.99 these are a hundred, fewer than the frequent classes of most training parts have.
    """
    return bool(settings["beta"] > 0.99)


def all_used(_settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """For a method without parts that settings turn off."""
    return {}


def one_epoch(settings: Mapping[str, Any]) -> int | None:
    """For a last stage that is a single pass."""
    return 1


@dataclass(frozen=True)
class Method:
    """One row: ``make(model, task, *, …)`` yields the stages of the method.

    The keyword-only arguments of ``make`` are the settings (``lmd.methods.settings``). ``preset``
    holds the values that distinguish this row from its ``family``; an ``ablation`` leaves out a
    part of the family's method. ``profiles`` are named sets of values. ``prior`` is the class mix
    that the probabilities assume: uniform if training balances the classes, otherwise that of the
    training part; ``balances`` tells from the settings which of them, where it depends. ``note`` is
    shown with the row in tables. ``first_settings`` are the settings that affect the first of
    several stages (``None``: all); rows in which its name and these settings agree are expected to
    share it in a benchmark. ``first`` tells name and settings of the first stage where they depend
    on the settings. ``last_epochs`` tells the epochs of the last of several stages from the
    settings; ``None``: the protocol's ``stage2_epochs``. ``needs_validation`` tells from the
    settings whether there must be validation images, and ``unused`` which of them have no effect,
    each with the values of others that it needs.
    """

    key: str
    title: str
    make: Callable[..., Stages]
    paper: str
    stages: tuple[str, ...]
    head: Literal["linear", "cosine"] = "linear"
    prior: Literal["uniform", "training"] = "uniform"
    family: str = ""
    ablation: bool = False
    note: str = ""
    preset: Mapping[str, Any] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    first_settings: tuple[str, ...] | None = None
    first: Callable[[Mapping[str, Any]], tuple[str, dict[str, Any]]] | None = None
    last_epochs: Callable[[Mapping[str, Any]], int | None] = own_epochs
    needs_validation: Callable[[Mapping[str, Any]], bool] = never
    balances: Callable[[Mapping[str, Any]], bool] | None = None
    unused: Callable[[Mapping[str, Any]], Mapping[str, Mapping[str, Any]]] = all_used

    def __post_init__(self) -> None:
        keywords_of(self.make)  # a mistake in the settings is an error at import

    def beginning(self, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The first stage by name and settings, equal for rows that are expected to share it."""
        if self.first is not None:
            return self.first(settings)
        shaping = settings if self.first_settings is None else self.first_settings
        return self.stages[0], {key: settings[key] for key in shaping}

    def describe(self) -> list[Setting]:
        """Every setting with its rule and description."""
        return keywords_of(self.make).describe()

    def defaults(self) -> dict[str, Any]:
        """Every setting with its default, the preset applied."""
        return self.settings({})

    def settings(
        self,
        given: Mapping[str, Any],
        profile: str = "default",
        family: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """All settings, checked, ready for JSON.

        Given values override the preset, which overrides values for the whole ``family``, since it
        is what distinguishes the row from it; these override the profile, and that the defaults.
        """
        return self._checked(given, profile, family or {}).model_dump(mode="json")

    def mix(self, settings: Mapping[str, Any]) -> Literal["uniform", "training"]:
        """The class mix that the probabilities assume with these settings."""
        if self.balances is None:
            return self.prior
        return "uniform" if self.balances(settings) else "training"

    def stages_for(self, model: Model, task: Task, settings: Mapping[str, Any]) -> Stages:
        """Start the method with these flat settings; the others have their defaults."""
        values = keywords_of(self.make).arguments(self._checked(settings, "default", {}))
        return self.make(model, task, **values)

    def _checked(
        self, given: Mapping[str, Any], profile: str, family: Mapping[str, Any]
    ) -> Settings:
        if profile != "default" and profile not in self.profiles:
            profiles = ["default", *self.profiles]
            raise LmdError(f"method {self.key!r}: {unknown('profile', profile, profiles)}")
        keywords = keywords_of(self.make)
        for name in (*family, *given):
            if name not in keywords.flat.model_fields:
                valid = sorted(keywords.flat.model_fields)
                raise LmdError(f"method {self.key!r}: {unknown('setting', name, valid)}")
        values = {**self.profiles.get(profile, {}), **family, **self.preset, **given}
        return keywords.check(values, f"method {self.key!r}")
