"""`bayescal methods`, `bayescal backbones` and the door to the demo."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from bayescal.backbones import list_backbones
from bayescal.backbones.catalogue import WELL_KNOWN
from bayescal.methods import get_method, method_names
from command_line import run

pytestmark = pytest.mark.xdist_group("command-line")


def test_methods_are_listed_with_what_they_learn_cost_and_cite(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    result = run("methods")
    assert result.code == 0
    for name in method_names():
        method = get_method(name)
        for text in (name, method.learns, method.cost, method.citation):
            assert text in result.out


def test_the_embedded_backbone_comes_first_and_the_short_list_is_short(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    result = run("backbones")
    assert result.code == 0
    names = [line.split()[0] for line in result.out.splitlines()[3:] if ":" in line or line.startswith(" mini")]
    assert names[0] == "mini"
    assert set(WELL_KNOWN) <= set(names)
    known = {entry.name for entry in list_backbones()}
    assert set(WELL_KNOWN) <= known
    everything = run("backbones", "--all")
    assert all(name in everything.out for name in known)
    assert f"{len(known) - len(WELL_KNOWN)} more" in result.out


@pytest.fixture
def demo_calls(monkeypatch):
    """A demo that only remembers how it was called."""
    calls = []
    module = ModuleType("bayescal.demo.run")
    module.run_demo = lambda output, **options: calls.append((output, options))
    monkeypatch.setitem(sys.modules, "bayescal.demo.run", module)
    return calls


def test_demo_passes_its_options_on(demo_calls):
    assert run("demo").code == 0
    assert run("demo", "-o", "x", "--seeds", "4,2", "--force").code == 0
    assert demo_calls == [
        (Path("demo-output"), {"seeds": (1, 2, 3, 4), "force": False}),
        (Path("x"), {"seeds": (4, 2), "force": True}),
    ]


@pytest.mark.parametrize("seeds", ["one", "1,,2", "1,1", ""])
def test_demo_refuses_seeds_that_are_none(demo_calls, seeds):
    result = run("demo", "--seeds", seeds)
    assert result.code == 2
    assert f"--seeds {seeds}" in result.err
    assert demo_calls == []
