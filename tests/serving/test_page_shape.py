"""The shape of the page in a real browser: long names, small windows, what closes by itself, what is said at edges."""

import pytest
from browsing import expect, find, opened, shown

pytestmark = pytest.mark.xdist_group("browser")
PHONE, DESK = ({"width": 390, "height": 800}, {"width": 1280, "height": 900})
LONG = "taraxacum officinale subspecies vulgare (common dandelion)"


@pytest.fixture
def phone(page):
    page.set_viewport_size(PHONE)
    yield page
    page.set_viewport_size(DESK)


def test_long_names_can_be_read_wherever_one_must_tell_them_apart(page, made):
    clipped = "e => e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight + 1"
    find(page, made.new[5].name).press("t")
    page.keyboard.type(LONG[1:])
    page.keyboard.press("Enter")
    find(page, made.new[5].name)
    given = page.locator(".give", has_text="taraxacum").locator("span")
    expect(given).to_be_visible()
    assert not given.evaluate(clipped)
    label, answer = page.locator(".tile .yours"), page.locator(".tile .said s")
    assert label.bounding_box()["width"] > answer.bounding_box()["width"]  # the label stays, the wrong answer gives way
    assert page.locator(".tile .said").evaluate("e => e.scrollWidth <= e.clientWidth")
    assert label.get_attribute("title") == LONG
    assert page.locator("#by-class").bounding_box()["width"] < 200
    page.locator(".tile").first.press("Backspace")
    shown(page, "labelled", 0)


def test_the_picture_in_the_panel_is_as_large_as_there_is_room(page, made):
    find(page, made.new[6].name)
    expect(page.locator("#panel .large")).to_have_js_property("clientHeight", 300)


def test_the_ring_around_the_image_with_the_focus_is_not_hidden_by_its_picture(page, made):
    tile = find(page, made.new[6].name)
    page.keyboard.press("Home")
    assert tile.evaluate("e => getComputedStyle(e).outlineOffset") == "0px"
    assert tile.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"


def test_keys_and_meanings_can_be_read_on_a_telephone(phone):
    phone.locator("#help-open").click()
    expect(phone.locator("#help-title")).to_be_in_viewport()
    meanings = phone.locator("#help dd").evaluate_all("all => all.map(e => e.clientWidth)")
    assert min(meanings) > 120, meanings
    assert phone.locator("#help").evaluate("e => e.scrollWidth <= e.clientWidth")
    phone.keyboard.press("Escape")


def test_the_filters_fit_on_a_telephone(phone):
    for name in ("by-class", "sort", "search"):
        box = phone.locator(f"#{name}").bounding_box()
        assert box["width"] > 165
        assert box["x"] + box["width"] <= 390


def test_the_list_of_downloads_closes_by_itself(page):
    menu, link = page.locator("#download summary"), page.get_by_role("link", name="CSV")
    menu.click()
    page.keyboard.press("Escape")
    expect(link).to_be_hidden()
    expect(menu).to_be_focused()
    menu.click()
    page.locator(".brand").click()
    expect(link).to_be_hidden()
    menu.click()
    page.locator("#theme").focus()
    expect(link).to_be_hidden()


def test_what_a_button_means_does_not_stay_in_the_way_when_it_was_pressed(page):
    page.locator("#view-labelled").hover()
    expect(page.locator("#tip")).to_be_visible()
    page.locator("#view-labelled").click()
    expect(page.locator("#tip")).to_be_hidden()


def test_escape_closes_the_panel_wherever_the_focus_is(page, made):
    find(page, made.new[6].name)
    page.locator("#view-all").focus()
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()


def test_files_that_are_here_already_are_said_to_be(page, made):
    page.locator("#files").set_input_files([made.new[0], made.new[1]])
    expect(page.locator("#adding-note")).to_have_text("2 files left out: the same images are here already.")


def test_a_method_without_parts_of_uncertainty_says_nothing_of_them(page, made):
    page.locator("#sort").select_option("low")
    page.locator('.tile[aria-posinset="1"]').click()
    expect(page.locator(".why")).to_contain_text("Uncertainty")
    expect(page.locator(".why")).not_to_contain_text("0 %")
    page.locator("#sort").select_option("added")


def test_a_model_that_is_unsure_of_everything_says_why(context, running, made):
    def change(route):
        answer = route.fetch()
        state = answer.json()
        if state.get("model"):
            state["model"]["unsure_below"] = 1.0
        for image in state.get("images", []):
            image["answer"].update(unsure=True, unfamiliar=False)
        route.fulfill(response=answer, json=state)

    context.route("**/page/state*", change)
    other = opened(context, running)
    find(other, made.new[8].name)
    expect(other.locator(".means.unsure")).to_contain_text("No answer was right on images left out of training")
    other.close()
    context.unroute("**/page/state*")


def test_every_mark_of_the_estimate_is_named_and_can_be_read_on_a_telephone(context, running):
    expected = {"unseen": 0.8, "seen": 0.9, "low": 0.4, "high": 0.95, "level": 0.9, "worst": "night",
                "worst_accuracy": 0.5, "sentence": "Expect about 80%."}  # fmt: skip

    def change(route):
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "expected": expected})

    context.route("**/page/quality", change)
    other = opened(context, running)
    other.set_viewport_size(PHONE)
    other.locator("#tab-quality").click()
    expect(other.locator("#quality figcaption").first).to_contain_text("The ring: “night”, 50 %.")
    expect(other.locator(".cards")).to_contain_text("in “night”, the hardest when left out")
    assert other.locator(".interval .tick").first.bounding_box()["height"] > 9
    assert other.locator(".bars .track").first.bounding_box()["width"] > 60
    other.close()
    context.unroute("**/page/quality")
