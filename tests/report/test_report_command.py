"""`bayescal report`: what is written where, what is replaced, and what is said when it cannot be done."""

import json
from pathlib import Path

import pytest
import sample

from bayescal.report import read_sections
from command_line import left_in, refused, run


@pytest.fixture
def results(tmp_path) -> Path:
    folder = tmp_path / "results"
    for section in (sample.section("wilcoxon", "W", tables=(sample.wilcoxon_table(),)), small()):
        section.save(folder / "sections")
    return folder


def small():
    return sample.section("ablation", "A", tables=(sample.ablation_table(),), figures=(sample.risk_coverage(),))


def test_sections_are_read_as_they_were_written(results):
    first, second = read_sections(results)
    assert (first.experiment, second.experiment) == ("ablation", "wilcoxon")
    assert first == small()


def test_one_page_beside_the_results_which_may_be_made_again(results):
    for _ in range(2):
        result = run("report", results)
        assert result.code == 0, result.err
    assert "2 experiments: ablation, wilcoxon." in result.out
    assert "report.html" in result.out
    assert left_in(results) == ["report.html", "sections"]
    assert (results / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_default_folder_is_that_of_bench(results, monkeypatch):
    results.rename(results.parent / "bayescal-results")
    monkeypatch.chdir(results.parent)
    assert run("report").code == 0
    assert (results.parent / "bayescal-results" / "report.html").is_file()


def test_all_formats(results, tmp_path):
    result = run("report", results, "--format", "all", "-o", tmp_path / "to" / "send")
    assert result.code == 0, result.err
    assert left_in(tmp_path / "to" / "send") == ["figures", "report.html", "report.md", "report.tex"]
    pictures = ["ablation-risk-coverage.png", "ablation-risk-coverage.svg"]
    assert left_in(tmp_path / "to" / "send" / "figures") == pictures
    markdown = (tmp_path / "to" / "send" / "report.md").read_text(encoding="utf-8")
    assert f"![Risk against coverage](figures/{pictures[0]})" in markdown
    assert (tmp_path / "to" / "send" / "report.tex").read_text(encoding="utf-8").rstrip().endswith(r"\end{document}")
    assert left_in(results) == ["sections"]


@pytest.mark.parametrize(("form", "name"), [("markdown", "report.md"), ("latex", "report.tex"), ("svg", "figures")])
def test_one_format_and_again(results, form, name):
    for _ in range(2):
        result = run("report", results, "--format", form)
        assert result.code == 0, result.err
    assert left_in(results) == sorted([name, "sections"])


@pytest.mark.parametrize("form", ["html", "markdown", "latex"])
def test_somebody_elses_file_is_replaced_only_with_force(results, tmp_path, form):
    mine = tmp_path / "mine.txt"
    mine.write_text("my own words")
    refused(run("report", results, "--format", form, "-o", mine), "mine.txt", "--force")
    assert mine.read_text() == "my own words"
    assert run("report", results, "--format", form, "-o", mine, "--force").code == 0
    assert mine.read_text(encoding="utf-8") != "my own words"
    assert run("report", results, "--format", form, "-o", mine).code == 0  # now it is ours


def test_a_folder_with_files_gets_pictures_only_with_force(results, tmp_path):
    path = tmp_path / "holiday"
    path.mkdir()
    (path / "beach.png").write_text("")
    refused(run("report", results, "--format", "png", "-o", path), "holiday", "--force")
    assert run("report", results, "--format", "png", "-o", path, "--force").code == 0
    assert left_in(path) == ["ablation-risk-coverage.png", "beach.png"]
    refused(run("report", results, "--format", "png", "-o", path / "beach.png", "--force"), "is a file")


def test_places_and_formats_that_cannot_be(results, tmp_path):
    refused(run("report", tmp_path / "nowhere"), "nowhere", "no such folder", "bayescal bench")
    refused(run("report", tmp_path), "nothing to report", "sections/*.json")
    refused(run("report", results, "--format", "word"), "--format word", "html, markdown, latex, png, svg or all")
    refused(run("report", results, "-o", results), "is a folder")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda content: "{", "is not JSON"),
        (lambda content: json.dumps(content | {"format": 99}), "this version"),
        (lambda content: json.dumps({k: v for k, v in content.items() if k != "tables"}), "tables"),
        (lambda content: json.dumps(content | {"colour": 1}), "colour"),
        (lambda content: json.dumps(content | {"tables": [1]}), "damaged"),
        (lambda content: json.dumps(content | {"figures": [{**content["figures"][0], "data": {}}]}), "risk-coverage"),
    ],
)
def test_damaged_results_are_named_and_nothing_is_written(results, spoil, said):
    path = results / "sections" / "ablation.json"
    path.write_text(spoil(json.loads(path.read_text())))
    refused(run("report", results), said)
    assert left_in(results) == ["sections"]
