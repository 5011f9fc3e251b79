"""The page: everything is in it, nothing outside is needed, and no name breaks out of its place."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import sample

from bayescal.benchmark.results import Figure
from bayescal.report import to_html
from bayescal.report.page import script_json


class Reader(HTMLParser):
    """Tags with their attributes, texts outside scripts, and scripts that hold data."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.data: list[str] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = "data" if dict(attrs).get("type") == "application/json" else "code"

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._inside = ""

    def handle_data(self, data):
        {"data": self.data, "": self.texts}.get(self._inside, []).append(data)


@pytest.fixture(scope="module")
def html() -> str:
    return to_html(sample.sections())


@pytest.fixture(scope="module")
def page(html) -> Reader:
    return Reader(html)


def test_sections_come_in_the_order_of_the_paper(page):
    order = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    names = ("main", "ablation", "base-to-new", "epochs", "landscape", "tsne", "wilcoxon", "zz-own")
    assert order == [f"section-{name}" for name in names]
    assert [a["href"] for tag, a in page.tags if tag == "a" and a["href"].startswith("#section")][: len(names)] == [
        f"#{anchor}" for anchor in order
    ]


def test_it_says_how_to_rerun_with_what_and_what_it_does_not_show(page):
    text = " ".join(page.texts)
    for words in (
        "bayescal bench ablation --backbone RN50:openai",
        "NVIDIA A100 <40 GB>",
        "2026-03-14 09:26",
        "What this does not show",
        "Skipped or missing",
        "Not in this report",
        "bayescal bench adapters",
    ):
        assert words in text


def test_nothing_is_fetched(page):
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        assert "src" not in attributes or tag == "img"
        assert attributes.get("href", "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_names_stay_text(page):
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert images == [{"alt": ""}]  # ours, for thumbnails
    assert sum(sample.AWKWARD in text for text in page.texts) >= 5


def test_ids_are_unique(page):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_data_in_scripts_can_be_read_back(page):
    figures = [json.loads(data) for data in page.data]
    assert sum("layout" in content for content in figures) == 8
    assert sum("LaTeX" in content for content in figures) == 4


def test_script_json_cannot_end_a_script_and_has_no_nan():
    hostile = {"</script>": ["<!--", "a&b", "\u2028", float("nan"), float("inf"), 1.5]}
    text = script_json(hostile)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"</script>": ["<!--", "a&b", "\u2028", None, None, 1.5]}


def test_equal_keys_do_not_collide_and_nothing_to_draw_is_said():
    empty = Figure("curves", "Nothing", "lines", {"x": "", "y": "", "panels": []})
    twice = sample.section("main", "Main", tables=(sample.wilcoxon_table(),) * 2, figures=(sample.curves(), empty))
    page = Reader(to_html([twice, replace(twice, experiment="Main!")]))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert page.texts.count("Nothing to draw.") == 2


def test_the_same_sections_make_the_same_page(html):
    assert to_html(sample.sections()) == html
