"""Labelling and teaching on the page as a person does, in a real browser; the tests go on from one another."""

import json
import re
import zipfile

import pytest
from browsing import MANY, coloured, expect, find, opened, shown

from bayescal.estimator.base_predictor import BasePredictor

pytestmark = pytest.mark.xdist_group("browser")


def test_a_label_with_one_key_goes_on_to_the_next_and_can_be_undone(page, made, running):
    page.locator("#sort").select_option("name")
    page.locator("#search").fill("00")
    page.locator('.tile[aria-posinset="1"]').click()
    first = page.locator("#panel h2").text_content()
    page.keyboard.press("2")
    expect(page.locator("#panel h2")).not_to_have_text(first)
    shown(page, "labelled", 1)
    expect(page.locator("#toast")).to_contain_text(f"guitar: {first}")
    expect(page.locator("#teach")).to_contain_text("1 label the model")
    assert running.labels()[first] == "guitar"
    page.keyboard.press("Control+z")
    shown(page, "labelled", 0)
    expect(page.locator("#teach")).to_be_hidden()
    assert running.labels()[first] is None


def test_typing_finds_a_class_and_makes_a_new_one(page, made, running):
    tile = find(page, made.new[20].name)
    tile.press("h")
    expect(page.locator("#class-list li").first).to_have_text("house")
    page.keyboard.press("Enter")
    expect(page.locator(".tile .yours")).to_have_text("✓ house")
    find(page, made.new[21].name).press("z")
    page.keyboard.type("ebra")
    expect(page.locator("#class-list li")).to_have_text("New class: zebra")
    page.keyboard.press("Enter")
    expect(page.locator(".tile .yours")).to_have_text("✓ zebra")
    for i in (20, 21):
        find(page, made.new[i].name).press("Backspace")
        expect(page.locator(".tile .yours")).to_have_count(0)
    shown(page, "labelled", 0)


def test_several_images_get_one_label(page, made, running):
    page.locator("#sort").select_option("name")
    page.locator("#search").fill("03")
    page.locator('.tile[aria-posinset="1"]').click()
    page.locator('.tile[aria-posinset="4"]').click(modifiers=["Shift"])
    expect(page.locator("#panel h2")).to_have_text("4 images")
    page.keyboard.press("1")
    shown(page, "labelled", 4)
    page.locator("#toast-undo").click()
    shown(page, "labelled", 0)


def test_with_the_keyboard_alone(page, made):
    page.locator("#search").focus()
    page.keyboard.type("04")
    page.keyboard.press("Enter")
    focused = "() => document.activeElement.closest('.tile')?.getAttribute('aria-posinset')"
    assert page.evaluate(focused) == "1"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused) == "2"
    page.keyboard.press("End")
    assert page.evaluate(focused) == page.locator(".tile").first.get_attribute("aria-setsize")
    name = page.evaluate("() => document.activeElement.innerText")  # what screen readers say of an option
    assert re.search(r"(dog|guitar|house)\s+\d+ %\s+\d*04\d*_", name)
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    assert page.evaluate(focused) is not None  # the focus is not lost
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")


def test_two_tabs_see_what_the_other_does(page, context, made, running):
    other = opened(context, running)
    shown(other, "all", MANY)
    find(page, made.new[50].name).press("1")
    find(other, made.new[51].name).press("2")
    shown(other, "labelled", 2)
    shown(page, "labelled", 2)
    find(other, made.new[50].name).press("3")  # the last word counts
    other.close()
    find(page, made.new[50].name)
    expect(page.locator(".tile .yours")).to_have_text("✓ house")
    for i in (50, 51):
        find(page, made.new[i].name).press("Backspace")
        expect(page.locator(".tile .yours")).to_have_count(0)
    shown(page, "labelled", 0)


def test_a_server_that_is_killed_in_the_middle_of_labelling_loses_nothing(page, made, running, tmp_path, heard):
    chosen = [path.name for path in made.new[60:66]]
    for name in chosen[:3]:
        find(page, name).press("1")
    shown(page, "labelled", 3)
    expect(page.locator("#teach")).to_contain_text("3 labels")
    running.kill()
    assert [running.labels()[name] for name in chosen[:3]] == ["dog"] * 3
    for name in chosen[3:]:
        find(page, name).press("2")
    page.locator("#files").set_input_files(
        [{"name": "meanwhile.png", "mimeType": "image/png", "buffer": coloured(tmp_path, (77, 77, 0))}]
    )
    expect(page.locator("#offline")).to_be_visible()
    shown(page, "labelled", 6)
    running.start()
    expect(page.locator("#offline")).to_be_hidden()
    shown(page, "all", MANY + 1)
    expect(page.locator("#teach")).to_contain_text("6 labels")
    assert [running.labels()[name] for name in chosen] == ["dog"] * 3 + ["guitar"] * 3
    page.reload()
    shown(page, "labelled", 6)
    find(page, "meanwhile.png")
    page.get_by_role("button", name="Remove this image").click()
    shown(page, "all", MANY)


def test_without_a_network_labels_wait_and_survive_a_reload_and_a_closed_tab(page, context, made, running):
    other = opened(context, running)
    shown(other, "labelled", 6)
    context.set_offline(True)
    find(page, made.new[66].name).press("3")
    expect(page.locator("#offline")).to_be_visible()
    find(other, made.new[67].name).press("1")
    expect(other.locator("#offline")).to_be_visible()
    other.close()
    assert [running.labels()[path.name] for path in made.new[66:68]] == [None, None]
    context.set_offline(False)
    page.on("dialog", lambda dialog: dialog.accept())  # the browser asks whether to leave a page with unsent labels
    page.reload()
    shown(page, "labelled", 8)
    expect(page.locator("#teach")).to_contain_text("8 labels")
    assert [running.labels()[path.name] for path in made.new[66:68]] == ["house", "dog"]


def test_what_to_label_next_comes_in_order_and_gets_shorter(page, made):
    with page.expect_response("**/page/queue") as asked:
        page.locator("#view-next").click()
    queue = asked.value.json()["images"]
    expect(page.locator('.tile[aria-posinset="1"]')).to_have_attribute("data-id", queue[0])
    shown(page, "next", MANY - 8)
    page.locator('.tile[aria-posinset="1"]').click()
    page.keyboard.press("1")
    shown(page, "next", MANY - 9)
    assert page.locator(f'.tile[data-id="{queue[0]}"]').count() == 0
    page.keyboard.press("Control+z")
    shown(page, "next", MANY - 8)


def test_teaching_shows_before_and_after_and_can_be_undone(page, made, running, context):
    for number in range(70, 90):  # what each one really shows
        kind = made.new[number].stem.split("_")[1]
        find(page, made.new[number].name).press(str(["dog", "guitar", "house"].index(kind) + 1))
    shown(page, "labelled", 28)
    page.get_by_role("button", name="Teach the model").click()
    outcome = page.locator(".outcome")
    expect(outcome).to_contain_text(re.compile(r"\d+ % → \d+ % right on your 28 labelled images"))
    expect(page.locator("#model-name")).to_contain_text("taught, version 1")
    taught = BasePredictor.load(running.model.with_name("model-labels") / "models" / "1", made.classifier.backbone)
    assert len(taught.training) == len(made.classifier.predictor_.training) + 28
    find(page, made.new[70].name)
    expect(page.locator("#panel .badge.learned")).to_be_visible()
    expect(page.locator(".near li")).to_have_count(8)
    refused = []
    page.on("response", lambda answer: refused.append(answer.url) if answer.status >= 400 else None)
    page.get_by_role("button", name="Undo teaching").click()
    expect(page.locator("#model-name")).not_to_contain_text("taught")
    expect(page.locator("#teach")).to_contain_text("28 labels")
    expect(outcome).to_contain_text("Undone: the model before answers again")
    expect(page.locator(".near li")).to_have_count(8)
    assert refused == []  # no picture that the model before does not have was asked for
    assert BasePredictor.load(running.model, made.classifier.backbone).record == made.classifier.record_


def test_downloads(page, made, tmp_path):
    def fetch(name):
        page.locator("#download summary").click()
        with page.expect_download() as saved:
            page.get_by_role("link", name=name).click()
        saved.value.save_as(tmp_path / saved.value.suggested_filename)
        return tmp_path / saved.value.suggested_filename

    lines = fetch("CSV").read_text(encoding="utf-8").splitlines()
    assert len(lines) == MANY + 1
    answers = json.loads(fetch("JSON").read_text(encoding="utf-8"))
    by_name = {answer["image"]: answer for answer in answers}
    said = made.classifier.details(made.new[:1])
    assert by_name[made.new[0].name]["class"] == said.labels[0]
    assert by_name[made.new[0].name]["probabilities"]["dog"] == pytest.approx(float(said.probabilities[0, 0]), abs=1e-5)
    assert sum(answer["label"] is not None for answer in answers) == 28
    with zipfile.ZipFile(fetch("ZIP")) as archive:
        archive.extractall(tmp_path)
    BasePredictor.load(tmp_path / "model", made.classifier.backbone)


def test_how_good_it_is(page, made):
    page.locator("#tab-quality").click()
    checked = made.classifier.record_["checked"]
    rows = page.locator(".measured").first.locator("tbody tr")
    expect(rows).to_have_count(3 + 3)
    for place in checked["environments"]:
        row = page.locator(".measured").first.locator("tr", has_text=place["name"])
        expect(row.locator(".number")).to_have_text(f"{round(100 * place['accuracy'])} %")
    bins = sum(1 for n in checked["reliability"]["count"] if n)
    expect(page.locator(".calibration").first.locator(".bin")).to_have_count(bins)
    expect(page.locator(".measured").nth(1)).to_contain_text("28 images that the model in use has not learned from")
    page.locator(".bin").first.focus()
    expect(page.locator("#tip")).to_contain_text("were right")
    page.locator("#tab-images").click()


def test_what_teaching_changed_is_shown_again_by_a_server_that_was_started_anew(page, running):
    """Its jobs are numbered from one again, as the one was whose outcome was closed here."""
    page.locator(".outcome").get_by_role("button", name="Close").click()
    expect(page.locator(".outcome")).to_have_count(0)
    running.kill()
    expect(page.locator("#offline")).to_be_visible()
    running.start()
    expect(page.locator("#offline")).to_be_hidden()
    page.get_by_role("button", name="Teach the model").click()
    expect(page.locator(".outcome")).to_contain_text("Taught.")
