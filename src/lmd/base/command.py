"""Commands made of Python functions, so that an option is declared and described once."""

import inspect
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from typer.models import ParameterInfo

from lmd.base.errors import LmdError

# What many commands share; a docstring that describes the parameter itself comes first.
_COMMON = {
    "data": "A folder of class folders, a .csv manifest, an .npz, or 'synthetic'.",
    "device": "auto, cpu, cuda or cuda:N.",
    "images": "Keep pictures of test images out of the report.",
    "overwrite": "Replace the output file if it exists.",
    "quiet": "Show no progress.",
    "settings": "A setting of the protocol or of the method, such as epochs=20 or levels=0; can be "
    "repeated.",
    "skip_bad": "Continue without unreadable images.",
    "tta": "Average the probabilities of each image over its three mirror images too: four times "
    "the work.",
}
Settings = Annotated[Mapping[str, Any] | None, typer.Option("--set")]


def as_command(
    function: Callable[..., Any],
    show: Callable[[Any], object] | None = None,
    *,
    omit: Sequence[str] = (),
) -> Callable[..., None]:
    """Return the command of a Python function, for ``typer.Typer.command``.

    Positional parameters become arguments and keyword-only ones options: ``False`` becomes
    ``--name``, ``True`` becomes ``--no-name``, a mapping becomes a repeatable ``KEY=VALUE``. A
    parameter whose default is a dataclass is replaced by an option for each of its fields. The
    help is the text of the docstrings below ``Args:`` and ``Attributes:``. ``Annotated`` may add a
    ``typer.Option`` or ``typer.Argument``.

    Args:
        function: The function.
        show: Prints the result.
        omit: Parameters for Python only.
    """
    signature = inspect.signature(function, eval_str=True)
    about, texts = _docstring(function)
    options: list[inspect.Parameter] = []
    groups: dict[str, type] = {}
    mappings: set[str] = set()
    for parameter in signature.parameters.values():
        if parameter.name in omit:
            continue
        if is_dataclass(parameter.default) and not isinstance(parameter.default, type):
            group = groups[parameter.name] = type(parameter.default)
            inner = _docstring(group)[1]
            for field in fields(group):
                value = getattr(parameter.default, field.name)
                hint = inspect.get_annotations(group, eval_str=True)[field.name]
                options.append(_option(field.name, hint, value, inner.get(field.name)))
        else:
            text = texts.get(parameter.name, _COMMON.get(parameter.name))
            argument = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
            option = _option(
                parameter.name, parameter.annotation, parameter.default, text, argument=argument
            )
            options.append(option)
            if _terminal_type(parameter.annotation)[0] is Mapping:
                mappings.add(parameter.name)

    def command(**values: Any) -> None:
        for name in mappings:
            values[name] = parse_settings(values[name] or [])
        values = {name: value for name, value in values.items() if value is not None}
        for name, group in groups.items():
            values[name] = group(
                **{f.name: values.pop(f.name) for f in fields(group) if f.name in values}
            )
        arguments = [
            values.pop(parameter.name)
            for parameter in signature.parameters.values()
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        ]
        result = function(*arguments, **values)
        if show is not None:
            show(result)

    command.__doc__ = about
    command.__name__ = function.__name__
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in options}
    return command


def _option(
    name: str, annotation: Any, default: Any, text: str | None, *, argument: bool = False
) -> inspect.Parameter:
    """Return the parameter that typer turns into an argument or option."""
    hint, several = _terminal_type(annotation)
    extras = getattr(annotation, "__metadata__", ())
    info = next((extra for extra in extras if isinstance(extra, ParameterInfo)), None)
    if info is None:
        option = name.replace("_", "-")
        flag = f" /--no-{option}" if default is True else f"--{option}"
        info = typer.Argument() if argument else typer.Option(*[flag] if hint is bool else [])
    if hint is Mapping:
        hint, several, info.metavar = str, True, "KEY=VALUE"
    info.help = info.help or text
    info.show_default = info.show_default and default is not True
    shape: Any = list[hint] if several else hint  # type: ignore[valid-type]
    if default is None or default == ():
        default, shape = None, shape | None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[shape, info],
    )


def _terminal_type(hint: Any) -> tuple[Any, bool]:
    """Return the type of one value on the command line, and whether there may be several.

    >>> _terminal_type(str | int | None), _terminal_type(Sequence[bytes])
    ((<class 'str'>, False), (<class 'bytes'>, True))
    """
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    union = get_origin(hint) in (Union, UnionType)
    choices = [one for one in (get_args(hint) if union else (hint,)) if one is not NoneType]
    for one in choices:
        if get_origin(one) in (Sequence, list, tuple):
            return _terminal_type(get_args(one)[0])[0], True
    plain = [one for one in choices if get_origin(one) is not Mapping]
    if not plain:
        return Mapping, True
    return (str if str in plain else plain[0]), False


def _docstring(owner: Any) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring, and what it says of each parameter or attribute."""
    about, *sections = re.split(r"^(\w+):\n", inspect.getdoc(owner) or "", flags=re.MULTILINE)
    texts: dict[str, str] = {}
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title in ("Args", "Attributes"):
            for entry in re.split(r"^    (?=\w+:)", body, flags=re.MULTILINE)[1:]:
                name, _, text = entry.partition(":")
                texts[name] = " ".join(text.split())
    return about.strip(), texts


def parse_settings(words: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` words; a value is TOML, ``null`` or otherwise text.

    >>> parse_settings(["epochs=3", "backbone=resnet8", "split=[0.6, 0.2, 0.2]", "imbalance=null"])
    {'epochs': 3, 'backbone': 'resnet8', 'split': [0.6, 0.2, 0.2], 'imbalance': None}
    """
    settings: dict[str, Any] = {}
    for word in words:
        key, mark, value = word.partition("=")
        if not mark or not key:
            raise LmdError(f"--set takes KEY=VALUE, not {word!r}")
        try:
            settings[key.strip()] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            settings[key.strip()] = None if value == "null" else value
    return settings
