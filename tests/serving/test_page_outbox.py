"""Labels on their way to the server: none is lost, and none goes where it was not meant for; in a real browser."""

import shutil

import pytest
from browsing import MANY, expect, find, shown

pytestmark = pytest.mark.xdist_group("browser")

STATE = "import('/static/state.js')"


def unsent(page) -> int:
    return page.evaluate(f"async () => (await {STATE}).unsent()")


def label_all(page, names: list[str], name: str, environment: str) -> None:
    """As the page does it for several images that are selected."""
    page.evaluate(
        f"""async ([names, name, environment]) => {{
          const {{ known, label }} = await {STATE};
          const images = [...known.images.values()].filter((entry) => names.includes(entry.name));
          await label(images.map(({{ id }}) => ({{ image: id, class: name, environment }})));
        }}""",
        [names, name, environment],
    )


def test_labels_wait_for_the_folder_that_they_were_given_for(page, made, running):
    """Another server at the same address has the same images, and keeps its labels elsewhere."""
    own = running.model
    running.kill()  # first: it writes reduced pictures into the folder that is copied
    other = shutil.copytree(own, own.with_name("other"))
    shutil.copytree(own.with_name("model-labels"), own.with_name("other-labels"))
    for path in made.new[:2]:
        find(page, path.name).press("1")
    expect(page.locator("#offline")).to_be_visible()
    assert unsent(page) == 2
    running.model = other
    running.start()
    expect(page.locator("#model-name")).to_contain_text("other")
    shown(page, "all", MANY)
    shown(page, "labelled", 0)
    find(page, made.new[2].name).press("2")
    expect(page.locator("#teach")).to_contain_text("1 label the model")
    assert unsent(page) == 0
    assert {name: label for name, label in running.labels().items() if label} == {made.new[2].name: "guitar"}
    expect(page.locator("#toast")).not_to_contain_text("there is no image")
    running.kill()
    running.model = own
    running.start()
    shown(page, "labelled", 2)
    expect(page.locator("#teach")).to_contain_text("2 labels")
    labels = {name: label for name, label in running.labels().items() if label}
    assert labels == {path.name: "dog" for path in made.new[:2]}


def test_a_label_that_is_refused_does_not_take_others_with_it(page, made, running):
    page.evaluate(
        f"""async () => {{
          const {{ known }} = await {STATE};
          known.images.set("0".repeat(64), {{ id: "0".repeat(64), name: "ghost", answer: {{ class: "dog" }} }});
        }}"""
    )
    names = [path.name for path in made.new[10:13]]
    label_all(page, [names[0], "ghost", *names[1:]], "house", "garden")
    page.evaluate(f"async () => (await {STATE}).known.images.delete('0'.repeat(64))")
    assert unsent(page) == 0
    assert [running.labels()[name] for name in names] == ["house"] * 3
    expect(page.locator("#toast")).to_contain_text("there is no image 000000000000")


def test_more_labels_than_a_browser_sends_at_once_arrive(page, made, running):
    names = [path.name for path in made.new[20:320]]
    label_all(page, names, "ж" * 60, "я" * 45)
    assert unsent(page) == 0
    assert [running.labels()[name] for name in names] == ["ж" * 60] * 300
