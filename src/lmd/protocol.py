"""The protocol: all settings that methods in a comparison share, read from a TOML file."""

import tomllib
from collections.abc import Mapping
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
    model_validator,
)

from lmd.base.errors import LmdError

OLD_NAMES = {"groups": "tiers"}  # in older files and records
Positive = Annotated[int, Field(gt=0)]

# Earlier names of shipped protocols.
_ALIASES = dict.fromkeys(
    ("isic2019-lt-r100", "isic2019-lt-r300", "isic2019-lt-r500"), "isic2019-lt"
)


class Protocol(BaseModel):
    """Settings of a comparison; defaults are the paper's (rows of ``docs/paper-vs-code.md``)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Data: ``split`` into train, validation and test; ``tiers`` is the head/medium/tail rule.
    image_size: Annotated[int, Field(ge=16)] = 224
    split: tuple[float, float, float] = (0.7, 0.1, 0.2)
    tiers: str = "thirds"
    imbalance: float | None = None
    shape: Literal["pareto", "official"] = "pareto"
    head_size: int | None = None
    split_seed: int = 0
    allow_leak: bool = False
    # Cross-validation: (2, 5) tests fold 2 of 5, and (0, 5) has no test part; training and
    # validation then divide the other images by the first two numbers of ``split``.
    fold: tuple[int, Annotated[int, Field(ge=2)]] | None = None

    # Model.
    backbone: str = "resnet18"
    weights: str = "imagenet"

    # Optimisation: SGD as in the paper (row 8). ``stage2_epochs`` and ``stage2_lr`` are for second
    # stages without a budget of their own, as LMD's; ``views`` is the view that label losses see.
    epochs: Positive = 100
    stage2_epochs: Positive = 200
    batch_size: Positive = 128
    lr: Annotated[float, Field(gt=0)] = 0.01
    stage2_lr: float | None = None
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    select: Literal["last", "best"] = "last"
    views: Literal["weak", "strong"] = "weak"

    # The run: its seed, and settings that depend on the machine.
    seed: int = 0
    workers: int | None = None
    amp: bool = True

    # Settings of methods, by family: [methods.lmd] lambda_1 = 1.
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _current_names(cls, values: Any) -> Any:
        return current_names(values) if isinstance(values, dict) else values

    @field_validator("fold")
    @classmethod
    def _in_range(cls, fold: tuple[int, int] | None) -> tuple[int, int] | None:
        if fold is not None and not 0 <= fold[0] <= fold[1]:
            raise ValueError(f"the fold must be from 1 to {fold[1]}, or 0 for no test part")
        return fold

    @model_serializer(mode="wrap")
    def _as_ever(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without ``fold`` if it is not set: such protocols are those of earlier versions."""
        values: dict[str, Any] = dump(self)
        return {key: v for key, v in values.items() if key != "fold" or v is not None}


def current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under their current names.

    >>> current_names({"groups": "thirds", "lr": 0.1})
    {'tiers': 'thirds', 'lr': 0.1}
    """
    return {OLD_NAMES.get(key, key): value for key, value in settings.items()}


def load_protocol(name: str | Path | None, overrides: dict[str, Any] | None = None) -> Protocol:
    """A protocol from a TOML file, or by name if it ships with the package."""
    values: dict[str, Any] = {}
    if name is not None:
        values = _read(Path(name)) if str(name).endswith(".toml") else _read_shipped(str(name))
    values = current_names(values) | current_names(overrides or {})
    try:
        return Protocol.model_validate(values)
    except ValidationError as error:
        raise LmdError(_explain(error, name)) from error


def shipped_protocols() -> list[str]:
    """Names of the protocols that ship with the package.

    >>> "demo" in shipped_protocols()
    True
    """
    folder = resources.files("lmd") / "protocols"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name[-5:] == ".toml")


def _read_shipped(name: str) -> dict[str, Any]:
    name = _ALIASES.get(name, name)
    if name not in shipped_protocols():
        raise LmdError(
            f"no protocol {name!r}: give a .toml file or one of {', '.join(shipped_protocols())}"
        )
    text = (resources.files("lmd") / "protocols" / f"{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LmdError(f"protocol file {path} does not exist") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LmdError(f"protocol file {path} is not valid TOML: {error}") from None


def _explain(error: ValidationError, name: str | Path | None) -> str:
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            valid = ", ".join(sorted(Protocol.model_fields))
            lines.append(f"unknown setting {key!r}; the protocol's settings are: {valid}")
        else:
            lines.append(f"setting {key!r}: {problem['msg']} (it is {problem['input']!r})")
    where = f"protocol {name}: " if name is not None else ""
    return where + "\n".join(lines)
