"""What stands in a cell, who is best, and that every format says the same."""

import re
import shutil
import subprocess

import pytest
import sample
from rich.console import Console

from bayescal.benchmark.results import Column, Row, Table, Value
from bayescal.report import section_markdown, table_latex, table_markdown, table_rich
from bayescal.report.latex import document
from bayescal.report.latex import escape as latex_escape
from bayescal.report.markdown import escape as markdown_escape
from bayescal.report.page import table_html
from bayescal.report.tables import BEST, SECOND, digits, view


def table(*means, better="high", unit="%", published=False, ranked=None, **more) -> Table:
    column = Column("a", "Accuracy", better, unit, published=published, **more)
    ranked = ranked or [True] * len(means)
    rows = [Row(f"m{i}", {"a": Value(mean)}, ranked=r) for i, (mean, r) in enumerate(zip(means, ranked, strict=True))]
    return Table("t", "Title", (column,), tuple(rows))


def ranks(table: Table) -> list[int]:
    return [cells[0].rank for _, cells in view(table).rows]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (table(0.9, 0.8, 0.7), [BEST, SECOND, 0]),
        (table(0.9, 0.8, 0.7, better="low"), [0, SECOND, BEST]),
        (table(0.9, 0.8, 0.7, better=""), [0, 0, 0]),
        (table(0.8512, 0.8509, 0.7, 0.6), [BEST, BEST, SECOND, 0]),  # both print as 85.1
        (table(0.9, 0.7, 0.7), [BEST, SECOND, SECOND]),
        (table(0.9, 0.9), [0, 0]),  # nobody is better than anybody
        (table(0.9), [0]),
        (table(None, 0.8, float("nan"), 0.7), [0, BEST, 0, SECOND]),
        (table(0.99, 0.8, 0.7, ranked=[False, True, True]), [0, BEST, SECOND]),
        (table(0.9, 0.8, published=True), [BEST, SECOND]),
        (table(0.9, -0.2, unit=""), [BEST, SECOND]),
    ],
)
def test_best_and_second_are_those_of_the_printed_numbers(given, expected):
    assert ranks(given) == expected


def test_published_numbers_compete_with_published_numbers_only():
    seen = view(sample.main_table())
    column = next(j for j, column in enumerate(seen.columns) if column.published)
    ours = column - 2
    for j in (column, ours):
        assert sorted(cell.rank for cell in seen.cells(j) if cell.rank) == [BEST, SECOND]


@pytest.mark.parametrize(
    ("number", "after", "small", "expected"),
    [
        (85.14, 1, False, "85.1"),
        (-1.25, 1, False, "−1.2"),
        (-0.001, 1, False, "0.0"),
        (0.0000312, 3, True, "<0.001"),
        (0.0006, 3, True, "0.001"),
        (0.0, 3, True, "0.000"),
        (12345.0, 0, False, "12,345"),
        (4096.0, 0, False, "4096"),
    ],
)
def test_digits(number, after, small, expected):
    assert digits(number, after, small) == expected


def test_a_unit_that_all_share_is_said_once():
    assert view(table(0.9, 0.8)).unit == "%"
    mixed = view(sample.ablation_table())
    assert mixed.unit == ""
    assert [str(heading) for heading in mixed.headings][-2:] == ["Accuracy (%)", "Time (s)"]
    assert str(mixed.headings[0]) == "environment"  # ticks have no unit


def test_what_is_missing_says_why_in_a_footnote_of_its_own():
    seen = view(sample.main_table())
    assert seen.footnotes == (("a", "one fit would take nine hours here"), ("b", "not in the paper"))
    marked = [(row.label, cell.text, cell.mark) for row, cells in seen.rows for cell in cells if cell.mark]
    assert marked == [("CoCoOp", "–", "a"), ("CoCoOp", "–", "a"), ("IRM", "–", "b")]
    for text in (table_markdown(seen.table), table_latex(seen.table), table_html(seen.table, "t")):
        assert "one fit would take nine hours here" in text


def test_published_columns_say_so_unless_their_own_words_do():
    said = view(table(0.9, 0.8, published=True, group="paper, ViT"))
    assert (said.headings[0].paper, view(table(0.9, published=True)).headings[0].paper) == ("", "paper, RN50")


def test_markdown_is_a_table_with_bold_and_underlined_numbers():
    lines = table_markdown(sample.main_table()).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in rows} == {15}
    assert "| Bayes-CAL | **93.3** ± 0.8 |" in rows[3]
    assert "<ins>91.0</ins> ± 0.5" in rows[4]
    assert "PACS · Accuracy (paper, RN50)" in rows[0]


def test_a_section_as_markdown_has_everything():
    text = section_markdown(sample.sections()[2], {"reliability": "figures/r.png"})
    for words in ("## Accuracy in", "`--select test-domain`", "bayescal bench main", "torch 2.11.0", "figures/r.png"):
        assert words in text
    assert text.index("Skipped or missing") < text.index("What this does not show") < text.index("Rerun it")


def test_names_are_not_markup():
    escaped = markdown_escape(sample.AWKWARD)
    assert "<" not in escaped
    assert not re.search(r"(?<!\\)[|*$#_]", escaped)
    assert latex_escape("a_b & 50 % of $x$ {~^\\} #") == (
        r"a\_b \& 50 \% of \$x\$ \{\textasciitilde{}\textasciicircum{}\textbackslash{}\} \#"
    )
    assert latex_escape("λ₁ ± é 犬") == r"$\lambda$$_1$ $\pm$ é \texttt{U+72AC}"


def test_latex_has_booktabs_bold_underline_and_grey():
    text = table_latex(sample.main_table())
    for words in (r"\toprule", r"\cmidrule(lr){2-4}", r"\textbf{93.3}", r"\underline{91.0}", r"\textcolor{gray}"):
        assert words in text
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    rows = [line for line in body.splitlines() if line.startswith(("Bayes", "IRM"))]
    assert [row.count("&") for row in rows] == [13, 13]


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_latex_compiles(tmp_path):
    (tmp_path / "report.tex").write_text(document(sample.sections(), "% test"), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]


def lines_on(width: int, table: Table) -> list[str]:
    console = Console(width=200, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(table_rich(table, width))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [70, 100])
def test_a_wide_table_on_a_terminal_comes_in_blocks_with_the_labels_again(width):
    lines = lines_on(width, sample.main_table())
    assert max(map(len, lines)) <= width
    shown = [line for line in lines if line.startswith("Bayes-CAL ")]
    assert len(shown) == (4 if width == 70 else 3)
    numbers = re.findall(r"\d+\.\d+(?= ± |\s|$)", " ".join(shown))
    assert len(numbers) >= 13  # no column is lost


def test_a_group_of_columns_stays_together_and_a_narrow_table_is_one_block():
    lines = lines_on(100, sample.base_to_new())
    heads = [line for line in lines if "───" in line and any(name in line for name in sample.DATASETS)]
    assert [re.findall(r"[A-Z][\w-]+", line) for line in heads] == [["PACS", "VLCS"], ["Office-Home"]]
    assert sum(line.startswith("Bayes-CAL") for line in lines_on(100, sample.ablation_table())) == 1


def test_the_terminal_shows_ranks_and_published_columns_by_their_look():
    console = Console(width=100, force_terminal=True, color_system="standard", highlight=False, markup=False)
    with console.capture() as captured:
        console.print(table_rich(sample.main_table()))
    text = captured.get()
    assert "\x1b[1m93.3\x1b[0m ± 0.8" in text
    assert "\x1b[4m91.0\x1b[0m ± 0.5" in text
    assert "\x1b[1;2m94.0\x1b[0m" in text  # best, and published
