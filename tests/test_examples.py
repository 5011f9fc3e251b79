"""The examples in the docstrings of the public names say what happens."""

import doctest
import importlib
import inspect
import re

import pytest

import bayescal

# Errors and versions need no example. That of `Bench` needs images: tests/benchmark/test_bench_python.py has them.
WITHOUT = {"Bench", "BayescalError", "BayescalWarning", "__version__"}
NAMES = sorted(set(bayescal.__all__) - WITHOUT)


# Parameters that a docstring describes together: "shots, val_shots : int, optional".
ITEM = re.compile(r"^(\w+(?:, \w+)*) : \S.*\n    \S", flags=re.MULTILINE)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BAYESCAL_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_public_names_are_true(name):
    thing = getattr(bayescal, name)
    module = importlib.import_module(thing.__module__)
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    (found,) = finder.find(thing, name, module=module)
    assert found.examples, f"{name} has no example"
    runner.run(found)
    assert runner.failures == 0, f"see the output above: an example of {name} in {inspect.getsourcefile(thing)}"


def section(doc: str, title: str) -> str:
    """What stands under a title of a numpydoc docstring; "" where there is no such title."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w[^\n]*\n---|\Z)", doc, flags=re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


@pytest.mark.parametrize(
    "thing",
    [*(getattr(bayescal, name) for name in NAMES), bayescal.FewShotClassifier.fit, bayescal.Bench.open],
    ids=lambda thing: thing.__name__,
)
def test_public_names_describe_their_parameters_as_numpydoc_does(thing):
    """Each with its type on a line, and a description below it."""
    doc = inspect.getdoc(thing) or ""
    described = [name for names in ITEM.findall(section(doc, "Parameters")) for name in names.split(", ")]
    assert described == [name for name in inspect.signature(thing).parameters if name != "self"]
    if not inspect.isclass(thing) and thing != bayescal.Bench.open:  # which makes a bench
        assert re.match(r"\S.*\n    \S", section(doc, "Returns"))
