"""Looking at answers on the page as a person does, in a real browser, with a tiny model behind it."""

import re

import numpy as np
import pytest
from browsing import expect, find, shown

pytestmark = pytest.mark.xdist_group("browser")


def test_five_hundred_images_are_few_elements_and_all_can_be_seen(page, made):
    assert page.locator(".tile").count() < 100
    names = set()
    page.locator("#sort").select_option("name")
    for _ in range(60):
        names |= set(page.locator(".tile .file").all_text_contents())
        if made.new[-1].name in names:
            break
        page.locator("#scroll").evaluate("box => box.scrollBy(0, 0.8 * box.clientHeight)")
        page.wait_for_timeout(30)
    assert names == {path.name for path in made.new}
    assert page.locator(".tile").count() < 100


def test_the_answers_are_the_models(page, made):
    page.locator("#sort").select_option("name")
    page.locator("#scroll").evaluate("box => box.scrollTo(0, 0)")
    said = made.classifier.details(made.new[:6])
    for i in range(6):
        tile = page.locator(f'.tile[aria-posinset="{i + 1}"]')
        expect(tile.locator(".class")).to_have_text(str(said.labels[i]))
        expect(tile.locator(".said .quiet")).to_have_text(f"{round(100 * float(said.confidence[i]))} %")


def test_unsure_and_unfamiliar_are_marked_and_explained(page, made):
    said = made.classifier.details(made.new)
    unsure = int((said.unsure & ~said.unfamiliar).sum())
    assert unsure > 0
    shown(page, "unsure", unsure)
    shown(page, "unfamiliar", int(said.unfamiliar.sum()))
    page.locator("#view-unsure").focus()
    expect(page.locator("#tip")).to_contain_text("Take the answer as a suggestion")
    assert page.locator("#view-unsure").get_attribute("aria-describedby") == "tip"
    page.keyboard.press("Enter")
    expect(page.locator("#grid .tile").first).to_have_class(re.compile("unsure"))
    assert page.locator(".tile").first.get_attribute("aria-setsize") == str(unsure)
    page.locator(".tile .badge.unsure").first.hover()
    expect(page.locator("#tip")).to_contain_text("Take the answer as a suggestion")
    page.mouse.move(2, 2)
    expect(page.locator("#tip")).to_be_hidden()


def test_filter_sort_and_search(page, made):
    said = made.classifier.details(made.new)
    page.locator("#by-class").select_option("dog")
    page.locator("#sort").select_option("low")
    expect(page.locator(".tile").first).to_have_attribute("aria-setsize", str(int((said.labels == "dog").sum())))
    lowest = made.new[np.where(said.labels == "dog", said.confidence, 2).argmin()].name
    expect(page.locator('.tile[aria-posinset="1"] .file')).to_have_text(lowest)
    page.locator("#by-class").select_option("")
    page.locator("#search").fill("499_")
    expect(page.locator(".tile")).to_have_count(1)
    page.locator("#sort").select_option("name")


def test_one_image_with_all_its_probabilities_and_its_neighbours(page, made):
    find(page, made.new[7].name)
    probabilities = page.locator(".probabilities li")
    expect(probabilities).to_have_count(3)
    expect(page.locator(".near li")).to_have_count(8)
    image = page.locator(".near img").first
    image.scroll_into_view_if_needed()
    expect(image).to_have_js_property("complete", True)
    assert image.evaluate("image => image.naturalWidth") == 32  # the training image's own file
    features = made.classifier._bank().encode([made.new[7]]).features
    nearest = made.classifier.predictor_.training.nearest(features, 1)[0][0, 0]
    expected = made.classifier.classes_[made.classifier.predictor_.training.class_ids[nearest]]
    expect(page.locator(".near .name").first).to_have_text(str(expected))


def test_light_dark_and_a_telephone(browser, context, page, running):
    paper = lambda: page.evaluate("() => getComputedStyle(document.body).backgroundColor")  # noqa: E731
    light = paper()
    page.locator("#theme").click()
    assert paper() != light
    page.locator("#theme").click()
    assert paper() == light
    page.set_viewport_size({"width": 390, "height": 800})
    try:
        for view in ("images", "quality"):
            page.locator(f"#tab-{view}").click()
            page.wait_for_timeout(100)
            assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
        page.locator("#tab-images").click()
        page.locator(".tile").first.click()
        box = page.locator("#panel").bounding_box()
        assert (box["x"], box["width"]) == (0, 390)
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})
