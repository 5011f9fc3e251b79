"""The page in a real browser, with onnxruntime-web from the npm package: the same answers, no server but for files."""

import functools
import http.server
import json
import threading

import pytest
from exporting import WEB

from bayescal.export.reading import ExportedModel
from chromium import violations, watched
from command_line import run

pytestmark = pytest.mark.xdist_group("exported")


class Files(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, silently, under the types that browsers insist on."""

    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".wasm": "application/wasm"}  # noqa: RUF012
    extensions_map[".mjs"] = extensions_map[".js"] = "text/javascript"

    def log_message(self, *_) -> None:
        pass


@pytest.fixture(scope="module")
def address(exported):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(exported)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def page(browser, address, heard):
    """The page; after each test nothing was asked for elsewhere, and no script failed."""
    context = watched(browser, heard, own=(address,))
    page = context.new_page()
    page.goto(address)
    yield page
    assert heard == []
    context.close()


@pytest.mark.skipif(not WEB.is_dir(), reason=f"needs the npm package onnxruntime-web in {WEB} (.ci/run fetches it)")
def test_the_page_answers_as_the_model_does(page, model, shapes, exported, tmp_path):
    page.wait_for_function("() => document.getElementById('status').textContent.startsWith('Ready')", timeout=60_000)
    assert "Knows 2 classes: dog, house" in page.locator("#about").inner_text()
    (tmp_path / "text.png").write_text("no image")
    images = [str(path) for path in sorted(shapes.rglob("*.png"))[::5]]
    page.set_input_files("#files", [*images, str(tmp_path / "text.png")])
    page.wait_for_function(f"() => document.querySelectorAll('#answers li').length === {len(images) + 1}")
    shown = page.locator("#answers li")
    assert "text.png: cannot be read" in shown.first.inner_text()
    found = [json.loads(shown.nth(i).get_attribute("data-answer")) for i in range(len(images), 0, -1)]
    true = run("predict", model, *images, "--json").json
    for one, other in zip(found, true, strict=True):
        assert one["probabilities"] == pytest.approx(list(other["probabilities"].values()), abs=1e-4)
        for field in ("class", "unsure", "environment", "unfamiliar"):
            assert one[field] == other[field], field
        for field in ("confidence", "entropy", "mutual_information", "familiarity"):
            assert one[field] == pytest.approx(other[field], abs=1e-4), field
    words = shown.nth(len(images)).inner_text()
    assert true[0]["class"] in words
    assert f"looks like: {true[0]['environment']}" in words
    assert ExportedModel(exported).classes == ["dog", "house"]


def test_without_the_program_the_page_says_what_to_do(browser, address):
    context = browser.new_context()
    page = context.new_page()
    page.route("**/onnxruntime-web/**", lambda route: route.abort())
    page.goto(address)
    page.wait_for_function("() => document.getElementById('status').textContent.includes('could not be loaded')")
    assert (
        "put the folder dist of the npm package onnxruntime-web beside this page"
        in page.locator("#status").inner_text()
    )
    context.close()


@pytest.mark.skipif(not WEB.is_dir(), reason=f"needs the npm package onnxruntime-web in {WEB} (.ci/run fetches it)")
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing_against_the_page(page, shapes, tmp_path, colours):
    page.emulate_media(color_scheme=colours)
    page.wait_for_function("() => document.getElementById('status').textContent.startsWith('Ready')", timeout=60_000)
    (tmp_path / "text.png").write_text("no image")
    page.set_input_files("#files", [str(next(shapes.rglob("*.png"))), str(tmp_path / "text.png")])
    page.wait_for_function("() => document.querySelectorAll('#answers li').length === 2")
    assert violations(page) == []


@pytest.mark.skipif(not WEB.is_dir(), reason=f"needs the npm package onnxruntime-web in {WEB} (.ci/run fetches it)")
def test_the_ten_lines_of_javascript_work(page, exported, model, shapes):
    code = (exported / "README.md").read_text().split("```javascript\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line and not line.startswith("//")]) <= 11
    page.wait_for_function("() => document.getElementById('status').textContent.startsWith('Ready')", timeout=60_000)
    image = next(shapes.glob("sketch/house/*.png"))
    lines = code.replace("console.log(", "said.push(")
    script = f"""async bytes => {{
        const file = new File([new Uint8Array(bytes)], "photo.png", {{ type: "image/png" }}), said = [];
        {lines}
        return said;
    }}"""
    said = page.evaluate(script, list(image.read_bytes()))
    (answer,) = run("predict", model, image, "--json").json
    assert said[0] == answer["class"]
    assert said[1] == pytest.approx(answer["confidence"], abs=1e-4)
