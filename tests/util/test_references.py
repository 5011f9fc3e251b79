"""MODULE:ATTRIBUTE, typed by somebody."""

import pytest

from bayescal.cli.options import import_from_here, is_from_here
from bayescal.errors import DataError
from bayescal.util.references import is_reference, load_reference, reference_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("module:Class", True),
        ("package.module:Outer.Inner", True),
        ("_private.module_2:x", True),
        ("bayes-cal", False),
        ("pacs", False),
        ("C:/images", False),
        ("C:\\images", False),
        ("a:b:c", False),
        ("module:", False),
        (":Class", False),
        ("my-module:Class", False),
        ("module:2", False),
        (".module:Class", False),
    ],
)
def test_what_is_written_as_a_reference(text, expected):
    assert is_reference(text) is expected


def test_a_reference_finds_what_it_was_made_of():
    assert load_reference(reference_of(DataError), "error", DataError) is DataError
    assert load_reference("bayescal.errors:DataError.__name__", "name", DataError) == "DataError"


def test_the_folder_one_is_in_is_looked_into_only_for_references(tmp_path, monkeypatch):
    import sys

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    import_from_here("coop", "", "C:/images")
    assert str(tmp_path) not in sys.path
    import_from_here("coop", "my_own:Thing")
    import_from_here("my_own:Thing")
    assert sys.path[0] == str(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1


def test_what_was_found_in_the_folder_is_known(tmp_path, monkeypatch):
    import sys

    (tmp_path / "found_here.py").write_text("thing = 1")
    (tmp_path / "package_here").mkdir()
    (tmp_path / "package_here" / "__init__.py").write_text("")
    (tmp_path / "package_here" / "inner.py").write_text("thing = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for reference in ("found_here:thing", "package_here.inner:thing"):
        load_reference(reference, "thing", DataError)
        assert is_from_here(reference)
    assert not is_from_here("bayescal.errors:DataError")
    assert not is_from_here("coop")
    monkeypatch.chdir("/")  # as in many a container
    assert not is_from_here("coop")
    assert not is_from_here("sys:path")
    for name in ("found_here", "package_here", "package_here.inner"):
        del sys.modules[name]
