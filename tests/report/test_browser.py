"""The page in a real browser: figures draw, nothing is fetched, the console is clean, every look works."""

import pytest
import sample

from bayescal.report import to_html
from chromium import watched

pytestmark = pytest.mark.xdist_group("browser")
# What a figure has drawn: lines and points, or the levels of a landscape.
COUNT = """figure => figure.querySelectorAll(
    ".main-svg .scatterlayer .trace path, .main-svg .contourlayer path").length"""


@pytest.fixture(scope="module")
def opened(browser, heard, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(to_html(sample.sections()), encoding="utf-8")
    context = watched(browser, heard, own=("file:",))
    page = context.new_page()
    page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn=yes]", timeout=60_000)
    yield page
    context.close()


@pytest.fixture
def page(opened, heard):
    """The page as it was opened; after each test the console is still clean."""
    yield opened
    opened.set_viewport_size({"width": 1280, "height": 900})
    opened.emulate_media(media="screen", color_scheme="light")
    opened.evaluate("() => { if (document.documentElement.dataset.theme === 'dark') theme.click() }")
    assert heard == []


def ink(page) -> str:
    """The colour of the letters in the first figure."""
    return page.evaluate("() => getComputedStyle(document.querySelector('.plot .xtick text')).fill")


def paper(page) -> str:
    return page.evaluate("() => getComputedStyle(document.body).backgroundColor")


def test_every_figure_draws_and_nothing_is_fetched(page):
    figures = page.locator("figure.plot")
    assert figures.count() == 8
    for i in range(figures.count()):
        assert figures.nth(i).evaluate(COUNT) > 0, figures.nth(i).get_attribute("id")
        box = figures.nth(i).locator(".main-svg").first.bounding_box()
        assert box["width"] > 500
        assert box["height"] > 150
    assert page.evaluate("() => typeof window.x") == "undefined"
    assert page.title() == "Bayes-CAL: what was found"


def test_names_are_shown_as_they_are(page):
    shown = page.locator("#figure-zz-own-loss .annotation-text").first.text_content()
    assert shown.replace(" ", "") == sample.AWKWARD.replace(" ", "")
    assert sample.AWKWARD in page.locator("#figure-zz-own-loss .legend").inner_text()


def test_the_button_changes_page_and_figures(page):
    light = ink(page), paper(page)
    line = "#figure-epochs-curves .scatterlayer .js-line >> nth=1"
    blue = page.locator(line).evaluate("path => path.style.stroke")
    assert page.locator("#theme").inner_text().endswith("Dark")
    page.locator("#theme").click()
    assert page.locator("#theme").inner_text().endswith("Light")
    assert ink(page) != light[0]
    assert paper(page) != light[1]
    assert page.locator(line).evaluate("path => path.style.stroke") != blue
    page.locator("#theme").click()
    assert (ink(page), paper(page)) == light


def test_it_follows_the_system_until_the_button_is_used(browser, opened):
    context = browser.new_context(color_scheme="dark", viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(opened.url)
    dark = paper(page)
    context.close()
    assert dark != paper(opened)


def test_pointing_at_a_feature_shows_its_image(page):
    point = page.locator("#figure-tsne-features .scatterlayer .point").nth(20)
    # Figures are drawn as they come into view, which moves the ones below: scroll and point until it stays in place.
    for _ in range(50):
        point.scroll_into_view_if_needed()
        box = point.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_timeout(200)
        if page.locator("#hover").is_visible():
            break
        page.mouse.move(2, 2)
    page.wait_for_selector("#hover:not([hidden])", timeout=1000)
    assert page.evaluate("() => hover.querySelector('img').naturalWidth") == 48
    assert page.locator("#hover").inner_text().split(",")[0] in ("dog", "elephant")
    page.mouse.move(2, 2)
    page.wait_for_selector("#hover", state="hidden")


def test_a_method_is_hidden_and_shown_from_the_keyboard(page):
    figure = page.locator("#figure-main-risk-coverage")
    before = figure.locator(".scatterlayer .trace").count()
    button = figure.locator(".legend button").first
    button.focus()
    for expected, pressed in ((before - 1, "false"), (before, "true")):
        page.keyboard.press("Enter")
        assert figure.locator(".scatterlayer .trace").count() == expected
        assert button.get_attribute("aria-pressed") == pressed


def test_a_figure_is_saved_with_its_legend_in_light_colours(page, tmp_path):
    page.locator("#theme").click()
    with page.expect_download() as saved:
        page.locator("#figure-main-risk-coverage [data-save=svg]").click()
    saved.value.save_as(tmp_path / "figure.svg")
    svg = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert saved.value.suggested_filename == "figure-main-risk-coverage.svg"
    for words in ("Bayes-CAL", "Risk against coverage", "rgb(0, 114, 178)"):
        assert words in svg


def test_on_paper_it_is_light_whole_and_without_buttons(page):
    light = ink(page)
    page.locator("#theme").click()
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator("#theme").is_hidden()
    assert page.locator("nav").is_hidden()
    assert page.locator(".copies").first.is_hidden()
    assert paper(page) == "rgb(255, 255, 255)"
    assert ink(page) == light
    widths = page.evaluate(
        "() => [...document.querySelectorAll('.main-svg, table')].map(e => e.getBoundingClientRect().width)"
    )
    assert max(widths) <= 1001  # a wide table has a page on its side
    assert (
        page.evaluate("() => Math.max(...[...document.querySelectorAll('.main-svg')].map(e => e.clientWidth))") <= 680
    )


def test_on_a_phone_wide_tables_scroll_in_their_own_box(page):
    page.set_viewport_size({"width": 400, "height": 800})
    page.wait_for_function("() => [...document.querySelectorAll('.main-svg')].every(svg => svg.clientWidth <= 400)")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
    box = page.locator("#table-main-accuracy .scroll")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    assert box.get_attribute("tabindex") == "0"
    heights = page.locator("#figure-main-reliability .main-svg").first.bounding_box()
    assert heights["height"] > 600  # panels stand one below the other
