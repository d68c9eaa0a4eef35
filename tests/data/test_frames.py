"""Files with several frames or pages: the first is taken, and it is said."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from dicoms import write_dicom
from PIL import Image
from toys import Listening

from lmd.base.errors import LmdError
from lmd.data.cache import decode
from lmd.data.images import is_image, open_image, read_image
from lmd.data.sources import open_table
from lmd.doctor.examine import examine

GREY = np.arange(64, dtype=np.uint8).reshape(8, 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of single images, and one file of three frames in three formats."""
    for name in ("a/0.png", "b/0.jpg", "b/1.png"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(GREY).save(tmp_path / "data" / name)
    pages = [Image.fromarray(GREY), Image.fromarray(GREY.T), Image.fromarray(255 - GREY)]
    for suffix in ("tif", "gif"):
        place = tmp_path / "data" / "a" / f"pages.{suffix}"
        pages[0].save(place, save_all=True, append_images=pages[1:])
    write_dicom(tmp_path / "data" / "a" / "frames.dcm", np.stack([GREY, GREY.T, 255 - GREY]))
    return tmp_path / "data"


def frames_of(path: Path) -> int:
    with open_image(path) as image:
        return image.frames


def test_frames_are_counted(folder: Path) -> None:
    found = {path.name: frames_of(path) for path in sorted(folder.rglob("*.*"))}
    assert found == {
        "0.png": 1, "0.jpg": 1, "1.png": 1, "pages.tif": 3, "pages.gif": 3, "frames.dcm": 3
    }  # fmt: skip


def test_training_says_which_frame_was_taken(folder: Path, tmp_path: Path) -> None:
    display = Listening()
    decode(open_table(folder), 8, display, folder=tmp_path / "cache")
    assert display.said == [
        "  data: 3 files have several frames or pages, and the first was taken: a/frames.dcm (3), "
        "a/pages.gif (3), a/pages.tif (3)."
    ]
    decode(open_table(folder), 8, display, folder=tmp_path / "cache")
    assert len(display.said) == 1  # nothing was decoded


def test_the_doctor_finds_frames_of_dicom_too(folder: Path) -> None:
    found = examine(folder)
    (frames,) = [each for each in found.findings if each.kind == "frames"]
    assert len(frames.cases) == 3


def test_a_uid_is_a_name_without_a_suffix(tmp_path: Path) -> None:
    place = write_dicom(tmp_path / "1.2.840.10008.5", GREY)
    assert is_image(Path(str(place)))
    (tmp_path / "notes.1").write_text("x" * 200)
    assert not is_image(tmp_path / "notes.1")


def test_odd_dicom_files_are_refused_without_a_warning(tmp_path: Path) -> None:
    data = Path(str(write_dicom(tmp_path / "a.dcm", GREY))).read_bytes()
    odd = tmp_path / "odd.dcm"
    odd.write_bytes(data.replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.1."))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(LmdError, match=r"odd\.dcm cannot be read"):
            read_image(odd)
    assert not caught
