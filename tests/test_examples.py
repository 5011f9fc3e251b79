"""The examples in the docstrings of the public names say what happens."""

import doctest
import importlib
import inspect

import pytest

import bayescal

# Errors and versions need no example. That of `Bench` needs images: tests/benchmark/test_bench_python.py has them.
WITHOUT = {"Bench", "BayescalError", "BayescalWarning", "__version__"}
NAMES = sorted(set(bayescal.__all__) - WITHOUT)


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
