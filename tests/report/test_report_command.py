"""`bayescal report`: what is written where, what is replaced, and what is said when it cannot be done."""

import contextlib
import json
import random
import re
from pathlib import Path

import pytest
import sample

from bayescal.benchmark.results import read_section
from bayescal.errors import BayescalWarning, DataError
from bayescal.report import read_sections
from bayescal.util.checksum import sealed
from bayescal.util.process import process_mark
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


def test_a_name_without_an_ending_is_a_folder(results, tmp_path):
    for _ in range(2):  # the second time the folder is there
        assert run("report", results, "-o", tmp_path / "to-send").code == 0
        assert run("report", results, "--format", "latex", "-o", tmp_path / "to-send").code == 0
    assert left_in(tmp_path / "to-send") == ["report.html", "report.tex"]
    assert run("report", results, "-o", tmp_path / "page.htm").code == 0
    assert (tmp_path / "page.htm").is_file()
    (tmp_path / "mine").write_text("my own words")
    refused(run("report", results, "-o", tmp_path / "mine"), "mine", "--force")


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


@pytest.mark.parametrize("form", ["png", "svg"])
def test_a_report_that_was_killed_can_be_repeated_into_its_folder(results, tmp_path, form):
    path = tmp_path / "figures"
    for _ in range(2):  # the second finds figures of the first, which bear its mark, and a draft of a dead process
        result = run("report", results, "--format", form, "-o", path)
        assert result.code == 0, result.err
        assert left_in(path) == [f"ablation-risk-coverage.{form}"]
        (path / f".x.{form}.{process_mark().partition('-')[0]}-1-0.abcdef01.tmp").touch()


def test_places_and_formats_that_cannot_be(results, tmp_path):
    refused(run("report", tmp_path / "nowhere"), "nowhere", "no such folder", "bayescal bench")
    refused(run("report", tmp_path), "nothing to report", "sections/*.json")
    refused(run("report", results, "--format", "word"), "--format word", "html, markdown, latex, png, svg or all")
    (tmp_path / "report.html").mkdir()
    refused(run("report", results, "-o", tmp_path), "report.html is a folder")


def resealed(content: dict, **changes) -> str:
    return json.dumps(sealed(content | changes))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda content: "{", "is not JSON"),
        (lambda content: "[" * 100_000, "nested too deeply"),
        (lambda content: "[" + "9" * 6000 + "]", "thousands of digits"),
        (lambda content: resealed(content, format=99), "this version"),
        (lambda content: json.dumps(content).replace("0.5", "0.6", 1), "not as it was written"),
        (lambda content: json.dumps({k: v for k, v in content.items() if k != "checksum"}), "no checksum"),
        (lambda content: resealed({k: v for k, v in content.items() if k != "tables"}), "tables: is missing"),
        (lambda content: resealed(content, colour=1), "colour: there is no such field"),
        (lambda content: resealed(content, tables=[1]), "tables[0]: expected an object, found 1"),
        (lambda content: resealed(content, notes=[7]), "notes[0]: expected text, found 7"),
    ],
)
def test_a_damaged_result_is_named_and_left_out(results, spoil, said):
    path = results / "sections" / "ablation.json"
    path.write_text(spoil(json.loads(path.read_text())))
    with pytest.warns(BayescalWarning, match=re.escape(said)) as warned:
        assert [section.experiment for section in read_sections(results)] == ["wilcoxon"]
    assert str(path) in str(warned[0].message)
    (results / "sections" / "wilcoxon.json").unlink()
    with pytest.raises(DataError, match=re.escape(said)):  # nothing is left to report
        read_sections(results)


def test_a_report_is_made_of_what_is_whole(results):
    path = results / "sections" / "ablation.json"
    path.write_text("{")
    result = run("report", results)
    assert (result.code, result.out.splitlines()[0]) == (0, "1 experiment: wilcoxon."), result.err
    assert f"Note: {path}: is not JSON" in result.err
    assert "Risk against coverage" not in (results / "report.html").read_text(encoding="utf-8")


def test_a_figure_that_cannot_be_drawn_is_named(results):
    path = results / "sections" / "ablation.json"
    content = json.loads(path.read_text())
    path.write_text(resealed(content, figures=[{**content["figures"][0], "data": {}}]))
    refused(run("report", results), "risk-coverage")
    assert left_in(results) == ["sections"]


def test_results_of_before_there_were_checksums_are_reported_and_marked(results):
    path = results / "sections" / "ablation.json"
    content = json.loads(path.read_text())
    del content["checksum"]
    path.write_text(json.dumps(content | {"format": 1}))
    assert "2 experiments: ablation (without a checksum), wilcoxon." in run("report", results).out


def test_every_flipped_bit_of_a_result_is_found(results):
    """Not by whoever reads the numbers: 789 of 3,000 went unnoticed before there was a checksum."""
    path = results / "sections" / "ablation.json"
    whole, r = path.read_bytes(), random.Random(0)
    as_written = read_section(path)
    for _ in range(300):
        damaged = bytearray(whole)
        at = r.randrange(len(whole))
        damaged[at] ^= 1 << r.randrange(8)
        path.write_bytes(damaged)
        with contextlib.suppress(DataError):
            assert read_section(path) == as_written, at  # a blank became another one
