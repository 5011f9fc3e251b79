"""Tables share their seeds, and what hand-written pages say of results is what the committed result files say."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bayescal.benchmark.results import Column, Row, Section, Table, Value
from bayescal.errors import DataError
from bayescal.report.excerpt import excerpt, measured, numbers, update

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGE = RESULTS / "README.md"
COLUMNS = (Column("pacs", "PACS", "high"), Column("paper", "PACS", "high", published=True))


def over(mean: float, *seeds: int) -> Value:
    return Value(mean, 0.01, len(seeds), seeds=seeds)


def table(*rows: Row) -> Table:
    return Table("accuracy", "Accuracy", COLUMNS, rows, "A note.")


THREE = (Row("CoOp", {"pacs": over(0.6, 1, 2, 3), "paper": Value(0.9)}), Row("CAL", {"pacs": over(0.7, 1, 2, 3)}))


def test_a_row_over_other_seeds_stands_apart():
    ten = Row("ERM", {"pacs": over(0.8, *range(1, 11))})
    other = Row("IRM", {"pacs": over(0.9, 1, 2, 4)})  # as many seeds, but not the same
    nothing = Row("MMD", {"pacs": Value(None, why="no run finished")})
    found = table(ten, THREE[0], other, nothing, THREE[1]).with_equal_seeds()
    assert [(row.label, row.group, row.ranked) for row in found.rows] == [
        ("CoOp", "", True),
        ("MMD", "", True),
        ("CAL", "", True),
        ("ERM", "seeds 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 only", False),
        ("IRM", "seeds 1, 2, 4 only", False),
    ]
    assert "other seeds than the rest" in found.note
    assert table(*THREE).with_equal_seeds() == table(*THREE)


def test_files_from_before_are_compared_by_their_counts():
    old = Row("ERM", {"pacs": Value(0.8, 0.01, 10)})
    assert table(*THREE, old).with_equal_seeds().rows[-1].group.endswith("only")
    assert table(*THREE, replace(old, cells={"pacs": Value(0.8, 0.01, 3)})).with_equal_seeds().note == "A note."


def saved(folder: Path, *rows: Row) -> Path:
    Section("main", "Title", "CoOp: +1.2 ± 0.3.", "command", {}, "today", (table(*rows),)).save(folder / "sections")
    return folder


def test_an_excerpt_of_two_files_is_one_table(tmp_path):
    saved(tmp_path / "a", *THREE)
    saved(tmp_path / "b", Row("Bayes-CAL", {"pacs": over(0.8, 1, 2, 3)}), Row("LV", {"pacs": over(0.5, 1, 2, 3)}))
    a, b = ("a/sections/main.json accuracy | CoOp | pacs", "b/sections/main.json accuracy | Bayes-CAL")
    found = excerpt(f"{a} + {b} + a/sections/main.json accuracy | CAL", tmp_path)
    rows = ["| CoOp | 60.0 ± 1.0 |", "| Bayes-CAL | **80.0 ± 1.0** |", "| CAL | 70.0 ± 1.0 |"]
    assert found.splitlines() == ["| 3 seeds | PACS |", "| --- | --- |", *rows]
    saved(tmp_path / "c", Row("Bayes-CAL", {"pacs": over(0.8, 1, 2)}))
    with pytest.raises(DataError, match="different seeds"):
        excerpt(f"{a} + c/sections/main.json accuracy", tmp_path)


def test_an_excerpt_is_the_rows_and_columns_asked_for(tmp_path):
    saved(tmp_path, *THREE)
    found = excerpt("sections/main.json accuracy | CAL; CoOp | pacs", tmp_path)
    assert found == "| 3 seeds | PACS |\n| --- | --- |\n| CAL | **70.0 ± 1.0** |\n| CoOp | 60.0 ± 1.0 |"
    page = "Before.\n<!-- excerpt sections/main.json accuracy | CoOp | pacs -->\nold\n<!-- end of excerpt -->\nAfter."
    new = update(page, tmp_path)
    assert "| CoOp | 60.0 ± 1.0 |" in new
    assert "old" not in new
    assert update(new, tmp_path) == new
    for what, said in (
        ("rules", "has no table"),
        ("accuracy | ERM", "there is no 'ERM'"),
        ("accuracy | | ccd", "'ccd'"),
    ):
        with pytest.raises(DataError, match=said):
            excerpt(f"sections/main.json {what}", tmp_path)


def test_an_excerpt_of_mixed_seeds_is_refused(tmp_path):
    saved(tmp_path, *THREE, Row("ERM", {"pacs": over(0.8, 1, 2)}))
    with pytest.raises(DataError, match="means over different seeds"):
        excerpt("sections/main.json accuracy", tmp_path)


def test_what_was_measured_is_collected_from_tables_and_texts(tmp_path):
    assert measured(saved(tmp_path, *THREE)) == {"60.0 ± 1.0", "70.0 ± 1.0", "1.2 ± 0.3"}
    assert numbers("ahead by **+11.8 ±\n3.5**, behind by −0.4 ± 0.1") == {"11.8 ± 3.5", "0.4 ± 0.1"}


# --- the committed page ----------------------------------------------------------------------------------------------


def test_tables_of_the_page_are_those_of_the_files():
    page = PAGE.read_text(encoding="utf-8")
    assert update(page, RESULTS) == page
    heads = re.findall(r"^\| (\d+ seeds?) \|", page, re.M)
    assert heads


def test_every_number_with_an_error_was_measured():
    assert numbers(PAGE.read_text(encoding="utf-8")) - measured(RESULTS) == set()
