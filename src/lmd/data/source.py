"""Where images and labels are, and how they are read; the text of ``Attributes`` is also help."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lmd.base.errors import LmdError
from lmd.base.text import unknown

if TYPE_CHECKING:
    from lmd.runs.record import Request


@dataclass(frozen=True)
class Columns:
    """How to read a manifest.

    Attributes:
        image_column: Column of the image paths; by default 'image'.
        label_column: Column of the classes; by default 'label'.
        group_column: Column of patients or lesions; by default 'group' if it exists. An empty
            string ignores it.
        split_column: Column of the parts; by default 'split' if it exists. An empty string
            ignores it.
        root: Folder of the images; by default the folder of the manifest.
        allow_outside: Allow image paths that leave the root.
    """

    image_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None
    split_column: str | None = None
    root: str | Path | None = None
    allow_outside: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any] | None) -> Self:
        """Check the names of a mapping, which may be absent."""
        names = [field.name for field in fields(cls)]
        for name in values or {}:
            if name not in names:
                raise LmdError(f"columns: {unknown('name', name, names)}")
        return cls(**(values or {}))

    def changed(self) -> dict[str, Any]:
        """Return what differs from the default, ready for JSON.

        >>> Columns(label_column="dx", root=Path("images")).changed()
        {'label_column': 'dx', 'root': 'images'}
        """
        values = {k: str(v) if isinstance(v, Path) else v for k, v in vars(self).items()}
        return {name: value for name, value in values.items() if value not in (None, False)}

    def words(self) -> list[str]:
        """Return the options of a command that set these columns.

        >>> Columns(label_column="dx", allow_outside=True).words()
        ['--label-column', 'dx', '--allow-outside']
        """
        words: list[str] = []
        for name, value in self.changed().items():
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return words


@dataclass(frozen=True)
class Source:
    """A data set as a user names it.

    Attributes:
        data: A folder of class folders, a .csv manifest, an .npz, or 'synthetic'.
        columns: How to read a manifest.
        skip_bad: Continue without unreadable images.
    """

    data: str | Path
    columns: Columns = Columns()
    skip_bad: bool = False

    @classmethod
    def of(cls, request: "Request", moved: str | None = None) -> Self:
        """Return the source that the record of a run names, or where it has ``moved``."""
        columns = dict(request.columns)
        if moved is not None and not Path(columns.get("root", ".")).is_dir():
            columns.pop("root")  # the images have moved with the data
        return cls(moved or request.data, Columns.of(columns), request.skip_bad)

    def words(self) -> list[str]:
        """Return the options of a command that read this source, without ``data`` itself."""
        return [*self.columns.words(), *(["--skip-bad"] if self.skip_bad else [])]
