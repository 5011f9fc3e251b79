"""The page in a browser: what its tests share. Each file has a server of its own, with 500 images."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import Made, Running, Servers, make
from PIL import Image

from bayescal.serving.labels import LabelStore
from chromium import watched

MANY = 500


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Made:
    return make(tmp_path_factory.mktemp("page"), MANY)


@pytest.fixture(scope="session")
def servers(made) -> Iterator[Servers]:
    servers = Servers(made)
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def stocked(made, tmp_path_factory) -> Path:
    """A folder of labels in which the images are already, as if they had been added on another day."""
    store = LabelStore(tmp_path_factory.mktemp("stocked"))
    store.add([store.keep_file(path.read_bytes(), path.name) for path in made.new])
    return store.folder


@pytest.fixture(scope="module")
def running(servers, made, stocked, tmp_path_factory) -> Iterator[Running]:
    """The server that the tests of a file share; some kill it and start it again."""
    folder = tmp_path_factory.mktemp("cwd")
    shutil.copytree(stocked, folder / "model-labels")
    server = Running(servers, Path(shutil.copytree(made.model, folder / "model")), folder).start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def context(browser, running, heard) -> Iterator[Any]:
    context = watched(browser, heard, own=(running.address,), permissions=["camera"], accept_downloads=True)
    yield context
    context.close()


def opened(context, running):
    page = context.new_page()
    page.goto(running.address)
    page.wait_for_selector("#images:not([hidden])")
    return page


@pytest.fixture(scope="module")
def first(context, running):
    page = opened(context, running)
    shown(page, "all", MANY)
    return page


@pytest.fixture
def page(first, heard):
    """The page with nothing chosen; after each test nothing was asked for elsewhere, and no script failed."""
    first.bring_to_front()
    yield first
    first.keyboard.press("Escape")
    first.locator("#view-all").click()
    first.locator("#search").fill("")
    assert heard == []


def expect(locator):
    from playwright.sync_api import expect as wait_for

    return wait_for(locator)


def shown(page, view: str, n: int) -> None:
    """Wait until a view says that it has n images."""
    expect(page.locator(f"#view-{view} .n")).to_have_text(f"{n:,}")


def find(page, name: str):
    """Search for an image and choose it."""
    page.locator("#search").fill(name)
    tile = page.locator(".tile").first
    tile.click()
    expect(page.locator("#panel h2")).to_have_text(name)
    return tile


def coloured(folder, colour) -> bytes:
    """The bytes of a small picture."""
    Image.new("RGB", (40, 30), colour).save(folder / "colour.png")
    return (folder / "colour.png").read_bytes()
