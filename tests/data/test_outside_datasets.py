"""Data sets that are not part of the package: by reference, registered, or declared by a distribution."""

import sys
import textwrap

import pytest

from bayescal.benchmark.sources import find_paths, known_name
from bayescal.data import datasets
from bayescal.data.datasets import find_name, get_dataset, open_dataset, outside_datasets, register_dataset
from bayescal.data.datasets.trees import as_words, tree_dataset
from bayescal.errors import BayescalWarning, DataError
from command_line import make_shapes, refused, run
from outside_methods import installed

MODULE = textwrap.dedent("""
    from bayescal.data.datasets.trees import as_words, tree_dataset

    def dataset(name):
        return tree_dataset(
            name=name, title="Things", shift="diversity", class_words=as_words("dog house"),
            environment_words=as_words("photo sketch"), images=24, layout="    photo/dog/0.png",
            source="drawn", citation="",
        )

    THINGS = dataset("things")
    PACS = dataset("pacs")
    NUMBER = 3
""")


def things(name: str = "things", title: str = "Things"):
    return tree_dataset(
        name=name,
        title=title,
        shift="diversity",
        class_words=as_words("dog house"),
        environment_words=as_words("photo sketch"),
        images=24,
        layout="    photo/dog/0.png",
        source="drawn",
        citation="",
    )


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    datasets._outside.registered.clear()
    datasets._outside._loaded.clear()


@pytest.fixture
def module(tmp_path):
    with installed(tmp_path / "site", "things-dist", {"things_module.py": MODULE}) as folder:
        yield folder


def test_a_reference_is_as_good_as_a_name(module, tmp_path):
    make_shapes(tmp_path / "images", n=2)
    dataset, manifest = open_dataset("things_module:THINGS", tmp_path / "images")
    assert (dataset.name, len(manifest)) == ("things", 8)
    assert get_dataset("Things") is dataset  # from now on it is known by its name
    assert known_name("things_module:THINGS") == "things"
    assert find_paths([f"things_module:THINGS={tmp_path / 'images'}"]) == {"things": tmp_path / "images"}


def test_a_registered_data_set_is_known_by_its_name():
    dataset = register_dataset(things())
    assert get_dataset("things") is get_dataset("THINGS") is dataset
    assert outside_datasets() == ["things"]
    register_dataset(things())  # the cell of a notebook, run again
    with pytest.raises(DataError, match="the name 'things' is that of the data set 'Things'"):
        register_dataset(things(title="Other things"))


def test_a_declared_data_set_is_known_by_its_name_and_found_in_a_folder(tmp_path):
    declared = "[bayescal.datasets]\nthings = things_module:THINGS\n"
    make_shapes(tmp_path / "data" / "things", n=2)
    with installed(tmp_path / "site", "things-dist", {"things_module.py": MODULE}, declared):
        assert find_name("Things") == "things"
        assert find_paths([str(tmp_path / "data")]) == {"things": tmp_path / "data" / "things"}
        assert "things_module" not in sys.modules  # a look around loads nothing
        assert get_dataset("things").title == "Things"
        assert "things" in run("data", "list").out
    datasets._outside._loaded.clear()
    with pytest.raises(DataError, match="there is no data set 'things'"):
        get_dataset("things")


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("things_module:NUMBER", "expected a bayescal.data.datasets.base.Dataset, found 3"),
        ("things_module:PACS", "the name 'pacs' is that of one of bayescal's own"),
        ("things_module:NOTHING", "the module 'things_module' has no 'NOTHING'"),
        ("no_such_module:THINGS", "data set 'no_such_module:THINGS' cannot be imported here"),
        ("things_module:THINGS", "say where it lies"),
    ],
)
def test_what_is_no_data_set_is_refused_with_a_reason(reference, said, module):
    with pytest.raises(DataError) as refused_:
        open_dataset(reference)
    assert said in str(refused_.value)


def test_one_that_cannot_be_loaded_does_not_hide_the_others(tmp_path):
    declared = "[bayescal.datasets]\nbroken = broken_things:THINGS\n"
    with installed(tmp_path, "broken", {"broken_things.py": "1 / 0"}, declared):
        listed = run("data", "list")
    assert (listed.code, "pacs" in listed.out) == (0, True)
    assert "importing 'broken_things' failed (ZeroDivisionError" in " ".join(listed.err.split())


def test_nobody_takes_over_a_name_of_the_package(tmp_path):
    declared = "[bayescal.datasets]\npacs = things_module:PACS\n"
    with installed(tmp_path, "bold", {"things_module.py": MODULE}, declared):
        assert get_dataset("pacs").title == "PACS"
        with pytest.warns(BayescalWarning, match=r"the data set 'pacs' of bold 1\.5 is not used"):
            assert outside_datasets() == []


def test_a_module_of_the_folder_one_is_in_is_found_by_what_is_typed(tmp_path, monkeypatch):
    (tmp_path / "things_here.py").write_text(MODULE)
    images = make_shapes(tmp_path / "images", n=2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])  # as a console script has it
    result = run("data", "prepare", "things_here:THINGS", "--from", images)
    assert result.code == 0, result.err
    assert (tmp_path / "things.csv").exists()
    assert "Things" in run("data", "info", "things_here:THINGS").out
    refused(run("data", "info", "nothing_here:THINGS"), "cannot be imported here", "PYTHONPATH=FOLDER")
    del sys.modules["things_here"]
