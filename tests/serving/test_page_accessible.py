"""The page by keyboard and with a screen reader: axe-core finds nothing against WCAG 2.1, levels A and AA."""

import pytest
from browsing import expect, find, opened, shown
from pages import Running

from chromium import violations, watched

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module", params=["light", "dark"])
def coloured(request, browser, running, heard):
    """A page in the colours that the system asks for."""
    context = watched(browser, heard, own=(running.address,), color_scheme=request.param, reduced_motion="reduce")
    page = opened(context, running)
    assert page.evaluate("() => document.documentElement.dataset.theme") == request.param
    yield page
    assert heard == []
    context.close()


@pytest.fixture
def looking(coloured):
    """The page with nothing chosen."""
    yield coloured
    coloured.set_viewport_size({"width": 1280, "height": 900})
    coloured.context.set_offline(False)
    coloured.keyboard.press("Escape")
    coloured.locator("#tab-images").click()
    coloured.locator("#view-all").click()
    coloured.locator("#search").fill("")


def test_images_with_answers_and_one_of_them_in_the_panel(looking, made):
    looking.locator("#view-unsure").click()
    expect(looking.locator(".tile .badge.unsure").first).to_be_visible()
    assert violations(looking) == []
    looking.locator("#view-all").click()
    find(looking, made.new[3].name)
    expect(looking.locator(".near li")).to_have_count(8)
    assert violations(looking) == []
    looking.locator("#download summary").click()
    expect(looking.get_by_role("link", name="CSV")).to_be_visible()
    assert violations(looking) == []
    looking.locator("#search").fill("nothing has this name")
    expect(looking.locator("#nothing")).to_be_visible()
    assert violations(looking) == []


def test_labelled_images_the_list_of_classes_and_what_is_said_of_them(looking, made):
    find(looking, made.new[4].name).press("1")
    expect(looking.locator("#toast")).to_be_visible()
    expect(looking.locator("#teach")).to_contain_text("1 label")
    assert violations(looking) == []
    looking.locator(".tile").first.press("h")
    expect(looking.locator("#class-list li")).to_have_count(2)  # "house", and "h" as a new class
    assert violations(looking) == []
    looking.keyboard.press("Escape")
    looking.locator(".tile").first.press("Backspace")
    shown(looking, "labelled", 0)


def test_how_good_it_is_and_what_keys_there_are(looking):
    looking.locator("#tab-quality").click()
    expect(looking.locator(".calibration").first).to_be_visible()
    assert violations(looking) == []
    looking.locator("#help-open").click()
    expect(looking.locator("#help")).to_be_visible()
    assert violations(looking) == []


def test_what_was_refused_and_a_server_that_is_away(looking, running):
    looking.locator("#files").set_input_files([{"name": "text.png", "mimeType": "image/png", "buffer": b"no image"}])
    looking.locator("#refused-text").click()
    looking.context.set_offline(True)
    expect(looking.locator("#offline")).to_be_visible()
    assert violations(looking) == []
    looking.context.set_offline(False)
    looking.locator("#refused-clear").click()
    expect(looking.locator("#offline")).to_be_hidden()


def test_at_the_width_of_a_telephone(looking):
    looking.set_viewport_size({"width": 390, "height": 800})
    assert violations(looking) == []
    looking.locator(".tile").first.click()
    assert violations(looking) == []


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_starting_without_a_model(browser, servers, made, tmp_path, heard, colours):
    server = Running(servers, None, tmp_path).start()
    try:
        context = watched(browser, heard, own=(server.address,), color_scheme=colours)
        page = context.new_page()
        page.goto(server.address)
        page.get_by_role("button", name="Browse").click()
        expect(page.locator(".browse strong")).to_have_text(str(tmp_path))
        assert violations(page) == []
        page.locator("#start-path").fill(f"{made.data}x")
        page.get_by_role("button", name="Look").click()
        expect(page.get_by_role("alert").last).to_contain_text("did you mean 'data'?")
        page.locator("#start-path").fill(str(made.data))
        page.get_by_role("button", name="Look").click()
        expect(page.locator("#start .card").last).to_contain_text("81 images")
        assert violations(page) == []
        context.close()
    finally:
        server.kill()


def test_keys_reach_everything_and_the_focus_is_seen(looking):
    """From the address bar on: each stop of Tab is another element, has a name, and shows that it has the focus."""
    describe = """() => { const e = document.activeElement; const s = getComputedStyle(e);
        const name = e.getAttribute("aria-label") || e.labels?.[0]?.textContent || e.textContent || e.title;
        return [e.id || e.className, name.trim(), s.outlineStyle !== "none" || e.matches("main")]; }"""
    looking.evaluate("() => document.querySelector('.skip').focus()")
    looking.keyboard.press("Tab")
    looking.keyboard.press("Shift+Tab")
    seen = []
    while not looking.evaluate("() => document.activeElement === document.body") and len(seen) < 40:
        seen.append(looking.evaluate(describe))
        looking.keyboard.press("Tab")
    names = [what for what, _, _ in seen]
    for stop in ("skip", "tab-images", "theme", "help-open", "pick-files", "view-all", "by-class", "sort", "search"):
        assert stop in names, names
    assert any(name.startswith("tile") for name in names)
    assert all(name and outlined for _, name, outlined in seen), seen
