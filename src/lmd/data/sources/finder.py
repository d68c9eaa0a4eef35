"""Search for the image files that names refer to."""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from lmd.base.paths import FILE, what_is, whole
from lmd.data.reading import SUFFIXES
from lmd.data.sources.walk import images_of, tree_below


@dataclass
class Finder:
    """Finds the files that names refer to; each folder is listed only once.

    ``unlisted`` are the folders of the search that cannot be listed, with the reason.
    """

    root: Path
    beside: tuple[Path, ...]
    listings: dict[Path, tuple[dict[str, Path], dict[str, list[Path]]]] = field(
        default_factory=dict
    )
    unlisted: dict[Path, str] = field(default_factory=dict)

    @cached_property
    def places(self) -> list[Path]:
        """The folders that names may be relative to, in the order of the search."""
        return list(dict.fromkeys((self.root, *self.beside)))

    def find(self, name: str) -> list[Path]:
        """The files that a name may refer to: none, one, or several."""
        wanted = PurePosixPath(name)
        for place in self.places:
            whole, stems = self._listing((place / wanted).parent)
            if wanted.name in whole:
                return [whole[wanted.name]]
            if wanted.name in stems:
                return stems[wanted.name]
        return self._below.get(name, [])

    def _listing(self, folder: Path) -> tuple[dict[str, Path], dict[str, list[Path]]]:
        if folder not in self.listings:
            whole: dict[str, Path] = {}
            stems: dict[str, list[Path]] = defaultdict(list)
            for name in self._names(folder):
                file = folder / name
                if what_is(file) == FILE:
                    whole[name] = file
                    if file.suffix.lower() in SUFFIXES:
                        stems[file.stem].append(file)
            self.listings[folder] = (whole, stems)
        return self.listings[folder]

    def _names(self, folder: Path) -> list[str]:
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return []
        except OSError as error:
            self.unlisted[folder] = error.strerror or str(error)
            return []

    @cached_property
    def _below(self) -> dict[str, list[Path]]:
        """All images below the root, by name and by stem."""
        found: dict[str, list[Path]] = defaultdict(list)
        tree = tree_below(self.root)
        self.unlisted |= tree.unlisted
        for file in images_of([file for file in tree.files if what_is(file) == FILE], self.root):
            for name in {file.name, file.stem}:
                found[name].append(file)
        return found


def common_root(root: Path, paths: Sequence[Path]) -> Path:
    """The root of the data, or the nearest folder above it that contains all images."""
    top, places = whole(root), [whole(path) for path in paths]
    if all(path.is_relative_to(top) for path in places):
        return root
    return Path(os.path.commonpath([top, *(path.parent for path in places)]))


def written_path(path: Path, root: Path) -> str:
    """How a manifest refers to an image below its root."""
    name = whole(path).relative_to(whole(root)).as_posix()
    # The manifest reader strips cells.
    return f"./{name}" if name != name.lstrip() else name
