"""Tiny grids on toy images, and the files of their runs."""

import io
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console
from toys import write_npz

from lmd.benchmark.run import Board, open_board

PROTOCOL = """
[protocol]
backbone = "resnet8"
weights = "none"
image_size = 16
epochs = {epochs}
batch_size = 8
"""
FILES = ("model.safetensors", "predictions.npz")


def write_grid(folder: Path, text: str, epochs: int = 1) -> Path:
    write_npz(folder / "toy.npz")
    path = folder / "grid.toml"
    path.write_text('data = "toy.npz"\n' + text.replace("PROTOCOL", PROTOCOL.format(epochs=epochs)))
    return path


def quiet_board() -> AbstractContextManager[Board]:
    return open_board(Console(file=io.StringIO()))


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}
