"""The page for people and the page of the API: nothing is loaded from other places."""

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lmd import __version__
from lmd.serve.problems import KINDS
from lmd.serve.schemas import ModelInfo

if TYPE_CHECKING:
    from lmd.serve.service import Service


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("lmd.serve", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@lru_cache(maxsize=4)
def _source(name: str) -> tuple[str, str]:
    """The text of a template file, and its hash as a source of the content security policy."""
    loader = _environment().loader
    assert loader is not None
    text = loader.get_source(_environment(), name)[0]
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return text, f"'sha256-{digest}'"


def front_page(models: Sequence[ModelInfo], service: "Service") -> tuple[str, str]:
    """The page for people, and its content security policy."""
    style, style_hash = _source("serve.css")
    script, script_hash = _source("serve.js")
    limits = service.limits
    text = (
        _environment()
        .get_template("serve.html")
        .render(
            models=[model.model_dump(exclude={"card"}) for model in models],
            cards={model.name: card_html(model.card) for model in models if model.card},
            limits={
                "files": limits.max_files,
                "bytes": limits.request_bytes,
                "image": limits.image_bytes,
            },
            image_mb=f"{limits.max_image_mb:g}",
            style=style,
            script=script,
            version=__version__,
        )
    )
    return text, _policy(style_hash, script_hash)


_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # metadata for model hubs


def card_html(text: str) -> Markup:
    """A model card as HTML: markup in it is shown as text, and headings fit below the page's."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("js-default")  # without raw HTML
    tokens = parser.parse(_FRONT_MATTER.sub("", text))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 2, 6)}"
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def api_page(description: dict[str, Any]) -> tuple[str, str]:
    """The description of the API as a page without scripts, and its policy."""
    style, style_hash = _source("serve.css")
    text = (
        _environment()
        .get_template("api.html")
        .render(
            paths=description["paths"],
            schemas=description["components"]["schemas"],
            kinds=KINDS,
            style=style,
            version=__version__,
        )
    )
    return text, _policy(style_hash, "'none'")


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
