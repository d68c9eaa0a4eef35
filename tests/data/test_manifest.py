"""Manifests: what is accepted, and what is refused with which words."""

import pickle
from pathlib import Path

import pytest
from PIL import Image
from toys import SHARED

from lmd.base.errors import LmdError
from lmd.data.sources import open_table, scan_source

HAM = SHARED / "data" / "ham10000" / "HAM10000_metadata.csv"


def image(path: Path, value: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2), (value, 0, 0)).save(path)
    return path


def manifest(folder: Path, text: str, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def pictures(tmp_path):
    for i, name in enumerate(["a", "b", "c", "d"]):
        image(tmp_path / f"{name}.png", i)
    return tmp_path


def test_manifest(pictures):
    text = "image,label,group,split\na.png,x,p1,train\nb.png,y,p2,Val\nc.png,y,,test\n\n"
    table = open_table(manifest(pictures, text))
    assert table.kind == "manifest"
    assert table.ids.tolist() == ["a.png", "b.png", "c.png"]
    assert table.labels.tolist() == [0, 1, 1]
    assert table.classes == ("x", "y")
    assert table.groups.tolist() == ["p1", "p2", "image c.png"]
    assert table.parts.tolist() == ["train", "validation", "test"]
    assert table.read(1)[0, 0, 0] == 1
    assert pickle.loads(pickle.dumps(table)).read(1)[0, 0, 0] == 1


def test_manifest_without_optional_columns_and_with_them_turned_off(pictures):
    table = open_table(manifest(pictures, "image,label\na.png,x\nb.png,y\n"))
    assert table.groups is None
    assert table.parts is None
    path = manifest(pictures, "image,label,group,split\na.png,x,p,train\nb.png,y,p,test\n")
    table = open_table(path, group_column="", split_column="")
    assert table.groups is None
    assert table.parts is None


def test_manifest_of_a_spreadsheet(pictures):
    path = pictures / "data.csv"
    path.write_bytes("\ufeffimage;label;note\r\na.png; x ;1,5\r\nb.png;y;2,5\r\n".encode())
    assert open_table(path).classes == ("x", "y")
    path = manifest(pictures, "image\tlabel\na.png\tx\nb.png\ty\n", "data.tsv")
    assert open_table(path).classes == ("x", "y")
    path = manifest(pictures, 'image,label\n"a.png","x, or so"\nb.png,y\n')
    assert open_table(path).classes == ("x, or so", "y")


def test_manifest_finds_images(tmp_path):
    text = "image,label\none,x\nsub/two,y\nthree.jpg,y\nfour.v2,x\n"
    folder = tmp_path / "csv"
    image(folder / "one.png", 1)
    image(folder / "images" / "sub" / "two.JPG", 2)
    image(folder / "images" / "three.jpg", 3)
    image(folder / "part_2" / "four.v2.png", 4)
    table = open_table(manifest(folder, text))
    assert table.ids.tolist() == ["one", "sub/two", "three.jpg", "four.v2"]
    assert [int(path.is_file()) for path in table.images.paths] == [1, 1, 1, 1]
    assert table.read(3)[0, 0, 0] == 4


def test_manifest_root_comes_first(tmp_path):
    image(tmp_path / "csv" / "a.png", 1)
    image(tmp_path / "csv" / "b.png", 1)
    image(tmp_path / "root" / "a.png", 2)
    image(tmp_path / "root" / "deep" / "down" / "c.png", 3)
    path = manifest(tmp_path / "csv", "image,label\na.png,x\nb.png,y\nc,y\n")
    table = open_table(path, root=tmp_path / "root")
    assert [table.read(i)[0, 0, 0] for i in range(3)] == [2, 1, 3]


def test_manifest_with_an_ambiguous_name(pictures):
    image(pictures / "a.bmp")
    path = manifest(pictures, "image,label\na,x\nb,y\n")
    with pytest.raises(
        LmdError,
        match=r"1 name may mean several files \(line 2: a: .*a.bmp or .*a.png\): write the",
    ):
        open_table(path)
    image(pictures / "p" / "e.png")
    image(pictures / "q" / "e.png")
    path = manifest(pictures, "image,label\ne.png,x\nb,y\n")
    with pytest.raises(LmdError, match=r"line 2: e.png: .*p/e.png or .*q/e.png"):
        open_table(path)


@pytest.mark.parametrize("cell", ["../out.png", "x/../../out.png", "..\\out.png", "C:\\out.png"])
def test_manifest_does_not_leave_the_root(tmp_path, cell):
    image(tmp_path / "out.png")
    image(tmp_path / "in" / "a.png")
    path = manifest(tmp_path / "in", f"image,label\na.png,x\n{cell},y\n")
    with pytest.raises(
        LmdError, match=r"1 path leaves the root \(line 3: .*out.png\): .*--allow-outside"
    ):
        open_table(path, skip_bad=True)


def test_manifest_may_leave_the_root_if_allowed(tmp_path):
    out = image(tmp_path / "out.png", 9)
    image(tmp_path / "in" / "x" / "a.png", 1)
    image(tmp_path / "in" / "b.png", 2)
    path = manifest(tmp_path / "in", f"image,label\nx/a.png,x\n{out},y\n")
    with pytest.raises(LmdError, match="leaves the root"):
        open_table(path)
    assert open_table(path, allow_outside=True).read(1)[0, 0, 0] == 9
    path = manifest(tmp_path / "in", "image,label\nx/a.png,x\n../out.png,y\n")
    assert open_table(path, allow_outside=True).read(1)[0, 0, 0] == 9
    path = manifest(tmp_path / "in", "image,label\nx/a.png,x\nx/../b.png,y\n")
    assert open_table(path).read(1)[0, 0, 0] == 2  # stays inside


def test_absolute_paths_inside_the_root_are_those_below_it(tmp_path, monkeypatch):
    image(tmp_path / "in" / "x" / "a.png", 1)
    image(tmp_path / "in" / "b.png", 2)
    (tmp_path / "link").symlink_to(tmp_path / "in")
    text = f"image,label\n{tmp_path}/in/x/a.png,x\n{tmp_path}/in/x/../b.png,y\n"
    monkeypatch.chdir(tmp_path)
    for root in (None, "in", tmp_path / "link", "in/../in"):
        table = open_table(manifest(tmp_path / "in", text), root=root)
        assert table.ids.tolist() == ["x/a.png", "b.png"]
        assert table.read(1)[0, 0, 0] == 2
    (tmp_path / "in" / "x" / "y").mkdir()
    with pytest.raises(LmdError, match="2 paths leave the root"):
        open_table(manifest(tmp_path / "in", text), root="in/x/..///x/y")
    # A misspelt root must not be replaced silently by the folder of the manifest.
    with pytest.raises(LmdError, match="im is not a folder"):
        open_table(manifest(tmp_path / "in", text), root="im")


def test_a_name_of_any_length_is_one_readable_line(tmp_path):
    image(tmp_path / "a.png")
    path = manifest(tmp_path, f"image,label,split\na.png,x,train\n{'n' * 5000},y,{'s' * 5000}\n")
    for columns in ({}, {"image_column": "split"}):
        with pytest.raises(LmdError) as refused:
            open_table(path, **columns)
        assert len(str(refused.value)) < 1500


def test_manifest_column_errors(pictures):
    path = manifest(pictures, "file,diagnosis\na.png,x\nb.png,y\n")
    with pytest.raises(
        LmdError,
        match=r"no column 'image'; the columns are file, diagnosis: .*--image-column file",
    ):
        open_table(path)
    with pytest.raises(
        LmdError, match=r"no column 'label'; the columns are .*--label-column diagnosis"
    ):
        open_table(path, image_column="file")
    columns = {"image_column": "file", "label_column": "diagnosis"}
    with pytest.raises(LmdError, match=r"no column 'patient'; .* with --group-column"):
        open_table(path, **columns, group_column="patient")
    with pytest.raises(LmdError, match=r"no column 'split'; .* with --split-column"):
        open_table(path, **columns, split_column="split")
    assert len(open_table(path, **columns)) == 2


def test_manifest_cell_errors(pictures):
    path = manifest(pictures, "image,label\na.png,x\nb.png,\nc.png,y\nd.png\n")
    with pytest.raises(
        LmdError, match=r"2 lines have no label \(line 3: b.png, line 5: d.png\): fill in the label"
    ):
        open_table(path)
    table = open_table(path, skip_bad=True)
    assert table.ids.tolist() == ["a.png", "c.png"]
    assert table.skipped[0] == "line 3: b.png: no label"
    path = manifest(pictures, "image,label,split\na.png,x,train\nb.png,y,dev\n")
    with pytest.raises(
        LmdError,
        match=r"1 line has no known part in column 'split' \(line 3: b.png: 'dev'\): use",
    ):
        open_table(path)


def test_manifest_images_missing_on_disk(pictures):
    lines = "".join(f"gone{i}.png,x\n" for i in range(5))
    path = manifest(pictures, f"image,label\na.png,x\nb.png,y\n{lines},y\n")
    with pytest.raises(
        LmdError,
        match=r"6 images are not on disk \(line 4: gone0.png, line 5: gone1.png, "
        r"line 6: gone2.png and 3 more\): set .*root.* \(searched: .* or .*images\), or leave",
    ):
        open_table(path)
    table = open_table(path, skip_bad=True)
    assert len(table) == 2
    assert len(table.skipped) == 6
    assert table.skipped[0] == "line 4: gone0.png: not on disk"
    path = manifest(pictures, "image,label\ngone.png,x\n")
    with pytest.raises(LmdError, match="none of its images can be used"):
        open_table(path, skip_bad=True)


def test_manifest_repeats(pictures):
    path = manifest(pictures, "image,label\na.png,x\nb.png,y\n./a.png,x\n")
    table = open_table(path)
    assert table.ids.tolist() == ["a.png", "b.png"]
    assert table.skipped == ("line 4: a.png: repeats another line (line 2)",)
    path = manifest(pictures, "image,label\na.png,x\nb.png,y\na,y\n")
    with pytest.raises(
        LmdError,
        match=r"1 image has lines .*line 4: a: label 'y', but 'x' in line 2\): find out",
    ):
        open_table(path)
    path = manifest(pictures, "image,label,split\na.png,x,train\nb.png,y,test\na.png,x,test\n")
    with pytest.raises(LmdError, match=r"a.png: part 'test', but 'train' in line 2"):
        open_table(path)
    path = manifest(pictures, "image,label,group\na.png,x,p\nb.png,y,q\na.png,x,q\n")
    with pytest.raises(LmdError, match=r"a.png: group 'q', but 'p' in line 2"):
        open_table(path)


def test_manifest_file_errors(pictures):
    with pytest.raises(LmdError, match=r"has only one class \('x'\)"):
        open_table(manifest(pictures, "image,label\na.png,x\nb.png,x\n"))
    with pytest.raises(LmdError, match="the file has no lines below its header"):
        open_table(manifest(pictures, "image,label\n"))
    with pytest.raises(LmdError, match="the file has no lines below its header"):
        open_table(manifest(pictures, ""))
    path = pictures / "latin.csv"
    path.write_bytes("image,label\na.png,Nävus\n".encode("latin-1"))
    with pytest.raises(
        LmdError, match=r"latin.csv: the file is not UTF-8 text .*save the file as CSV in UTF-8"
    ):
        open_table(path)


@pytest.mark.skipif(not HAM.exists(), reason="HAM10000 is not here")
def test_ham10000():
    table = open_table(HAM, image_column="image_id", label_column="dx", group_column="lesion_id")
    assert len(table) == 10015
    assert table.classes == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    assert table.counts().tolist() == [327, 514, 1099, 115, 1113, 6705, 142]
    assert len(set(table.groups.tolist())) == 7470
    assert table.ids[0] == "ISIC_0027419"
    assert table.read(0).shape == (150, 200, 3)
    assert table.read(0).std() > 5
    assert table.skipped == ()


def test_the_case_of_header_names_is_ignored(pictures):
    path = manifest(pictures, "IMAGE,Label,Lesion ID,Split\na.png,x,1,Train\nb.png,y,2,TEST\n")
    table = open_table(path, group_column="lesion id")
    assert table.label_names().tolist() == ["x", "y"]
    assert table.parts.tolist() == ["train", "test"]
    assert table.groups.tolist() == ["1", "2"]
    # Only where two names differ in nothing else does it matter.
    path = manifest(pictures, "image,Label,label\na.png,no,x\nb.png,no,y\n")
    assert open_table(path).classes == ("x", "y")
    path = manifest(pictures, "image,Label,LABEL\na.png,x,1\nb.png,y,2\n")
    with pytest.raises(LmdError, match="no column 'label'"):
        open_table(path)


@pytest.mark.parametrize("groups", [("p1", ""), ("", "p1")])
def test_an_empty_group_cell_contradicts_nothing(tmp_path: Path, groups: tuple[str, str]) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    lines = [f"a.png,nevus,{group}" for group in groups]
    (tmp_path / "m.csv").write_text("\n".join(["image,label,group", *lines]))
    scan = scan_source(tmp_path / "m.csv")
    assert [case.fault for case in scan.cases] == ["", "repeated_row"]
    assert scan.cases[0].group == "p1"
