"""The pictures of docs/page.md: PYTHONPATH=src:tests python tests/serving/page_pictures.py docs/pictures

Symbols in three styles to learn from (`data/synthetic/new_place.py`), `fit` as it is by default, and images of a fourth
style, of which some are labelled and taught. Takes some minutes.
"""

import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect

from bayescal import FewShotClassifier
from bayescal.data.synthetic.new_place import LEARNED, make_new_place
from chromium import launched

WIDE, TALL, PHONE = ({"width": w, "height": h} for w, h in ((1180, 760), (1180, 1080), (390, 780)))
COLOURS, LARGEST = (160, 96, 64, 40), 150_000  # of a picture; bytes
LABELS = 20


@contextmanager
def serving(folder: Path, *arguments: str):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "bayescal", "serve", *arguments, "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz"):
                    break
            except OSError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait()


def keep(page: Page, path: Path) -> None:
    """A screenshot in as many colours as fit into the repository."""
    page.mouse.move(2, page.viewport_size["height"] - 2)
    page.wait_for_timeout(900)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    for colours in COLOURS:
        stream = io.BytesIO()
        picture.quantize(colours, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True)
        if stream.tell() < LARGEST:
            break
    path.write_bytes(stream.getvalue())
    print(path, stream.tell(), colours)


def prepared(folder: Path) -> list[Path]:
    """A model, and images of a style that it has not seen, named by what they show."""
    manifest = make_new_place(folder / "symbols", pool=8, test=16)
    shutil.rmtree(folder / "new", ignore_errors=True)
    (folder / "new").mkdir()
    for row in manifest.rows():
        if row.split == "test":
            shutil.copy(row.path, folder / "new" / f"{row.class_name}-{Path(row.path).name}")
    for style in LEARNED:
        for path in sorted((folder / "symbols" / style).rglob("*.png")):
            target = folder / "learn" / style / path.parent.name
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    if not (folder / "symbols-model").exists():
        from bayescal import read_manifest

        FewShotClassifier(verbose=True).fit(read_manifest(folder / "learn")).save(folder / "symbols-model")
    return sorted((folder / "new").iterdir())


def label_some(page: Page, names: list[str]) -> None:
    """The first of the queue, as what they show."""
    page.locator("#view-next").click()
    page.wait_for_timeout(800)
    page.locator('.tile[aria-posinset="1"]').click()
    for _ in range(LABELS):
        shown = page.locator("#panel h2").text_content() or ""
        page.keyboard.press(str(names.index(shown.rpartition("-")[0]) + 1))
        page.wait_for_timeout(80)


def main(folder: Path, out: Path) -> None:
    new = prepared(folder)
    shutil.rmtree(folder / "symbols-model-labels", ignore_errors=True)
    with launched() as browser:
        with serving(folder, "symbols-model") as address:
            page = browser.new_page(viewport=WIDE, color_scheme="light")
            page.goto(address)
            page.locator("#files").set_input_files(new)
            expect(page.locator("#view-all .n")).to_have_text(str(len(new)), timeout=120_000)
            page.locator("#sort").select_option("low")
            page.locator('.tile[aria-posinset="2"]').click()
            keep(page, out / "page.png")
            label_some(page, sorted(path.name for path in (folder / "learn" / LEARNED[0]).iterdir()))
            page.get_by_role("button", name="Teach the model").click()
            expect(page.locator(".outcome")).to_be_visible(timeout=600_000)
            page.locator("#view-all").click()
            page.emulate_media(color_scheme="dark")
            keep(page, out / "page-taught-dark.png")
            page.emulate_media(color_scheme="light")
            page.locator("#tab-quality").click()
            page.set_viewport_size(TALL)
            keep(page, out / "page-quality.png")
            phone = browser.new_page(viewport=PHONE, color_scheme="light")
            phone.goto(address)
            phone.get_by_role("button", name="Close").click()
            keep(phone, out / "page-phone.png")
        with serving(folder) as address:
            page = browser.new_page(viewport=WIDE, color_scheme="light")
            page.goto(address)
            page.locator("#start-path").fill(str(folder / "learn"))
            page.get_by_role("button", name="Look").click()
            expect(page.locator("#start-output")).to_be_visible()
            keep(page, out / "page-start.png")


if __name__ == "__main__":
    os.environ.setdefault("BAYESCAL_CACHE", tempfile.mkdtemp())
    place = Path(tempfile.gettempdir()) / "bayescal-page-pictures"  # a model that is there is used again
    place.mkdir(exist_ok=True)
    main(place, Path(sys.argv[1]))
