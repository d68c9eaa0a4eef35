"""Options that several commands share, so that they read the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Go on without unreadable images.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on the terminal.")]
SOURCES = "A folder of class folders, a .csv manifest, an .npz, or 'synthetic'."

# How a manifest is read.
ImageColumn = Annotated[
    str | None, typer.Option(help="Of a .csv manifest; default 'image'.", show_default=False)
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Of a .csv manifest; default 'label'.", show_default=False)
]
GroupColumn = Annotated[
    str | None,
    typer.Option(help="Of a .csv manifest: patient or lesion; default 'group' if it is there."),
]
SplitColumn = Annotated[
    str | None, typer.Option(help="Of a .csv manifest; default 'split' if it is there.")
]
Root = Annotated[Path | None, typer.Option(help="Folder that a manifest's image paths start from.")]
AllowOutside = Annotated[
    bool, typer.Option("--allow-outside", help="Let a manifest's paths leave its root.")
]
