"""A row of the table of methods, and its hyper-parameters: types, ranges and descriptions.

The keyword-only arguments of a method are its hyper-parameters. Each annotation is a type (one of
those below, or any that pydantic knows) and a one-line description:
``q: Annotated[Share, "0 draws images alike, 1 classes alike."] = 1.0``.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator
from torch import nn

from lmd.base.errors import LmdError
from lmd.base.text import complaints, rule_of, unknown
from lmd.methods.stage import Stage, Stages, Task
from lmd.model import CosineClassifier, Model

Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
# A TOML file and a JSON record have lists; a method gets a tuple.
Candidates = Annotated[tuple[NonNegative, ...], Field(min_length=1, strict=False)]

# Budgets of a second stage, with the batch size that the authors used.
Stage2Epochs = Annotated[Count, "Epochs of stage 2."]
RateFor64 = Annotated[Positive, "Learning rate of stage 2 at batches of 64; scaled with them."]
RateFor512 = Annotated[Positive, "Learning rate of stage 2 at batches of 512; scaled with them."]


class Needs:
    """Marks a setting that has no effect unless others have certain values.

    ``Annotated[Share, "share of the steps.", Needs(rrl=True)]`` reads "With rrl: share of the …".
    """

    def __init__(self, **values: object) -> None:
        self.values = values

    def __str__(self) -> str:
        """Such as "With icc and fdc_form=bounded", or "Without rrl"."""
        values = {name: value for name, value in self.values.items() if value is not False}
        if not values:
            return f"Without {' and '.join(self.values)}"
        *others, last = [n if value is True else f"{n}={value}" for n, value in values.items()]
        return f"With {', '.join(others)} and {last}" if others else f"With {last}"


class Settings(BaseModel):
    """A group of settings. An integer is a valid float; text and booleans are not.

    The words ``null`` and ``none`` mean ``None``, which TOML does not have.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        return None if isinstance(value, str) and value in ("none", "null") else value


@cache
def settings_of(make: Callable[..., Any]) -> tuple[type[Settings], dict[str, type[Settings]]]:
    """Return all settings of a method as one class, and its arguments that are groups of them.

    A keyword-only argument with a ``Settings`` class as its annotation is a group. A mistake in the
    arguments is a ``TypeError``.
    """
    hints = get_type_hints(make, include_extras=True)
    fields: dict[str, Any] = {}
    groups: dict[str, type[Settings]] = {}
    for name, parameter in inspect.signature(make).parameters.items():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        annotation = hints[name]
        if isinstance(annotation, type) and issubclass(annotation, Settings):
            groups[name] = annotation
            types = get_type_hints(annotation, include_extras=True)
            new = {key: (types[key], f.default) for key, f in annotation.model_fields.items()}
        elif parameter.default is parameter.empty:
            raise TypeError(f"{make.__qualname__}: the setting {name!r} needs a default value")
        else:
            new = {name: (annotation, parameter.default)}
        for key, (hint, _) in new.items():
            if not any(isinstance(note, str) for note in getattr(hint, "__metadata__", ())):
                raise TypeError(f"{make.__qualname__}: the setting {key!r} needs a description")
        if twice := fields.keys() & new.keys():
            raise TypeError(f"{make.__qualname__} has two settings named {min(twice)!r}")
        fields |= new
    return create_model(make.__qualname__, __base__=Settings, **fields), groups


@dataclass(frozen=True)
class Setting:
    """One hyper-parameter as a user sees it; ``rule`` completes "it must be …"."""

    name: str
    rule: str
    description: str


@dataclass(frozen=True)
class Method:
    """One row: ``make(model, task, *, …)`` yields the stages of the method.

    Rows with the same ``make`` are a family. ``preset`` holds the values that distinguish this row
    from its family; an ``ablation`` leaves out a part of the family's method. ``profiles`` are
    named sets of values. ``stages`` are titles. ``note`` is shown with the row in tables.
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
        settings_of(self.make)  # a mistake in the settings is an error at import

    @property
    def family(self) -> str:
        """The name that rows with the same ``make`` share."""
        return self.make.__name__

    def describe(self) -> list[Setting]:
        """Describe every setting, in the order of the arguments."""
        schema, _ = settings_of(self.make)
        rules = schema.model_json_schema()["properties"]
        settings = []
        for name, info in schema.model_fields.items():
            text = next(note for note in info.metadata if isinstance(note, str))
            needs = "".join(f"{note}: " for note in info.metadata if isinstance(note, Needs))
            settings.append(Setting(name, rule_of(rules[name]), needs + text))
        return settings

    def settings(
        self,
        values: Mapping[str, Any] | None = None,
        profile: str = "default",
        family: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return all settings, checked, ready for JSON (see ``check``)."""
        return self.check(values or {}, profile, family).model_dump(mode="json")

    def check(
        self,
        values: Mapping[str, Any],
        profile: str = "default",
        family: Mapping[str, Any] | None = None,
    ) -> Settings:
        """Return all settings, checked; an error names each wrong one, its rule and value.

        ``values`` override the preset, which overrides values for the whole ``family``, since it
        is what distinguishes the row from it; these override the profile, and that the defaults.
        """
        if profile != "default" and profile not in self.profiles:
            profiles = ["default", *self.profiles]
            raise LmdError(f"method {self.key!r}: {unknown('profile', profile, profiles)}")
        (schema, _), family = settings_of(self.make), family or {}
        for name in (*family, *values):
            if name not in schema.model_fields:
                valid = sorted(schema.model_fields)
                raise LmdError(f"method {self.key!r}: {unknown('setting', name, valid)}")
        merged = {**self.profiles.get(profile, {}), **family, **self.preset, **values}
        try:
            return schema.model_validate(merged)
        except ValidationError as error:
            problems = complaints(error, schema, merged, owner=f"of method {self.key!r}")
            raise LmdError("; ".join(problems)) from None

    def unused(self, settings: Mapping[str, Any]) -> dict[str, dict[str, object]]:
        """Return the settings without effect, each with the values of others that it needs."""
        unused = {}
        for name, info in settings_of(self.make)[0].model_fields.items():
            for needs in (note.values for note in info.metadata if isinstance(note, Needs)):
                if missing := {key: v for key, v in needs.items() if settings[key] != v}:
                    unused[name] = missing
        return unused

    def start(self, model: Model, task: Task, settings: Settings | Mapping[str, Any]) -> Stages:
        """Start the method with checked settings, or with flat ones over the defaults."""
        if not isinstance(settings, Settings):
            settings = self.check(settings)
        arguments = {name: getattr(settings, name) for name in type(settings).model_fields}
        for name, group in settings_of(self.make)[1].items():
            arguments[name] = group(**{key: arguments.pop(key) for key in group.model_fields})
        return self.make(model, task, **arguments)

    def outline(self, settings: Mapping[str, Any]) -> list[Stage]:
        """Return the stages with these settings, of a tiny model; none of them is trained."""
        with torch.random.fork_rng(devices=[]):
            head = CosineClassifier if self.head == "cosine" else nn.Linear
            model = Model(nn.Linear(2, 2), head(2, 2))
            return list(self.start(model, Task(torch.tensor([2, 1]), 2), settings))

    def mix(self, settings: Mapping[str, Any]) -> Literal["uniform", "training"]:
        """Return the class mix that the probabilities assume with these settings."""
        return "uniform" if self.outline(settings)[-1].balanced else "training"
