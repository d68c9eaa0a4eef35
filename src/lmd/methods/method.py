"""A row of the table of methods."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from lmd.base.errors import LmdError
from lmd.base.text import unknown
from lmd.methods.settings import Setting, Settings, keywords_of
from lmd.methods.stage import Stage, Stages, Task
from lmd.model import CosineClassifier, Model


@dataclass(frozen=True)
class Method:
    """One row: ``make(model, task, *, …)`` yields the stages of the method.

    The keyword-only arguments of ``make`` are the settings (``lmd.methods.settings``); rows with
    the same ``make`` are a family. ``preset`` holds the values that distinguish this row from its
    family; an ``ablation`` leaves out a part of the family's method. ``profiles`` are named sets of
    values. ``stages`` are titles. ``note`` is shown with the row in tables.
    """

    key: str
    title: str
    make: Callable[..., Stages]
    paper: str
    stages: tuple[str, ...]
    head: Literal["linear", "cosine"] = "linear"
    ablation: bool = False
    note: str = ""
    preset: Mapping[str, Any] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        keywords_of(self.make)  # a mistake in the settings is an error at import

    @property
    def family(self) -> str:
        """The name that rows with the same ``make`` share."""
        return self.make.__name__

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
        """All settings, checked, ready for JSON (see ``check``)."""
        return self.check(given, profile, family).model_dump(mode="json")

    def check(
        self,
        given: Mapping[str, Any],
        profile: str = "default",
        family: Mapping[str, Any] | None = None,
    ) -> Settings:
        """All settings, checked.

        Given values override the preset, which overrides values for the whole ``family``, since it
        is what distinguishes the row from it; these override the profile, and that the defaults.
        """
        if profile != "default" and profile not in self.profiles:
            profiles = ["default", *self.profiles]
            raise LmdError(f"method {self.key!r}: {unknown('profile', profile, profiles)}")
        keywords, family = keywords_of(self.make), family or {}
        for name in (*family, *given):
            if name not in keywords.flat.model_fields:
                valid = sorted(keywords.flat.model_fields)
                raise LmdError(f"method {self.key!r}: {unknown('setting', name, valid)}")
        values = {**self.profiles.get(profile, {}), **family, **self.preset, **given}
        return keywords.check(values, f"method {self.key!r}")

    def unused(self, settings: Mapping[str, Any]) -> dict[str, dict[str, object]]:
        """The settings without effect, each with the values of others that it needs."""
        return keywords_of(self.make).unused(settings)

    def stages_for(self, model: Model, task: Task, settings: Mapping[str, Any]) -> Stages:
        """Start the method with these flat settings; the others have their defaults."""
        return self.start(model, task, self.check(settings))

    def start(self, model: Model, task: Task, settings: Settings) -> Stages:
        """Start the method with checked settings."""
        return self.make(model, task, **keywords_of(self.make).arguments(settings))

    def outline(self, settings: Mapping[str, Any]) -> list[Stage]:
        """The stages with these settings, of a tiny model; nothing is trained between them."""
        with torch.random.fork_rng(devices=[]):
            head = CosineClassifier if self.head == "cosine" else nn.Linear
            model = Model(nn.Linear(2, 2), head(2, 2))
            task = Task(torch.tensor([2, 1]), 2)
            return list(self.stages_for(model, task, settings))

    def mix(self, settings: Mapping[str, Any]) -> Literal["uniform", "training"]:
        """The class mix that the probabilities assume with these settings."""
        return "uniform" if self.outline(settings)[-1].balanced else "training"

    def last_epochs(self, settings: Mapping[str, Any]) -> int | None:
        """The epochs of the last stage, or ``None`` if they are the protocol's."""
        return self.outline(settings)[-1].epochs

    def needs_validation(self, settings: Mapping[str, Any]) -> bool:
        """Whether the method cannot be trained without validation images."""
        return any(stage.needs_validation for stage in self.outline(settings))
