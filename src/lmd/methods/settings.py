"""Hyper-parameters of methods: their types, ranges and descriptions, and how they are checked.

The keyword-only arguments of a method are its hyper-parameters. Each annotation is a type (one of
those below, or any that pydantic knows) and a one-line description:
``q: Annotated[Share, "0 draws images alike, 1 classes alike."] = 1.0``.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator

from lmd.base.errors import LmdError
from lmd.base.text import complaints, rule_of

Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
# A TOML file and a JSON record have lists; a method gets a tuple.
Candidates = Annotated[tuple[NonNegative, ...], Field(min_length=1, strict=False)]

# Budgets of a second stage, with the batch size that the authors used.
Stage2Epochs = Annotated[Count, "Epochs of stage 2."]
Stage2Decay = Annotated[NonNegative, "Weight decay of stage 2."]
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
        needed = [
            name if value is True else f"{name}={value}"
            for name, value in self.values.items()
            if value is not False
        ]
        if not needed:
            return f"Without {' and '.join(self.values)}"
        *others, last = needed
        return f"With {', '.join(others)} and {last}" if others else f"With {last}"

    def missing(self, settings: Mapping[str, Any]) -> dict[str, object]:
        """The values that these settings would have to have."""
        return {name: value for name, value in self.values.items() if settings[name] != value}


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


@dataclass(frozen=True)
class Setting:
    """One hyper-parameter as a user sees it; ``rule`` completes "it must be …"."""

    name: str
    rule: str
    description: str


@dataclass(frozen=True)
class Keywords:
    """The hyper-parameters of a method: all in ``flat``, and ``groups`` by argument.

    A keyword-only argument with a ``Settings`` class as its annotation is a group.
    """

    flat: type[Settings]
    groups: Mapping[str, type[Settings]]

    def check(self, values: Mapping[str, Any], owner: str) -> Settings:
        """Complete and valid settings; an error names each wrong setting, its rule and value."""
        try:
            return self.flat.model_validate(dict(values))
        except ValidationError as error:
            problems = complaints(error, self.flat, values, owner=f"of {owner}")
            raise LmdError("; ".join(problems)) from None

    def arguments(self, settings: Settings) -> dict[str, Any]:
        """The arguments of the method: each group becomes an object again."""
        arguments = {name: getattr(settings, name) for name in self.flat.model_fields}
        for name, group in self.groups.items():
            arguments[name] = group(**{key: arguments.pop(key) for key in group.model_fields})
        return arguments

    def describe(self) -> list[Setting]:
        """Every setting with its rule and description, in the order of the arguments."""
        rules = self.flat.model_json_schema()["properties"]
        settings = []
        for name, field in self.flat.model_fields.items():
            text = next(note for note in field.metadata if isinstance(note, str))
            for needs in _needs(field.metadata):
                text = f"{needs}: {text}"
            settings.append(Setting(name, rule_of(rules[name]), text))
        return settings

    def unused(self, settings: Mapping[str, Any]) -> dict[str, dict[str, object]]:
        """The settings without effect, each with the values of others that it needs."""
        missing = {
            name: needs.missing(settings)
            for name, field in self.flat.model_fields.items()
            for needs in _needs(field.metadata)
        }
        return {name: values for name, values in missing.items() if values}


def _needs(metadata: list[Any]) -> list[Needs]:
    return [note for note in metadata if isinstance(note, Needs)]


@cache
def keywords_of(make: Callable[..., Any]) -> Keywords:
    """The keyword-only arguments of a method; a mistake in them is a ``TypeError``."""
    hints = get_type_hints(make, include_extras=True)
    fields: dict[str, Any] = {}
    groups: dict[str, type[Settings]] = {}
    for parameter in inspect.signature(make).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        name, annotation = parameter.name, hints[parameter.name]
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
    return Keywords(create_model(make.__qualname__, __base__=Settings, **fields), groups)
