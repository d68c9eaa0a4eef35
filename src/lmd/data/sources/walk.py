"""Listing files and images in folders; hidden files are skipped, and nothing else silently."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from lmd.base.errors import LmdError
from lmd.base.paths import FILE, FOLDER, MISSING, SPECIAL, what_is
from lmd.base.text import shorten
from lmd.data.reading import is_image

LOOP = "it links to a folder that contains it"


@dataclass
class Tree:
    """What is below a folder; ``unlisted`` folders and ``special`` entries by path, with why.

    ``files`` are regular files and broken links, those of a folder before those of its subfolders.
    ``special`` are pipes, sockets and devices, which are never opened.
    """

    files: list[Path] = field(default_factory=list)
    unlisted: dict[Path, str] = field(default_factory=dict)
    special: dict[Path, str] = field(default_factory=dict)


def is_hidden(name: str) -> bool:
    """Whether a file or folder belongs to the system: ``.DS_Store``, ``__MACOSX``."""
    return name.startswith(".") or name in {"__MACOSX", "Thumbs.db", "desktop.ini", "@eaDir"}


def tree_below(root: Path) -> Tree:
    """Everything below a folder that is not hidden; links are followed, loops of links are not."""
    tree, waiting = Tree(), [(root, _identities(root))]
    while waiting:  # not recursive: folders may be nested deeper than Python calls may be
        folder, above = waiting.pop()
        try:
            state = folder.stat()
            with os.scandir(folder) as entries:
                shown = [entry for entry in entries if not is_hidden(entry.name)]
        except OSError as error:
            tree.unlisted[folder] = error.strerror or str(error)
            continue
        here = (state.st_dev, state.st_ino)
        if here in above:
            tree.unlisted[folder] = LOOP
            continue
        inside = _sort_in(tree, folder, sorted(shown, key=lambda entry: entry.name))
        waiting += [(path, above | {here}) for path in reversed(inside)]
    return tree


def _identities(root: Path) -> frozenset[tuple[int, int]]:
    """Device and inode of all folders that contain this one."""
    try:
        states = [parent.stat() for parent in root.resolve().parents]
    except OSError:
        return frozenset()
    return frozenset((state.st_dev, state.st_ino) for state in states)


def _sort_in(tree: Tree, folder: Path, entries: list["os.DirEntry[str]"]) -> list[Path]:
    """Add files and special entries to the tree; returns the folders."""
    folders = []
    for entry in entries:
        path = folder / entry.name
        kind = what_is(path)
        if kind == FOLDER:
            folders.append(path)
        elif kind in SPECIAL:
            tree.special[path] = kind
        elif kind not in (FILE, MISSING) and not entry.is_file(follow_symlinks=False):
            tree.unlisted[path] = kind  # it may be a folder
        else:
            tree.files.append(path)
    return folders


def files_below(root: Path) -> list[Path]:
    """The files of ``tree_below``; an ``LmdError`` if a folder cannot be listed."""
    tree = tree_below(root)
    if tree.unlisted:
        listed = shorten([f"{path}: {why}" for path, why in tree.unlisted.items()])
        raise LmdError(f"cannot list all folders in {root} ({listed}): make them readable")
    return tree.files


def images_of(files: list[Path], root: Path) -> list[Path]:
    """The images among files, sorted by path."""
    return sorted(filter(is_image, files), key=lambda path: path.relative_to(root).parts)


def images_below(root: Path) -> list[Path]:
    """All images in a folder and its subfolders, sorted by path; errors as in ``files_below``."""
    return images_of(files_below(root), root)


def visible(folder: Path) -> list[Path]:
    """What a folder contains, without hidden files; nothing if it cannot be listed."""
    try:
        return sorted(path for path in folder.iterdir() if not is_hidden(path.name))
    except OSError:
        return []
