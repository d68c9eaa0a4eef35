"""Find the files and images in a folder and the folders below it."""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lmd.base.errors import LmdError
from lmd.base.files import FILE, FOLDER, MISSING, SPECIAL, what_is
from lmd.base.text import shorten
from lmd.data.images import is_image

LOOP = "it links to a folder that contains it"


@dataclass
class Tree:
    """What is below a folder; ``unlisted`` folders and ``special`` entries by path, with why.

    ``files`` are regular files and broken links, a folder's before its subfolders'.
    ``special`` are pipes, sockets and devices, which are never opened.
    """

    files: list[Path] = field(default_factory=list)
    unlisted: dict[Path, str] = field(default_factory=dict)
    special: dict[Path, str] = field(default_factory=dict)


def _is_hidden(name: str) -> bool:
    """Return whether a file or folder belongs to the system: ``.DS_Store``, ``__MACOSX``."""
    return name.startswith(".") or name in {"__MACOSX", "Thumbs.db", "desktop.ini", "@eaDir"}


def visible(folder: Path) -> list[Path]:
    """Return what a folder contains, without hidden files; nothing if it cannot be listed."""
    try:
        return sorted(path for path in folder.iterdir() if not _is_hidden(path.name))
    except OSError:
        return []


def tree_below(root: Path) -> Tree:
    """List what is below a folder and not hidden; follow links, but not loops of links."""
    tree, parents = Tree(), []
    with suppress(OSError):
        parents = [parent.stat() for parent in root.resolve().parents]
    waiting = [(root, frozenset((state.st_dev, state.st_ino) for state in parents))]
    while waiting:  # not recursive: folders may be nested deeper than Python calls may be
        folder, above = waiting.pop()
        try:
            state = folder.stat()
            with os.scandir(folder) as entries:
                shown = [entry for entry in entries if not _is_hidden(entry.name)]
        except OSError as error:
            tree.unlisted[folder] = error.strerror or str(error)
            continue
        here = (state.st_dev, state.st_ino)
        if here in above:
            tree.unlisted[folder] = LOOP
            continue
        folders = []
        for entry in sorted(shown, key=lambda entry: entry.name):
            path = folder / entry.name
            kind = what_is(path)
            if kind == FOLDER:
                folders.append((path, above | {here}))
            elif kind in SPECIAL:
                tree.special[path] = kind
            elif kind not in (FILE, MISSING) and not entry.is_file(follow_symlinks=False):
                tree.unlisted[path] = kind  # it may be a folder
            else:
                tree.files.append(path)
        waiting += reversed(folders)
    return tree


def files_below(root: Path) -> list[Path]:
    """Return the files of ``tree_below``; refuse a folder that cannot be listed."""
    tree = tree_below(root)
    if tree.unlisted:
        listed = shorten([f"{path}: {why}" for path, why in tree.unlisted.items()])
        raise LmdError(f"cannot list all folders in {root} ({listed}): make them readable")
    return tree.files


def images_of(files: list[Path], root: Path) -> list[Path]:
    """Return the images among files, sorted by path."""
    return sorted(filter(is_image, files), key=lambda path: path.relative_to(root).parts)
