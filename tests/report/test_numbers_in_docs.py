"""What the pages say was measured is what the committed files have: row by row where tables are written by hand."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayescal.backbones import load_backbone, mini
from bayescal.demo.run import settings
from bayescal.report.excerpt import measured, numbers, update

ROOT = Path(__file__).parents[2]
DOCS, RESULTS = ROOT / "docs", ROOT / "speed" / "results"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8").replace("−", "-")


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(page: str, heading: str) -> list[list[str]]:
    """The rows of the first table behind a line that begins so, without that line and the rule under it."""
    lines = page[page.index(heading) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|---"))
    rows = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            return rows
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def measurements(name: str) -> dict[str, dict[str, Any]]:
    return {own["what"]: own for own in result(name)["results"]}


# --- what `bench` and `bayescal demo` left ---------------------------------------------------------------------------


@pytest.mark.parametrize("page", [p for p in PAGES if "<!-- excerpt " in p.read_text(encoding="utf-8")], ids=str)
def test_excerpts_are_what_the_files_have(page):
    said = page.read_text(encoding="utf-8")
    assert update(said, page.parent) == said


def demo_numbers() -> Any:
    return json.loads((DOCS / "pictures" / "demo.json").read_text(encoding="utf-8"))


def test_the_demo_s_numbers_were_made_with_today_s_settings():
    """A default that changes makes them another demo's: `bayescal demo` is run again and its files are copied."""
    backbone = load_backbone("mini")
    for question in demo_numbers()["questions"].values():
        methods = next(iter(question["tests"].values()))
        assert question["settings"] == {name: settings(name, backbone) for name in methods}


def test_every_number_with_an_error_is_in_a_file():
    """On every page; those of the label curves are compared cell by cell below."""
    demo = demo_numbers()
    known = measured(DOCS / "results")
    known |= {own for question in demo["questions"].values() for own in numbers(question["sentence"])}
    for page in PAGES:
        if page.is_relative_to(DOCS / "results") or page.name == "labelling.md":
            continue
        assert numbers(page.read_text(encoding="utf-8")) - known == set(), page


# --- what the speed suite left ---------------------------------------------------------------------------------------

SETS = ("pacs", "produce", "digits", "waste", "CCD", "COLORED_MNIST")


def test_the_table_of_defaults_is_that_of_the_search():
    """Each row is one setting of the search: its likelihood and accuracy on every set, its regret, its mean."""
    found = result("defaults-mini2")
    tried = [own for method in found.values() if isinstance(method, dict) for own in method.get("settings", ())]
    measured_rows = {}
    for own in tried:
        cells = [f"{own[name]['nll']:.2f} / {100 * own[name]['accuracy']:.1f}" for name in SETS]
        mean = f"{100 * np.mean([own[name]['accuracy'] for name in SETS]):.1f}"
        measured_rows.setdefault((*cells, mean), set()).add(f"{own['regret']:.3f}")
    rows = table(text(DOCS / "backbones.md"), "| left-out negative log-likelihood")
    assert len(rows) > 40
    for label, *cells, regret, mean in rows:
        regrets = measured_rows.get((*cells, mean))
        assert regrets is not None, f"{label}: no setting of the search has these numbers"
        assert regret in (*regrets, ""), label


def test_how_long_irm_games_learns_is_what_the_search_found():
    found = {
        (own["options"]["learning_rate"], own["options"]["epochs"]): f"{100 * own['pacs']['accuracy']:.1f}"
        for own in result("irm-games-mini2")["irm-games"]["settings"]
    }
    slow, fast = ([found[rate, epochs] for epochs in (100, 400, 800)] for rate in (3e-4, 1e-3))
    said = "{}, {} and {} % on PACS at rate 3e-4, {}, {} and {} % at 1e-3".format(*slow, *fast)
    assert said in text(DOCS / "fidelity.md")


TOWERS = ("first mini", "mini 2, plain open_clip", "mini 2", "mini 2, bfloat16")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("row", "what"), [("tower alone", "tower alone"), ("from files", "from JPEG files")])
def test_images_per_second_are_those_of_the_file(row, what, threads):
    found = measurements("tower-cpu")
    plural = "" if threads == 1 else "s"
    rates = [found[f"{what}, {threads} thread{plural}: {tower}"]["ours"] for tower in TOWERS]
    rows = table(text(DOCS / "backbones.md"), "| | first mini | mini 2, plain open_clip")
    (cells,) = [cells for label, *cells in rows if label == f"{row}, {threads} thread{plural}"]
    for cell, rate in zip(cells[:4], rates, strict=True):
        assert float(cell) == pytest.approx(rate, rel=0.005), cells
    assert float(cells[4]) == pytest.approx(rates[2] / rates[0], abs=0.006)


def test_the_card_says_what_was_found_here():
    found = {what: f"{own['ours']:.1f}" for what, own in measurements("card-mini2").items()}
    rows = {label: cells for label, *cells in table(text(mini.CARD), "## Figures")}
    here = {label: re.sub(r" \(.*", "", cells[1]) for label, cells in rows.items()}
    zero = [found[f"PACS zero-shot, {name}"] for name in ("art painting", "cartoon", "photo", "sketch")]
    pets = [found[f"pets zero-shot, {name}"] for name in ("cat or dog", "37 breeds")]
    regression = [found[f"logistic regression, held-out environment: {name}"] for name in SETS[:4]]
    expected = (zero, [found["PACS environment from its word"]], pets, [found["MNIST zero-shot, first 2,000"]])
    said = [own.split(" / ") for own in here.values()]
    assert said[:4] == [list(own) for own in expected]
    assert [own for (own,) in said[4:8]] == regression
    for what, own in measurements("card-mini2").items():
        assert own["notes"]["met"] in (True, None), what


@pytest.mark.parametrize("file", ["label-curve", "label-curve-bayes-taskres"])
@pytest.mark.parametrize("data", ["pacs", "produce"])
def test_label_curves_are_those_of_the_files(file, data):
    curves = result(file)[data]
    pairs = np.array(
        [[seed["random"], seed["suggested"]] for environment in curves.values() for seed in environment.values()]
    )
    gap = 100 * (pairs[:, 1] - pairs[:, 0])
    error = gap.std(0, ddof=1) / np.sqrt(len(gap))
    expected = [[f"{value:.1f}" for value in 100 * pairs[:, way].mean(0)] for way in (0, 1)]
    expected.append([f"{g:+.1f} ± {e:.1f}" for g, e in zip(gap.mean(0), error, strict=True)])
    page = text(DOCS / "labelling.md")
    part = page if file == "label-curve" else page[page.index("--method bayes-taskres") :]
    assert [cells for _, *cells in table(part, f"| {data} | 0 |")] == expected
