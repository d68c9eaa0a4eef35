"""The protocol: all settings that methods in a comparison share, read from a TOML file."""

import math
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)

from lmd.base.errors import LmdError
from lmd.base.text import MAX_IMAGE_SIZE, as_toml, complaints, unknown
from lmd.scoring.tiers import check_rule

Count = Annotated[int, Field(ge=1, strict=True)]
Size = Annotated[int, Field(ge=16, le=MAX_IMAGE_SIZE, strict=True)]
Whole = Annotated[int, Field(strict=True)]
Workers = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[float, Field(gt=0, strict=True)]
NonNegative = Annotated[float, Field(ge=0, strict=True)]
BelowOne = Annotated[float, Field(ge=0, lt=1, strict=True)]
Factor = Annotated[float, Field(ge=1, strict=True)]
Switch = Annotated[bool, Field(strict=True)]

_FOLD = "a fold and how many there are, such as [2, 5], or [0, 5] for no test part"
_RATIOS = "three ratios for train, validation and test, such as 7:1:2"


def _about(text: str, **extra: Any) -> Any:
    return Field(description=text, json_schema_extra=extra or None)


class Protocol(BaseModel):
    """Settings of a comparison; defaults are the paper's (rows of ``docs/paper-vs-code.md``)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    # Data.
    image_size: Annotated[Size, _about("Side of the square images in pixels.")] = 224
    split: Annotated[
        tuple[float, float, float], _about("Ratios of train, validation and test.", rule=_RATIOS)
    ] = (0.7, 0.1, 0.2)
    tiers: Annotated[str, _about("Tiers: thirds, head>500,tail<100 or head=A;tail=B.")] = "thirds"
    imbalance: Annotated[
        Factor | None, _about("Thin classes out to this ratio of largest to smallest.")
    ] = None
    shape: Annotated[
        Literal["pareto", "official"],
        _about("pareto: thin training only; official: all parts."),
    ] = "pareto"
    head_size: Annotated[Count | None, _about("Images of the largest class if thinned.")] = None
    split_seed: Annotated[Whole, _about("Seed of the split.")] = 0
    allow_leak: Annotated[Switch, _about("Accept a group in more than one part.")] = False
    # Cross-validation: (2, 5) tests fold 2 of 5, and (0, 5) has no test part; training and
    # validation then divide the other images by the first two numbers of ``split``.
    fold: Annotated[
        tuple[int, Annotated[int, Field(ge=2)]] | None,
        _about("Which fold of how many is tested; --folds sets it.", rule=_FOLD),
    ] = None

    # Model.
    backbone: Annotated[str, _about("The encoder; an error lists the names.")] = "resnet18"
    weights: Annotated[str, _about("Its first weights: imagenet, none or a file.")] = "imagenet"

    # Optimisation: SGD as in the paper (row 8). ``stage2_epochs`` and ``stage2_lr`` are for second
    # stages without a budget of their own, as LMD's.
    epochs: Annotated[Count, _about("Epochs of the first stage.")] = 100
    stage2_epochs: Annotated[Count, _about("Epochs of stage 2 where a method has none.")] = 200
    batch_size: Annotated[Count, _about("Images in a batch.")] = 128
    lr: Annotated[Positive, _about("Learning rate.")] = 0.01
    stage2_lr: Annotated[
        Positive | None, _about("Learning rate of later stages that have none; null: lr.")
    ] = None
    momentum: Annotated[BelowOne, _about("Momentum of SGD.")] = 0.9
    weight_decay: Annotated[NonNegative, _about("Weight decay.")] = 0.0
    schedule: Annotated[Literal["constant", "cosine"], _about("Course of the learning rate.")] = (
        "constant"
    )
    select: Annotated[
        Literal["last", "best"], _about("Epoch that is kept: the last, or the best on validation.")
    ] = "last"
    views: Annotated[
        Literal["weak", "strong"], _about("The augmentation that label losses see.")
    ] = "weak"

    # The run: its seed, and settings that depend on the machine.
    seed: Annotated[Whole, _about("Seed of weights, order and augmentation.")] = 0
    workers: Annotated[Workers | None, _about("Processes that make batches; null: by machine.")] = (
        None
    )
    amp: Annotated[Switch, _about("Mixed precision on GPUs.")] = True

    # Settings of methods, by family: [methods.lmd] lambda_1 = 1.
    methods: Annotated[dict[str, dict[str, Any]], _about("Settings of methods, by family.")] = (
        Field(default_factory=dict)
    )

    @field_validator("split", mode="before")
    @classmethod
    def _scaled(cls, value: Any) -> Any:
        return parse_ratios(value)

    @field_validator("tiers")
    @classmethod
    def _is_rule(cls, value: str) -> str:
        check_rule(value)
        return value

    @field_validator("fold")
    @classmethod
    def _in_range(cls, fold: tuple[int, int] | None) -> tuple[int, int] | None:
        if fold is not None and not 0 <= fold[0] <= fold[1]:
            raise ValueError(f"must be {_FOLD}; it is {as_toml(list(fold))}")
        return fold

    @model_serializer(mode="wrap")
    def _without_unset_fold(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out ``fold`` where it is not set, as most protocols have no folds."""
        values: dict[str, Any] = dump(self)
        return {key: v for key, v in values.items() if key != "fold" or v is not None}


def parse_ratios(ratios: Any) -> tuple[float, float, float]:
    """Return ratios of train, validation and test as shares that add up to 1.

    >>> parse_ratios("7:1:2"), parse_ratios("0.8,0.1,0.1"), parse_ratios([6, 2, 2])
    ((0.7, 0.1, 0.2), (0.8, 0.1, 0.1), (0.6, 0.2, 0.2))
    """
    words = ratios.replace(",", ":").split(":") if isinstance(ratios, str) else ratios
    try:
        values = [float(word) for word in words]
    except (TypeError, ValueError):
        values = []
    valid = len(values) == 3 and all(math.isfinite(value) and value >= 0 for value in values)
    if not valid or values[0] == 0:
        raise ValueError(
            f"must be {_RATIOS}, none below 0 and the first above 0; it is {as_toml(ratios)}"
        )
    total = 1.0 if math.isclose(sum(values), 1) else sum(values)
    train, validation, test = (value / total for value in values)
    return train, validation, test


def load_protocol(name: str | Path | None, overrides: dict[str, Any] | None = None) -> Protocol:
    """Read a protocol from a TOML file, or by name if it ships with the package."""
    try:
        values = {} if name is None else tomllib.loads(_text(name))
    except ValueError as error:  # not TOML, or not UTF-8
        raise LmdError(f"protocol file {name} is not valid TOML: {error}") from None
    values |= overrides or {}
    try:
        return Protocol.model_validate(values)
    except ValidationError as error:
        where = f"protocol {name}: " if name is not None else ""
        raise LmdError(where + "; ".join(complaints(error, Protocol, values))) from None


def shipped_protocols() -> list[str]:
    """Return the names of the protocols that ship with the package.

    >>> "demo" in shipped_protocols()
    True
    """
    folder = resources.files("lmd") / "protocols"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name[-5:] == ".toml")


def about_protocol(name: str) -> str:
    """Return what a protocol is for: the comment at the top of its file."""
    lines = _text(name).splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(line.lstrip("# ").strip() for line in lines[:end])


def _text(name: str | Path) -> str:
    """Return the text of a file, or of a protocol that ships with the package."""
    if not str(name).endswith(".toml"):
        if str(name) not in shipped_protocols():
            there_are = "give a .toml file or one of"
            raise LmdError(unknown("protocol", str(name), shipped_protocols(), there_are=there_are))
        return (resources.files("lmd") / "protocols" / f"{name}.toml").read_text(encoding="utf-8")
    try:
        return Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LmdError(f"protocol file {name} does not exist") from None
    except OSError as error:
        raise LmdError(f"protocol file {name} cannot be read: {error.strerror}") from None
