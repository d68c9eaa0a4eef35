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
from lmd.base.rules import complaints, rule_of

Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
# A TOML file and a JSON record have lists; a method gets a tuple.
Candidates = Annotated[tuple[NonNegative, ...], Field(min_length=1, strict=False)]


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
            found = complaints(error, self.flat, values, owner=f"of {owner}")
            raise LmdError("; ".join(found)) from None

    def arguments(self, values: Settings) -> dict[str, Any]:
        """The arguments of the method: each group becomes an object again."""
        grouped = {name for group in self.groups.values() for name in group.model_fields}
        own = {name: getattr(values, name) for name in self.flat.model_fields}
        return {name: value for name, value in own.items() if name not in grouped} | {
            name: group(**{field: own[field] for field in group.model_fields})
            for name, group in self.groups.items()
        }

    def describe(self) -> list[Setting]:
        """Every setting with its rule and description, in the order of the arguments."""
        rules = self.flat.model_json_schema()["properties"]
        return [
            Setting(
                name, rule_of(rules[name]), next(m for m in field.metadata if isinstance(m, str))
            )
            for name, field in self.flat.model_fields.items()
        ]


@cache
def keywords_of(make: Callable[..., Any]) -> Keywords:
    """The keyword-only arguments of a method; a mistake in them is a ``TypeError``."""
    hints = get_type_hints(make, include_extras=True)
    fields: dict[str, Any] = {}
    groups: dict[str, type[Settings]] = {}
    for parameter in inspect.signature(make).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            continue
        name, kind = parameter.name, hints[parameter.name]
        if isinstance(kind, type) and issubclass(kind, Settings):
            groups[name] = kind
            of = get_type_hints(kind, include_extras=True)
            found = {key: (of[key], field.default) for key, field in kind.model_fields.items()}
        elif parameter.default is parameter.empty:
            raise TypeError(f"{make.__qualname__}: the setting {name!r} needs a default value")
        else:
            found = {name: (kind, parameter.default)}
        for key, (annotation, _) in found.items():
            if not any(isinstance(note, str) for note in getattr(annotation, "__metadata__", ())):
                raise TypeError(f"{make.__qualname__}: the setting {key!r} needs a description")
        if twice := fields.keys() & found.keys():
            raise TypeError(f"{make.__qualname__} has two settings named {min(twice)!r}")
        fields |= found
    return Keywords(create_model(make.__qualname__, __base__=Settings, **fields), groups)
