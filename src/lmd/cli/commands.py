"""The list of commands; each is imported when it is used, so that ``lmd --help`` is fast."""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lmd import __version__
from lmd.base.command import as_command

# A name of two words is a command of a group.
COMMANDS = {
    "demo": "lmd.cli.demo:demo",
    "train": "lmd.crossval.command:train",
    "evaluate": "lmd.evaluation.command:evaluate",
    "predict": "lmd.predict.command:predict",
    "export": "lmd.export.command:export",
    "serve": "lmd.serve.command:serve",
    "methods": "lmd.cli.describe:methods",
    "protocols": "lmd.cli.describe:protocols",
    "explain": "lmd.explain.command:explain",
    "index": "lmd.explain.command:index",
    "show": "lmd.report.command:show",
    "runs": "lmd.report.command:runs",
    "report": "lmd.report.command:report",
    "choose": "lmd.benchmark.command:choose",
    "calibrate": "lmd.frozen.command:calibrate",
    "benchmark": "lmd.benchmark.command:benchmark",
    "table": "lmd.benchmark.command:table",
    "figure recall": "lmd.benchmark.figures.command:recall",
    "figure ablation": "lmd.benchmark.figures.command:ablation",
    "figure difference": "lmd.benchmark.figures.command:difference",
    "figure cd": "lmd.benchmark.figures.command:cd",
    "figure cost": "lmd.benchmark.figures.command:cost",
    "figure sweep": "lmd.benchmark.figures.command:sweep",
    "figure classes": "lmd.benchmark.figures.command:classes",
    "figure tsne": "lmd.benchmark.figures.command:tsne",
    "figure method": "lmd.benchmark.figures.command:method",
    "data doctor": "lmd.doctor.command:doctor",
    "data make": "lmd.recipes.command:make",
    "data list": "lmd.recipes.command:list_recipes",
    "data pseudo-tails": "lmd.benchmark.command:pseudo_tails",
}
GROUPS = {
    "figure": "Draw figures for a paper: SVG, PDF or PNG, each with its data as CSV beside it.",
    "data": "Prepare a data set for training: recipes and checks.",
}


class _Group(TyperGroup):
    """A group that imports its commands when they are needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        prefix = f"{self.name} ".lstrip()
        names = [name.removeprefix(prefix) for name in COMMANDS if name.startswith(prefix)]
        return [name for name in names if " " not in name] + ([] if prefix else list(GROUPS))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        names = self.list_commands(ctx)
        # Of an unknown command, Typer looks for the nearest in ``commands``.
        for name in [cmd_name] if cmd_name in names else names:
            if name not in self.commands:
                module, _, function = COMMANDS[f"{self.name} {name}".lstrip()].partition(":")
                single = typer.Typer(add_completion=False, rich_markup_mode="rich")
                single.command(name)(as_command(getattr(import_module(module), function)))
                self.commands[name] = typer.main.get_command(single)
        return self.commands.get(cmd_name)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train, compare and ship classifiers for long-tailed medical images.",
)
for _name, _help in GROUPS.items():
    app.add_typer(typer.Typer(cls=_Group, no_args_is_help=True, help=_help), name=_name)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lmd {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    pass
