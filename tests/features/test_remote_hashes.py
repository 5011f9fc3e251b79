"""What lies behind a URL is fetched once to be hashed, and again only when it has changed."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from test_features_bank import backbone

from bayescal.data.images import read_image
from bayescal.data.sources import ImageError
from bayescal.features import FeatureBank
from bayescal.features.content_index import ContentIndex
from bayescal.features.extract import digest_all
from bayescal.features.fetched import Fetched
from layouts import tiny_png

__all__ = ["backbone"]  # a fixture

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
    monkeypatch.setenv("BAYESCAL_CACHE", str(tmp_path / "the user's own"))
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
    cache = tmp_path / "cache"
    first, problems = digest_all([*urls, f"{address}/none.png"], 1, cache)
    assert list(problems) == [3]
    assert "there is no such file" in problems[3]
    assert sorted(path for path in Counting.got if "none" not in path) == ["/0.png", "/1.png", "/2.png"]
    local = digest_all([str(tmp_path / "www" / f"{number}.png") for number in range(3)], 1)[0]
    assert np.array_equal(first[:3], local)

    Counting.got.clear()
    file = cache / "remote-hashes.jsonl"
    file.write_text(file.read_text() + '{"key": "cut sho')  # a kill
    (tmp_path / "www" / "1.png").write_bytes(tiny_png(9))
    again, _ = digest_all(urls, 1, cache)
    assert Counting.got == ["/1.png"]
    assert np.array_equal(again[[0, 2]], first[[0, 2]])
    assert not np.array_equal(again[1], first[1])


def test_a_flipped_bit_in_a_remembered_hash_is_found(address, tmp_path):
    urls, cache = [f"{address}/0.png"], tmp_path / "cache"
    first, _ = digest_all(urls, 1, cache)
    (file := cache / "remote-hashes.jsonl").write_text(file.read_text().replace(first[0].tobytes().hex(), "0" * 64))
    Counting.got.clear()
    assert np.array_equal(digest_all(urls, 1, cache)[0], first)
    assert Counting.got == ["/0.png"]


def test_a_cache_that_cannot_be_written_to_does_no_harm(address, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert digest_all([f"{address}/0.png"], 1, tmp_path / "cache")[1] == {}


@pytest.mark.parametrize("cache", [True, False])
def test_an_image_is_fetched_once_to_be_hashed_and_encoded(address, backbone, tmp_path, cache):
    urls = [f"{address}/{number}.png" for number in (0, 1, 2, 1)]  # one of them twice
    bank = FeatureBank(backbone, tmp_path / "asked for" if cache else None)
    found = bank.encode(urls)
    assert sorted(set(Counting.got)) == ["/0.png", "/1.png", "/2.png"]
    assert len(Counting.got) <= len(urls)
    local = FeatureBank(backbone, None).encode([tmp_path / "www" / f"{number}.png" for number in (0, 1, 2, 1)])
    assert torch.equal(found.features, local.features)
    assert not (tmp_path / "the user's own").exists()
    assert (tmp_path / "asked for" / "remote-hashes.jsonl").exists() == cache
    Counting.got.clear()
    again = FeatureBank(backbone, bank.folder).encode(urls[:3])
    assert Counting.got == ([] if cache else Counting.got)
    assert again.computed == (0 if cache else 3)


def test_what_there_is_no_room_for_is_fetched_again(address, backbone, tmp_path, monkeypatch):
    urls = [f"{address}/{number}.png" for number in range(3)]
    size = (tmp_path / "www" / "0.png").stat().st_size
    contents = ContentIndex.of(urls, 1)
    held = [contents.held(i) for i in range(3)]
    assert held == [(tmp_path / "www" / f"{number}.png").read_bytes() for number in range(3)]
    contents.take(np.array([2, 0])).fetched.clear()
    assert contents.held(0) is None, "a part of the images holds nothing of its own"
    few = Fetched(most=2 * size)
    for number, content in enumerate(held):
        few.add(bytes([number]), content)
        few.add(bytes([number]), content)
    assert [few.get(bytes([number])) is None for number in range(3)].count(True) == 1
    monkeypatch.setattr("bayescal.features.content_index.Fetched", lambda: Fetched(most=0))
    Counting.got.clear()
    assert not FeatureBank(backbone, None).encode(urls).failures
    assert sorted(Counting.got) == sorted(["/0.png", "/1.png", "/2.png"] * 2)


def test_what_is_wrong_with_an_image_behind_a_url_is_said_under_its_name(address, backbone, tmp_path):
    (tmp_path / "www" / "bad.png").write_bytes(tiny_png(0)[:40])
    (failure,) = FeatureBank(backbone, None).encode([f"{address}/bad.png", f"{address}/0.png"]).failures
    assert failure.name == f"{address}/bad.png"
    assert "the bytes" not in failure.reason


def test_images_are_read_over_http(address):
    assert read_image(f"{address}/2.png").size == (4, 4)
    with pytest.raises(ImageError, match=r"none\.png: there is no such file"):
        read_image(f"{address}/none.png")
