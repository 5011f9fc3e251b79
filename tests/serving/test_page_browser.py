"""The page as a person uses it, in a real browser, with a tiny model behind it."""

import json
import re
import shutil
import zipfile

import numpy as np
import pytest
from pages import Made, Running, Servers, make
from PIL import Image

from bayescal.estimator.base_predictor import BasePredictor

pytestmark = pytest.mark.xdist_group("browser")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
)  # fmt: skip
MANY = 500
SLOW = 60_000  # milliseconds that a busy machine may take


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Made:
    return make(tmp_path_factory.mktemp("page"), MANY)


@pytest.fixture(scope="module")
def servers(made):
    servers = Servers(made)
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def server(servers, made, tmp_path_factory):
    """The server that the tests of this file share; some kill it and start it again."""
    running = Running(servers, made.model, tmp_path_factory.mktemp("cwd")).start()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        pytest.skip("needs Debian's chromium (apt-get install chromium) or google-chrome")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives the browser")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        playwright.expect.set_options(timeout=SLOW)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def heard() -> list[str]:
    """Everything that should not be: errors on the console, and every address but the server's."""
    return []


@pytest.fixture(scope="module")
def context(browser, server, heard):
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, color_scheme="light", permissions=["camera"], accept_downloads=True
    )
    context.set_default_timeout(SLOW)

    def refuse(route):
        heard.append(f"asked for {route.request.url}")
        route.abort()

    own = (server.address, "blob:", "data:")
    context.route(lambda url: not url.startswith(own), refuse)
    context.on("weberror", lambda error: heard.append(f"error: {error.error}"))
    yield context
    context.close()


def opened(context, server):
    page = context.new_page()
    page.goto(server.address)
    page.wait_for_selector("#images:not([hidden])")
    return page


@pytest.fixture(scope="module")
def first(context, server, made):
    """A page with the 500 images, added as a person adds them."""
    page = opened(context, server)
    page.locator("#files").set_input_files(made.new)
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


def test_a_label_with_one_key_goes_on_to_the_next_and_can_be_undone(page, made, server):
    page.locator("#sort").select_option("name")
    page.locator("#search").fill("00")
    page.locator('.tile[aria-posinset="1"]').click()
    first = page.locator("#panel h2").text_content()
    page.keyboard.press("2")
    expect(page.locator("#panel h2")).not_to_have_text(first)
    shown(page, "labelled", 1)
    expect(page.locator("#toast")).to_contain_text(f"guitar: {first}")
    expect(page.locator("#teach")).to_contain_text("1 label the model")
    assert server.labels()[first] == "guitar"
    page.keyboard.press("Control+z")
    shown(page, "labelled", 0)
    expect(page.locator("#teach")).to_be_hidden()
    assert server.labels()[first] is None


def test_typing_finds_a_class_and_makes_a_new_one(page, made, server):
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


def test_several_images_get_one_label(page, made, server):
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
    label = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    assert re.match(r"(dog|guitar|house), \d+ %", label)
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    assert page.evaluate(focused) is not None  # the focus is not lost
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")


def test_what_is_not_an_image_is_said_and_names_stay_text(page, made, tmp_path):
    evil = "<img src=x onerror=alert(1)>.png"
    files = [{"name": evil, "mimeType": "image/png", "buffer": b"no image"}]
    files.append({"name": f"good {evil}", "mimeType": "image/png", "buffer": _coloured(tmp_path, (9, 8, 7))})
    page.locator("#files").set_input_files(files)
    expect(page.locator("#refused-text")).to_have_text("1 file could not be added")
    page.locator("#refused-text").click()
    expect(page.locator("#refused-list")).to_contain_text(evil)
    shown(page, "all", MANY + 1)
    find(page, f"good {evil}")
    assert page.locator("#refused-list img, .file img, #panel h2 img").count() == 0
    page.locator("#refused-clear").click()
    page.get_by_role("button", name="Remove this image").click()
    shown(page, "all", MANY)


def test_dropped_pasted_from_a_folder_and_from_the_camera(page, made, tmp_path):
    def give(colour, how):
        script = """([bytes, how]) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], how + ".png", { type: "image/png" }));
            document.body.dispatchEvent(how === "dropped"
                ? new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true })
                : new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
        }"""
        page.evaluate(script, [list(_coloured(tmp_path, colour)), how])

    give((200, 10, 10), "dropped")
    shown(page, "all", MANY + 1)
    give((10, 200, 10), "pasted")
    shown(page, "all", MANY + 2)
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    for i, place in enumerate(("folder", "folder/inner")):
        (tmp_path / place / "x.png").write_bytes(_coloured(tmp_path, (i, i, 200)))
    page.locator("#folder").set_input_files(tmp_path / "folder")
    shown(page, "all", MANY + 4)
    page.locator("#pick-camera").click()
    expect(page.locator("#video")).not_to_have_js_property("videoWidth", 0)
    page.locator("#shoot").click()
    shown(page, "all", MANY + 5)
    page.locator("#camera-close").click()
    names = {"dropped.png", "pasted.png", "folder/x.png", "folder/inner/x.png"}
    for name in [*sorted(names), "camera"]:
        page.locator("#search").fill(name)
        page.locator(".tile").first.click()
        page.get_by_role("button", name="Remove this image").click()
        expect(page.locator(".tile")).to_have_count(0)
    shown(page, "all", MANY)


def test_a_photo_of_forty_megapixels(page, made, tmp_path):
    """It goes to the server as it is, so its answer is that of `predict`; what comes back is small."""
    ramps = [Image.linear_gradient("L").rotate(angle) for angle in (0, 90, 180)]
    Image.merge("RGB", ramps).resize((8000, 5000), Image.Resampling.NEAREST).save(tmp_path / "photo.jpg", quality=90)
    page.locator("#files").set_input_files(tmp_path / "photo.jpg")
    shown(page, "all", MANY + 1)
    find(page, "photo.jpg")
    said = made.classifier.details([tmp_path / "photo.jpg"])
    expect(page.locator("#panel .answer")).to_contain_text(
        f"{said.labels[0]} {round(100 * float(said.confidence[0]))} %"
    )
    picture = page.locator("#panel .large")
    expect(picture).to_have_js_property("naturalWidth", 1280)
    assert page.locator(".tile img").first.evaluate("image => image.naturalWidth") == 320
    page.get_by_role("button", name="Remove this image").click()
    shown(page, "all", MANY)


def test_two_tabs_see_what_the_other_does(page, context, made, server):
    other = opened(context, server)
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


def test_a_server_that_is_killed_in_the_middle_of_labelling_loses_nothing(page, made, server, tmp_path, heard):
    chosen = [path.name for path in made.new[60:66]]
    for name in chosen[:3]:
        find(page, name).press("1")
    shown(page, "labelled", 3)
    expect(page.locator("#teach")).to_contain_text("3 labels")
    server.kill()
    assert [server.labels()[name] for name in chosen[:3]] == ["dog"] * 3
    for name in chosen[3:]:
        find(page, name).press("2")
    page.locator("#files").set_input_files(
        [{"name": "meanwhile.png", "mimeType": "image/png", "buffer": _coloured(tmp_path, (77, 77, 0))}]
    )
    expect(page.locator("#offline")).to_be_visible()
    shown(page, "labelled", 6)
    server.start()
    expect(page.locator("#offline")).to_be_hidden()
    shown(page, "all", MANY + 1)
    expect(page.locator("#teach")).to_contain_text("6 labels")
    assert [server.labels()[name] for name in chosen] == ["dog"] * 3 + ["guitar"] * 3
    page.reload()
    shown(page, "labelled", 6)
    find(page, "meanwhile.png")
    page.get_by_role("button", name="Remove this image").click()
    shown(page, "all", MANY)


def test_without_a_network_labels_wait_and_survive_a_reload_and_a_closed_tab(page, context, made, server):
    other = opened(context, server)
    shown(other, "labelled", 6)
    context.set_offline(True)
    find(page, made.new[66].name).press("3")
    expect(page.locator("#offline")).to_be_visible()
    find(other, made.new[67].name).press("1")
    expect(other.locator("#offline")).to_be_visible()
    other.close()
    assert [server.labels()[path.name] for path in made.new[66:68]] == [None, None]
    context.set_offline(False)
    page.on("dialog", lambda dialog: dialog.accept())  # the browser asks whether to leave a page with unsent labels
    page.reload()
    shown(page, "labelled", 8)
    expect(page.locator("#teach")).to_contain_text("8 labels")
    assert [server.labels()[path.name] for path in made.new[66:68]] == ["house", "dog"]


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


def test_teaching_shows_before_and_after_and_can_be_undone(page, made, server, context):
    for number in range(70, 90):  # what each one really shows
        kind = made.new[number].stem.split("_")[1]
        find(page, made.new[number].name).press(str(["dog", "guitar", "house"].index(kind) + 1))
    shown(page, "labelled", 28)
    page.get_by_role("button", name="Teach the model").click()
    outcome = page.locator(".outcome")
    expect(outcome).to_contain_text(re.compile(r"\d+ % → \d+ % right on your 28 labelled images"))
    expect(page.locator("#model-name")).to_contain_text("taught, version 1")
    taught = BasePredictor.load(made.model.with_name("model-labels") / "models" / "1", made.classifier.backbone)
    assert len(taught.training) == len(made.classifier.predictor_.training) + 28
    find(page, made.new[70].name)
    expect(page.locator("#panel .badge.learned")).to_be_visible()
    page.get_by_role("button", name="Undo teaching").click()
    expect(page.locator("#model-name")).not_to_contain_text("taught")
    expect(page.locator("#teach")).to_contain_text("28 labels")
    assert BasePredictor.load(made.model, made.classifier.backbone).record == made.classifier.record_


def test_downloads(page, made, tmp_path):
    def fetch(name):
        page.locator("#download summary").click()
        with page.expect_download() as saved:
            page.get_by_role("link", name=name).click()
        page.locator("#download summary").click()
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


def test_light_dark_and_a_telephone(browser, context, page, server):
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


def test_starting_without_a_model(browser, servers, made, tmp_path):
    running = Running(servers, None, tmp_path).start()
    try:
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(running.address)
        page.get_by_role("button", name="Browse").click()
        expect(page.locator(".browse strong")).to_have_text(str(tmp_path))
        page.locator("#start-path").fill(str(made.data) + "x")
        page.get_by_role("button", name="Look").click()
        expect(page.get_by_role("alert").last).to_contain_text("did you mean 'data'?")
        page.locator("#start-path").fill(str(made.data))
        page.get_by_role("button", name="Look").click()
        expect(page.locator("#start .card").last).to_contain_text("81 images of 3 classes in 3 environments")
        page.get_by_role("button", name="Learn").click()
        expect(page.locator("#images")).to_be_visible()
        page.locator("#files").set_input_files(made.new[:2])
        shown(page, "all", 2)
        assert (tmp_path / "data-model" / "config.json").is_file()
        context.close()
    finally:
        running.kill()


def _coloured(folder, colour) -> bytes:
    """The bytes of a small picture."""
    Image.new("RGB", (40, 30), colour).save(folder / "colour.png")
    return (folder / "colour.png").read_bytes()
