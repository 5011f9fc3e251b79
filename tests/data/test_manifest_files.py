"""Bad folders and files are refused in words that say what, where, and what to do."""

import json
import os
import warnings
from pathlib import Path

import pytest

from bayescal.data.manifest import read_manifest
from bayescal.errors import BayescalWarning, DataError
from bayescal.util.csv_cells import plain_cell


def touch(folder, *names):
    for name in names:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


# ---------------------------------------------------------------- folders


def test_class_folders_alone_are_one_environment(tmp_path):
    touch(tmp_path, "dog/1.jpg", "cat/2.jpg")
    found = read_manifest(tmp_path)
    assert found.environments == ("all",)
    assert found.classes == ("cat", "dog")


def test_images_may_lie_deeper(tmp_path):
    touch(tmp_path, "photo/dog/puppies/monday/1.jpg", "photo/cat/2.jpg")
    found = read_manifest(tmp_path)
    assert [(row.environment, row.class_name) for row in found.rows()] == [("photo", "cat"), ("photo", "dog")]


def test_mixed_layouts_are_refused_with_an_example_of_each(tmp_path):
    touch(tmp_path, "dog/1.jpg", "photo/cat/2.jpg")
    with pytest.raises(DataError, match=r"dog/1\.jpg.*class/image.*photo/cat/2\.jpg.*environment/class/image"):
        read_manifest(tmp_path)


def test_images_without_a_class_are_refused(tmp_path):
    touch(tmp_path, "1.jpg")
    with pytest.raises(DataError, match=r"1\.jpg does not"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("content", [(), ("readme.txt", "photo/dog/notes.md")])
def test_folders_without_images_show_the_expected_layout(tmp_path, content):
    touch(tmp_path, *content)
    with pytest.raises(DataError, match="no images") as caught:
        read_manifest(tmp_path)
    assert "my_images/\n        photo/" in str(caught.value)


def test_a_missing_path_shows_the_expected_layout(tmp_path):
    with pytest.raises(DataError, match="no such folder or file") as caught:
        read_manifest(tmp_path / "nothing")
    assert "my_images/" in str(caught.value)


def test_other_files_are_refused(tmp_path):
    touch(tmp_path, "notes.md")
    with pytest.raises(DataError, match=r"notes\.md.*ends in \.csv, \.xlsx or \.json"):
        read_manifest(tmp_path / "notes.md")


def test_phone_photos_are_not_silently_left_out(tmp_path):
    touch(tmp_path, "photo/dog/1.jpg", "photo/cat/2.HEIC", "photo/dog/3.dng", "photo/cat/4.DNG", "photo/dog/notes.txt")
    with pytest.warns(BayescalWarning) as caught:
        assert len(read_manifest(tmp_path)) == 2
    said = [str(warning.message) for warning in caught]
    assert any("skipped 2 pictures" in text and ".dng: 2" in text and "photo/cat/4.DNG" in text for text in said)
    assert any("1 file is no image: photo/dog/notes.txt" in text for text in said)
    for name in ("photo/dog/1.jpg", "photo/cat/2.HEIC"):
        (tmp_path / name).unlink()
    with pytest.raises(DataError, match=r"Convert \.dng"):
        read_manifest(tmp_path)


def test_empty_class_folders_are_named(tmp_path):
    touch(tmp_path, "photo/dog/1.jpg", "photo/.cache/x")
    (tmp_path / "photo/cat").mkdir()
    (tmp_path / "sketch").mkdir()
    with pytest.warns(BayescalWarning, match=r"2 folders without images: photo/cat, sketch"):
        assert read_manifest(tmp_path).classes == ("dog",)


# ---------------------------------------------------------------- tables


def table(folder, text, encoding="utf-8"):
    touch(folder, "1.png", "2.png", "sub/3.png")
    path = Path(folder, "table.csv")
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("\n1.png,dog\n", "no column path and no column class.*Found: an empty first line"),
        ("1.png,dog\n", r"no column path and no column class.*Found: 1\.png, dog"),
        ("path,label\n1.png,dog\n", "no column class.*Found: path, label"),
        ("path,class,class\n1.png,dog,cat\n", "class occurs more than once"),
        ("path,class\n", "lists no images"),
        ("path,class\n\n1.png,dog\n2.png, \n", "line 4: the class is empty"),
        ("path,class\n,dog\n", "line 2: the path is empty"),
        ("path,class,split\n1.png,dog,trial\n", "line 2: unknown split 'trial'"),
        ("path,class\n1.png,dog,brown\n", "line 2: 3 cells under 2 columns"),
        ('path,class\n1.png,"dog\n', "not a valid table"),
        ("path,class,environment\n1.png,dog,home\n2.png,dog,\n", "line 3: the environment is empty"),
    ],
)
def test_bad_tables_are_refused_with_the_line(tmp_path, text, reason):
    with pytest.raises(DataError, match=reason):
        read_manifest(table(tmp_path, text))


def test_splits_may_be_called_as_folders_may(tmp_path):
    found = read_manifest(
        table(tmp_path, "path,class,split\n1.png,dog,Training\n2.png,dog,valid\nsub/3.png,dog,TEST\n")
    )
    assert found.splits.tolist() == ["train", "val", "test"]


def test_unknown_files_are_counted_and_the_first_five_named(tmp_path):
    lines = "".join(f"none{number}.png,dog\n" for number in range(8))
    with pytest.raises(DataError, match=r"8 of 9 files do not exist: none0\.png.*none4\.png and 3 more") as caught:
        read_manifest(table(tmp_path, f"path,class\n1.png,dog\n{lines}"))
    assert "none5" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_tables_of_every_encoding_and_separator_are_read(tmp_path, encoding, delimiter):
    text = "path,class,environment\r\n1.png,dog,forêt\r\n2.png,chien,forêt\r\n".replace(",", delimiter)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = read_manifest(table(tmp_path, text, encoding), environment_words={"forêt": "forest"})
    assert (found.classes, found.environments) == (("chien", "dog"), ("forêt",))
    odd = [str(warning.message) for warning in caught if "is not UTF-8 (line 2)" in str(warning.message)]
    assert len(odd) == (encoding in ("latin-1", "cp1252"))


def test_bytes_that_mean_nothing_to_windows_are_read_as_latin_1(tmp_path):
    path = tmp_path / "table.csv"
    touch(tmp_path, "1.png", "2.png")
    path.write_bytes(b"path,class\n1.png,dog\n2.png,\x81cat\n")
    with pytest.warns(BayescalWarning, match="read as latin-1"), pytest.raises(DataError, match="control characters"):
        read_manifest(path)


@pytest.mark.parametrize("columns", ["class=Label,path=Filename", {"class": "label", "path": "filename"}])
def test_columns_may_be_called_otherwise(tmp_path, columns):
    path = table(tmp_path, "ID;Filename;Label\n7;1.png;dog\n8;sub/3.png;cat\n")
    found = read_manifest(path, columns=columns)
    assert found.classes == ("cat", "dog")
    assert 'class from "Label"' in found.understood
    with pytest.raises(DataError, match="If they are called otherwise, say so: --columns path=filename,class=label"):
        read_manifest(path)
    with pytest.raises(DataError, match=r"columns klass=Label: expected OURS=THEIRS"):
        read_manifest(path, columns="klass=Label")
    with pytest.raises(DataError, match="no column lable"):
        read_manifest(path, columns="class=lable,path=filename")


def test_spreadsheets_are_read(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    touch(tmp_path, "1.png", "sub/3.png")
    book = openpyxl.Workbook()
    for row in (["Picture", "class", "environment"], ["1.png", 7, "home"], [None], ["sub/3.png", 8.0, "street"]):
        book.active.append(row)
    book.save(tmp_path / "list.xlsx")
    found = read_manifest(tmp_path / "list.xlsx", columns="path=Picture")
    assert (found.classes, found.environments) == (("7", "8"), ("home", "street"))
    (tmp_path / "odd.xlsx").write_bytes(b"PK\x03\x04 no workbook")
    with pytest.raises(DataError, match=r"odd\.xlsx: is"):
        read_manifest(tmp_path / "odd.xlsx")


def test_long_lists_and_large_folders_take_little_memory(tmp_path, monkeypatch):
    """docs/features.md: 0.21 GB for a million rows, 0.06 GB for 100,000 files."""
    import tracemalloc

    rows = 20_000
    monkeypatch.setattr("bayescal.data.manifest_files.os.path.isfile", lambda path: True)
    path = tmp_path / "table.csv"
    lines = (f"images/part-{n % 50:03}/{n:07}.jpg,class {n % 100},place {n % 4}," for n in range(rows))
    path.write_text("\n".join(["path,class,environment,split", *lines]))
    tracemalloc.start()
    try:
        found = read_manifest(path)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == rows
    longest = len(found.paths[0].encode())
    assert kept < rows * (longest + 180)  # the path as text, and three numbers or so beside it
    assert peak < rows * (longest + 420)


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "list.csv")
    with pytest.raises(DataError, match="neither a folder nor a file"):
        read_manifest(tmp_path / "list.csv")


def test_what_our_own_tables_mark_as_text_is_read_as_it_was(tmp_path):
    """The CSV of `suggest`, filled in, is read by `add`: an environment called "-10 degrees" stays the same one."""
    names = ["-10 degrees", "+x", "=1+1", "@home", "'quoted'", "'=1", "plain"]
    touch(tmp_path, *(f"{i}.png" for i in range(len(names))))
    rows = (f"{i}.png,{plain_cell(name)},{plain_cell(name)}" for i, name in enumerate(names))
    found = read_manifest(table(tmp_path, "\n".join(["path,class,environment", *rows])))
    assert sorted(found.classes) == sorted(found.environments) == sorted(names)


def test_tables_made_on_windows_are_read(tmp_path):
    path = table(tmp_path, "\ufeffPath;Class;Environment\r\n1.png;dog;home\r\nsub\\3.png; dog ;home\r\n")
    found = read_manifest(path)
    assert [Path(name).name for name in found.paths] == ["1.png", "3.png"]
    assert found.classes == ("dog",)


def test_an_empty_environment_column_means_one_environment(tmp_path):
    assert read_manifest(table(tmp_path, "path,class,environment\n1.png,dog,\n")).environments == ("all",)


# ---------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[\n  {"path": "1.png", "class": }\n]', "line 2, column 30"),
        ("{}", "expected a list"),
        ("3", "expected a list"),
        ('["1.png"]', "expected a list"),
        ("[]", "lists no images"),
        ('[{"path": "1.png", "label": "dog"}]', "image 1: no class.*Found: path, label"),
        (
            '[{"path": "1.png", "class": "dog"}, {"path": "2.png", "class": ""}]',
            "image 2: the class is empty",
        ),
        ('[{"path": "1.png", "class": true}]', "class must be text; found True"),
        ('[{"path": 1, "class": "dog"}]', "the path is empty"),
        ('{"images": [{"path": "1.png", "class": "dog"}], "class_words": ["dog"]}', "must be an object"),
        (
            '{"images": [{"path": "1.png", "class": "dog"}], "class_words": {"dgo": "x"}}',
            "Did you mean 'dog'",
        ),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_json_is_refused_with_the_place(tmp_path, text, reason):
    touch(tmp_path, "1.png", "2.png")
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(DataError, match=reason):
        read_manifest(path)


def test_numbers_are_good_class_names(tmp_path):
    touch(tmp_path, "1.png")
    path = tmp_path / "list.json"
    path.write_text(json.dumps([{"path": "1.png", "class": 7, "environment": None, "split": None}]))
    found = read_manifest(path)
    assert (found.classes, found.class_words, found.environments) == (("7",), ("7",), ("all",))
