"""What nobody should be able to do to a server: every refusal is a problem document, and the server lives on."""

import io
import json
import random
import struct
import tempfile
import zlib

import pytest
from PIL import Image

from bayescal.errors import BayescalError
from bayescal.serving.run import with_log
from bayescal.serving.settings import Settings
from servers import Client, client, picture, refused

TOKEN = "a-token-that-nobody-guesses"
RED = picture()


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes that says it has this many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def multipart(parts: list[tuple[str, bytes]], boundary: str = "b", end: str = "--\r\n") -> bytes:
    body = b"".join(f"--{boundary}\r\n{head}\r\n\r\n".encode() + data + b"\r\n" for head, data in parts)
    return body + f"--{boundary}{end}".encode()


def send(server: Client, body: bytes, kind: str = "multipart/form-data; boundary=b", **headers: str):
    return server.post(content=body, headers={"content-type": kind, **headers})


def test_a_decompression_bomb_is_refused_by_its_header(server):
    refused(server.post(files={"images": ("bomb.png", bomb(60_000, 60_000))}), 422, "too large", "60,000 × 60,000")


def test_pixels_have_the_limit_of_the_settings():
    small = client(max_pixels=20)
    refused(small.post(files={"images": ("a.png", picture(size=(7, 3)))}), 422, "too large")
    assert small.post(files={"images": ("a.png", picture(size=(4, 5)))}).status_code == 200


def test_a_jpeg_with_endless_scans_is_refused(server):
    whole = picture(form="JPEG")
    start = whole.index(b"\xff\xda")
    scans = whole[:start] + whole[start:-2] * 200 + whole[-2:]
    refused(server.post(files={"images": ("slow.jpg", scans)}), 422, "scans")


def test_ten_thousand_tiny_parts_are_refused(server):
    head = 'Content-Disposition: form-data; name="images"; filename="a.png"'
    refused(send(server, multipart([(head, b"x")] * 10_000)), 413, "too many parts", "256")


def test_a_body_beyond_the_limit_is_refused_announced_or_not():
    small = client(max_upload=1000)
    refused(small.post(files={"images": ("a.png", bytes(2000))}), 413, "1,000 bytes")

    async def drip():
        for _ in range(20):
            yield bytes(100)

    refused(small.post(content=drip(), headers={"content-type": "application/json"}), 413, "1,000 bytes")
    assert small.post(files={"images": ("a.png", RED)}).status_code == 200


def test_all_bodies_together_have_a_limit():
    """The one that is too much is told to come back; memory of the others is given back when they are answered."""
    server = client(max_buffered=3000)
    requests = [("POST", "/v1/predict", {"files": {"images": ("a.png", RED + bytes(1500))}}) for _ in range(2)]
    assert {r.status_code for r in server.ask_all(requests)} <= {200, 503}
    refused(server.post(files={"images": ("a.png", RED + bytes(4000))}), 503, "uploaded at once")
    for _ in range(4):
        assert server.post(files={"images": ("a.png", RED + bytes(1500))}).status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"--b", 400),
        (b"no boundary here", 400),
        (multipart([('Content-Disposition: form-data; name="images"; filename="a"', RED)], end=""), 400),
        (multipart([('Content-Disposition: form-data; name="text"', b"words")]), 422),
        (multipart([("X: y", b"words")]), 422),
        (multipart([("X" * 9000 + ": y", b"words")]), 400),
        (multipart([("\r\n".join(f"X{i}: y" for i in range(50)), b"words")]), 400),
    ],
)
def test_damaged_multipart(server, body, status):
    refused(send(server, body), status)


def test_a_damaged_body_is_no_line_of_the_servers_log(server, caplog):
    with_log()
    refused(send(server, b"no boundary here"), 400)
    assert caplog.records == []


def test_a_boundary_that_is_missing_or_endless(server):
    refused(send(server, b"--b--\r\n", kind="multipart/form-data"), 400)
    refused(send(server, b"--b--\r\n", kind="multipart/form-data; boundary=" + "b" * 5000), 400)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[" * 100_000,
        b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
        b'{"images": 5}',
        b'{"images": [], "features": null}',
        b'{"images": ["%%%"]}',
        b'{"images": [{"data": 5}]}',
        b'{"images": [{"data": "aaaa", "path": "/etc/passwd"}]}',
        b'{"features": [[NaN, 1, 2]]}',
        b'{"features": [[1e999, 1, 2]]}',
        b'{"features": [[' + b"9" * 10_000 + b", 1, 2]]}",
        b'{"images": ["aaaa"], "features": [[1, 2, 3]]}',
        b"\xff\xfe\x00",
        b'{"images": ["\\ud800"]}',
    ],
)
def test_damaged_json(server, body):
    assert send(server, body, kind="application/json").status_code in (413, 422)
    refused(send(server, body, kind="application/json"), send(server, body, kind="application/json").status_code)


def test_json_of_many_nothings_is_refused_before_it_is_read(server):
    body = b'{"features": [' + b"[]," * 500_000 + b"[]]}"
    refused(send(server, body, kind="application/json"), 413, "too many values")


def test_types_that_are_not_understood(server):
    refused(send(server, RED, kind="image/png"), 415, "multipart/form-data")
    refused(send(server, b"x", kind="application/x-python-pickle"), 415)
    refused(server.post(content=b"x"), 415)
    packed = send(server, zlib.compress(b"{}"), kind="application/json", **{"content-encoding": "gzip"})
    refused(packed, 415, "compressed")


def test_an_answer_with_too_many_probabilities_is_refused():
    refused(client(max_probabilities=5).post(json={"features": [[1, 2, 3]] * 2}), 413, "6 probabilities")


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\x1b[31m\r\nSet-Cookie: x=1.png", "ü" * 300])
def test_names_are_text_and_do_nothing(server, name, tmp_path, monkeypatch):
    """No file of that name is opened or written, no header made, no escape code repeated."""
    monkeypatch.chdir(tmp_path)
    text = json.dumps({"images": [{"name": name[:255], "data": "AAAA"}]}).encode()
    problem = refused(send(server, text, kind="application/json"), 422)
    entry = problem["answers"][0]
    assert entry["image"].isprintable()
    assert len(entry["image"]) <= 255
    response = server.post(files={"images": (name, RED)})
    assert response.json()["answers"][0]["class"] == "red"
    assert "set-cookie" not in response.headers
    assert list(tmp_path.iterdir()) == []


def test_nothing_of_a_request_touches_the_disk(server, monkeypatch):
    """Starlette's own parser would write files above a megabyte to a temporary folder."""

    def refuse(*_, **__):
        raise AssertionError("a temporary file was made")

    for maker in ("TemporaryFile", "NamedTemporaryFile", "SpooledTemporaryFile", "mkstemp", "mkdtemp"):
        monkeypatch.setattr(tempfile, maker, refuse)
    noise = random.Random(0).randbytes(3 * 900 * 900)
    stream = io.BytesIO()
    Image.frombytes("RGB", (900, 900), noise).save(stream, "PNG")
    assert len(stream.getvalue()) > 2e6
    assert server.post(files={"images": ("noise.png", stream.getvalue())}).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/static/../settings.py", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/page/../app.py"],
)
def test_no_path_leads_out_of_the_server(server, path):
    response = server.get(path)
    assert response.status_code in (400, 404, 405)
    assert "root:" not in response.text


# ---- who may ask ------------------------------------------------------------------------------------------------


WRONG = (None, "Bearer wrong", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe9")


@pytest.mark.parametrize("given", WRONG)
def test_without_the_token_nothing_is_answered(given):
    headers = {} if given is None else {b"authorization": given.encode("latin-1")}
    server = client(token=TOKEN)
    for method, path in (("GET", "/"), ("GET", "/v1/model"), ("GET", "/metrics"), ("POST", "/v1/predict")):
        response = server.ask(method, path, headers=headers)
        refused(response, 401, "token")
        assert response.headers["www-authenticate"].startswith("Bearer")
    assert server.get("/healthz").status_code == 200


def test_with_the_token_programs_and_browsers_are_answered():
    server = client(token=TOKEN)
    assert server.get("/v1/model", headers={"authorization": f"bearer {TOKEN}"}).status_code == 200
    refused(server.get("/?token=wrong"), 401)
    welcome = server.get(f"/?token={TOKEN}")
    assert (welcome.status_code, welcome.headers["location"]) == (303, "/")
    cookie = welcome.headers["set-cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    cookie = {"cookie": cookie.partition(";")[0]}
    assert server.get("/v1/model", headers=cookie).status_code == 200
    features = {"json": {"features": [[1, 2, 3]]}}
    ours = {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    assert server.post(headers=cookie | ours, **features).status_code == 200
    refused(server.post(headers=cookie, **features), 403, "Origin")


def test_a_link_of_another_site_opens_the_page_and_nothing_else():
    server = client(token=TOKEN)
    cookie = server.get(f"/?token={TOKEN}").headers["set-cookie"].partition(";")[0]
    followed = {"cookie": cookie, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert server.get("/", headers=followed).status_code == 200
    for method, path in (
        ("GET", "/v1/model"),
        ("GET", "/page/state"),
        ("POST", "/page/teach"),
        ("POST", "/v1/predict"),
    ):
        refused(server.ask(method, path, headers=followed), 403, "another site")


@pytest.mark.parametrize("typed", ["a+token+with+plus+signs", "a%2Btoken%2Bwith%2Bplus%2Bsigns"])
def test_a_token_with_plus_signs_logs_a_browser_in(typed):
    server = client(token="a+token+with+plus+signs")
    for query in (f"token={typed}", f"x=1&token={typed}"):
        assert server.get(f"/?{query}").status_code == 303
    refused(server.get("/?token=a token with plus signs"), 401)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:8000"},
    ],
)
def test_pages_of_other_sites_are_refused(server, headers):
    refused(server.post(json={"features": [[1, 2, 3]]}, headers=headers), 403, "another site")
    refused(server.get("/v1/model", headers=headers), 403)
    refused(server.post("/page/labels", json={}, headers=headers), 403)
    preflight = server.ask("OPTIONS", "/v1/predict", headers=headers | {"access-control-request-method": "POST"})
    assert not any(name.startswith("access-control") for name in preflight.headers)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8000", "", "localhost@evil.example", "[::2]"])
def test_a_name_that_is_made_to_point_here_is_refused(server, host):
    refused(server.get("/v1/model", headers={"host": host}), 421, "not its own")
    refused(server.get("/healthz", headers={"host": host}), 421)


def test_own_names_are_answered():
    for host in ("localhost:8000", "127.0.0.1", "[::1]:9", "LOCALHOST"):
        assert client().get("/healthz", headers={"host": host}).status_code == 200
    proxied = client(hosts=("models.example",))
    assert proxied.get("/healthz", headers={"host": "models.example"}).status_code == 200


def test_what_browsers_must_heed_is_in_every_answer(server):
    for path in ("/", "/v1/model", "/nowhere"):
        headers = server.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "128.0.0.1"])
def test_other_machines_need_a_token(host):
    with pytest.raises(BayescalError, match="expected a token"):
        Settings(host=host)
    assert Settings(host=host, token=TOKEN).token == TOKEN


@pytest.mark.parametrize("token", ["short", "with spaces in the middle", "zeilen\numbruch-mitten-drin", "ü" * 20])
def test_tokens_that_protect_nothing_or_fit_in_no_header(token):
    with pytest.raises(BayescalError, match="token"):
        Settings(token=token)


def test_loopback_needs_none():
    for host in ("127.0.0.1", "localhost", "::1", "127.1.2.3"):
        assert Settings(host=host).on_loopback
