"""Listing files and images in folders; hidden files are skipped."""

import os
from pathlib import Path

from lmd.data.reading import is_image


def is_hidden(name: str) -> bool:
    """Whether a file or folder belongs to the system: ``.DS_Store``, ``__MACOSX``."""
    return name.startswith(".") or name in {"__MACOSX", "Thumbs.db", "desktop.ini", "@eaDir"}


def files_below(root: Path) -> list[Path]:
    """All files that are not hidden, those of a folder before those of its subfolders."""
    found = []
    for place, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        found += [Path(place) / name for name in sorted(files) if not is_hidden(name)]
    return found


def images_below(root: Path) -> list[Path]:
    """All images in a folder and its subfolders, sorted by path."""
    return sorted(
        filter(is_image, files_below(root)), key=lambda path: path.relative_to(root).parts
    )


def visible(folder: Path) -> list[Path]:
    """What a folder contains, without hidden files; nothing if it cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if not is_hidden(path.name))
    except OSError:
        return []
