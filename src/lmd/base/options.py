"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Continue without unreadable images.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the output file if it exists.")
]
KeepFeatures = Annotated[
    bool,
    typer.Option(
        "--keep-features",
        help="Keep the features of the training images, for the nearest cases of `lmd explain`.",
    ),
]
NoImages = Annotated[
    bool,
    typer.Option("--no-images", help="Keep pictures of test images out of the report."),
]
UnlikeAbove = Annotated[
    float | None,
    typer.Option(
        help="Flag images farther from the training images than this share of the validation "
        "images.",
        show_default="0.99",
    ),
]
Seed = Annotated[int | None, typer.Option(help="The seed of the run; default 0.")]
Epochs = Annotated[
    int | None, typer.Option(help="Epochs of the first stage.", show_default="the protocol's")
]
ImageSize = Annotated[
    int | None,
    typer.Option(help="Side of the square images in pixels.", show_default="the protocol's"),
]
Tta = Annotated[
    bool,
    typer.Option(
        "--tta",
        help="Average the probabilities of each image over its three mirror images too: four times "
        "the work.",
    ),
]
SOURCES = "A folder of class folders, a .csv manifest, an .npz, or 'synthetic'."

Log = Annotated[
    list[str] | None,
    typer.Option(
        help="Report epochs and results to tensorboard, mlflow or wandb too, offline by default; "
        "can be repeated.",
        show_default="none",
    ),
]

# Cross-validation.
Folds = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Cross-validate: train this many models side by side, so that every image is tested "
        "once.",
        show_default="one model",
    ),
]
Final = Annotated[
    str | None,
    typer.Option(
        help="The model that --folds ships: average (the mean answer of all folds), refit (one "
        "more model, trained on all images) or none.",
        show_default="average",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Trainings at once with --folds.",
        show_default="one for each GPU or core",
    ),
]

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

# How probabilities become decisions.
Prevalence = Annotated[
    str | None,
    typer.Option(
        help="The mix of classes where the model is used: uniform, training, a .csv with "
        'class,prevalence, or "A=0.7,B=0.3".',
        show_default="the mix that the model answers for",
    ),
]
Costs = Annotated[
    Path | None,
    typer.Option(
        help="A .csv with class,cost, or a table of true by predicted classes: decide for the "
        "class with the least expected cost.",
        show_default="the most probable class",
    ),
]
Coverage = Annotated[
    float | None,
    typer.Option(
        help="Give a set of classes that contains the true one with this probability, such as 0.9."
    ),
]
ReferAbove = Annotated[
    int | None,
    typer.Option(
        help="Refer images with more classes in their set to a person.", show_default="never"
    ),
]


def given_columns(context: typer.Context) -> dict[str, Any]:
    """The options above that were given, as keywords of ``open_table``."""
    names = ("image_column", "label_column", "group_column", "split_column")
    given = {key: context.params[key] for key in names if context.params[key] is not None}
    if context.params["root"] is not None:
        given["root"] = str(context.params["root"])
    return given | ({"allow_outside": True} if context.params["allow_outside"] else {})
