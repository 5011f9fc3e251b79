"""Images from wherever a person has them, and starting without a model: the page in a real browser."""

import pytest
from browsing import MANY, coloured, expect, find, opened, shown
from pages import Running
from PIL import Image

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def stocked(tmp_path_factory):
    """Nothing yet."""
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(scope="module")
def first(context, running, made):
    """A page with the 500 images, added as a person adds them."""
    page = opened(context, running)
    expect(page.locator("#tells")).to_contain_text("It tells apart dog, guitar and house, and says how sure it is.")
    page.locator("#files").set_input_files(made.new)
    shown(page, "all", MANY)
    return page


def test_what_is_not_an_image_is_said_and_names_stay_text(page, made, tmp_path):
    evil = "<img src=x onerror=alert(1)>.png"
    files = [{"name": evil, "mimeType": "image/png", "buffer": b"no image"}]
    files.append({"name": f"good {evil}", "mimeType": "image/png", "buffer": coloured(tmp_path, (9, 8, 7))})
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
        page.evaluate(script, [list(coloured(tmp_path, colour)), how])

    give((200, 10, 10), "dropped")
    shown(page, "all", MANY + 1)
    give((10, 200, 10), "pasted")
    shown(page, "all", MANY + 2)
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    for i, place in enumerate(("folder", "folder/inner")):
        (tmp_path / place / "x.png").write_bytes(coloured(tmp_path, (i, i, 200)))
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
    expect(page.locator(".tile img").first).to_have_js_property("naturalWidth", 320)
    page.get_by_role("button", name="Remove this image").click()
    shown(page, "all", MANY)


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
