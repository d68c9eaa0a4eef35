"""Search for the image files that names refer to."""

import os
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from lmd.data.reading import SUFFIXES
from lmd.data.sources.walk import images_below


@dataclass
class Finder:
    """Finds the files that names refer to; each folder is listed only once."""

    root: Path
    beside: tuple[Path, ...]
    listings: dict[Path, tuple[dict[str, Path], dict[str, list[Path]]]] = field(
        default_factory=dict
    )

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
            if folder.is_dir():
                for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                    if entry.is_file():
                        file = folder / entry.name
                        whole[entry.name] = file
                        if file.suffix.lower() in SUFFIXES:
                            stems[file.stem].append(file)
            self.listings[folder] = (whole, stems)
        return self.listings[folder]

    @cached_property
    def _below(self) -> dict[str, list[Path]]:
        """All images below the root, by name and by stem."""
        found: dict[str, list[Path]] = defaultdict(list)
        for file in filter(Path.is_file, images_below(self.root)):
            for name in {file.name, file.stem}:
                found[name].append(file)
        return found
