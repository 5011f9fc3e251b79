"""Debian's chromium, driven by playwright: what the tests of every page share."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
)  # fmt: skip
SLOW = 60_000  # milliseconds that a busy machine may take
PACKAGES = Path(__file__).resolve().parents[1] / "build" / "npm" / "node_modules"  # .ci/run fetches them
AXE = PACKAGES / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


@contextmanager
def launched() -> Iterator[Any]:
    """A browser; while it is there, asyncio cannot be used in this thread."""
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        expect.set_options(timeout=SLOW)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not PROGRAM:
        pytest.skip("needs Debian's chromium (apt-get install chromium) or google-chrome")
    pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives the browser")
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def heard() -> list[str]:
    """Everything that should not be: scripts that failed, and every address but the page's own."""
    return []


def watched(browser: Any, heard: list[str], own: tuple[str, ...], **options: Any) -> Any:
    """A context in which pages may ask for addresses that begin with one of `own`; what else they try is heard."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "color_scheme": "light", **options})
    context.set_default_timeout(SLOW)

    def refuse(route: Any) -> None:
        heard.append(f"asked for {route.request.url}")
        route.abort()

    context.route(lambda url: not url.startswith((*own, "blob:", "data:")), refuse)
    context.on("weberror", lambda error: heard.append(f"error: {error.error}"))
    return context


def violations(page: Any) -> list[str]:
    """What axe-core finds on a page as it is, against WCAG 2.1 at levels A and AA: rule, element, what is wrong."""
    if not AXE.is_file():
        pytest.skip(f"needs the npm package axe-core in {PACKAGES} (.ci/run fetches it)")
    if not page.evaluate("() => 'axe' in window"):
        session = page.context.new_cdp_session(page)  # past the page's own policy, which lets no other script in
        session.send("Runtime.evaluate", {"expression": AXE.read_text(encoding="utf-8")})
        session.detach()
    found = page.evaluate("rules => axe.run(document, { runOnly: rules, resultTypes: ['violations'] })", RULES)
    assert found["passes"], "axe has looked at nothing"
    return [
        f"{one['id']}: {' '.join(map(str, node['target']))}: {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]
