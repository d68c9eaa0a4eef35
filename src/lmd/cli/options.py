"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Continue without unreadable images.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
KeepFeatures = Annotated[
    bool,
    typer.Option(
        "--keep-features",
        help="Keep the features of the training images, for the nearest cases of `lmd explain`.",
    ),
]
UnlikeAbove = Annotated[
    float | None,
    typer.Option(
        help="Flag images farther from the training images than this share of the validation "
        "images.",
        show_default="0.99",
    ),
]
SOURCES = "A folder of class folders, a .csv manifest, an .npz, or 'synthetic'."

# How to read a .csv manifest.
ImageColumn = Annotated[
    str | None, typer.Option(help="Column of the image paths; default 'image'.")
]
LabelColumn = Annotated[str | None, typer.Option(help="Column of the classes; default 'label'.")]
GroupColumn = Annotated[
    str | None, typer.Option(help="Column of patients or lesions; default 'group' if it exists.")
]
SplitColumn = Annotated[
    str | None, typer.Option(help="Column of the parts; default 'split' if it exists.")
]
Root = Annotated[
    Path | None, typer.Option(help="Folder of the images; default: that of the manifest.")
]
AllowOutside = Annotated[
    bool, typer.Option("--allow-outside", help="Allow image paths that leave the root.")
]


def given_columns(context: typer.Context) -> dict[str, Any]:
    """The options above that were given, as keywords of ``open_table``."""
    names = ("image_column", "label_column", "group_column", "split_column")
    given = {key: context.params[key] for key in names if context.params[key] is not None}
    if context.params["root"] is not None:
        given["root"] = str(context.params["root"])
    return given | ({"allow_outside": True} if context.params["allow_outside"] else {})
