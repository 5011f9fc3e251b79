"""What lies behind a URL is fetched once to be hashed, and again only when it has changed."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from bayescal.data.images import read_image
from bayescal.data.sources import ImageError
from bayescal.features.extract import digest_all
from layouts import tiny_png

pytest.importorskip("aiohttp")


class Counting(SimpleHTTPRequestHandler):
    got: list[str] = []  # noqa: RUF012 (of the class, which the server makes anew for every request)

    def do_GET(self):
        self.got.append(self.path)
        super().do_GET()

    def log_message(self, *_):
        pass

    def end_headers(self):
        path = self.translate_path(self.path)
        try:
            with open(path, "rb") as file:
                self.send_header("ETag", f'"{hash(file.read())}"')
        except OSError:
            pass
        super().end_headers()


@pytest.fixture
def address(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESCAL_CACHE", str(tmp_path / "cache"))
    Counting.got.clear()
    (tmp_path / "www").mkdir()
    for number in range(3):
        (tmp_path / "www" / f"{number}.png").write_bytes(tiny_png(number))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Counting, directory=str(tmp_path / "www")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_object_is_fetched_again_only_when_it_has_changed(address, tmp_path):
    urls = [f"{address}/{number}.png" for number in range(3)]
    first, problems = digest_all([*urls, f"{address}/none.png"], 1)
    assert list(problems) == [3]
    assert "there is no such file" in problems[3]
    assert sorted(path for path in Counting.got if "none" not in path) == ["/0.png", "/1.png", "/2.png"]
    local = digest_all([str(tmp_path / "www" / f"{number}.png") for number in range(3)], 1)[0]
    assert np.array_equal(first[:3], local)

    Counting.got.clear()
    file = tmp_path / "cache" / "remote-hashes.jsonl"
    file.write_text(file.read_text() + '{"key": "cut sho')  # a kill
    (tmp_path / "www" / "1.png").write_bytes(tiny_png(9))
    again, _ = digest_all(urls, 1)
    assert Counting.got == ["/1.png"]
    assert np.array_equal(again[[0, 2]], first[[0, 2]])
    assert not np.array_equal(again[1], first[1])


def test_a_cache_that_cannot_be_written_to_does_no_harm(address, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert digest_all([f"{address}/0.png"], 1)[1] == {}


def test_images_are_read_over_http(address):
    assert read_image(f"{address}/2.png").size == (4, 4)
    with pytest.raises(ImageError, match=r"none\.png: there is no such file"):
        read_image(f"{address}/none.png")
