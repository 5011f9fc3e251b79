"""The pages hold together: links lead somewhere, options are explained, and the fields of an answer are those shown."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from bayescal.cli.app import app
from bayescal.estimator.answers import FIELDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path: path.read_text(encoding="utf-8") for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}
SELF_EXPLAINING = {"--help"}


def anchors(text: str) -> set[str]:
    """The addresses of a page's headings, as the usual forges make them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere():
    broken = []
    for page, text in PAGES.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            if link.startswith(("http", "mailto:")):
                continue
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
                broken.append(f"{page.name}: {link}")
    assert broken == []


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its name as typed after `bayescal`."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}".strip())


def test_every_option_of_every_command_is_on_a_page_that_speaks_of_the_command():
    """By any of its names: `-o` stands for `--output`. What is missing belongs on the command's page."""
    missing = []
    for name, command in commands(typer.main.get_command(app)):
        pages = [text for text in PAGES.values() if re.search(rf"\b{name}\b", text)]
        for option in command.params:
            names = [*option.opts, *option.secondary_opts]
            pattern = "|".join(rf"(?<![\w-]){re.escape(alias)}(?![\w-])" for alias in names)
            written = any(re.search(pattern, text) for text in pages)
            if option.param_type_name == "option" and not SELF_EXPLAINING & set(names) and not written:
                missing.append(f"bayescal {name}: {', '.join(names)}")
    assert missing == []


def test_the_fields_of_an_answer_are_those_that_the_page_shows():
    page = PAGES[ROOT / "docs" / "command-line.md"]
    (header,) = re.findall(r"^image,status,.*$", page, flags=re.M)
    assert header.split(",") == [*FIELDS, "reason"]
    (shown,) = re.findall(r'^\{"image": .*"status": "ok".*\}$', page, flags=re.M)
    assert list(json.loads(shown)) == [*FIELDS, "probabilities"]
    explained = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", page, flags=re.M)))
    assert set(FIELDS) - {"image"} <= set(explained)
