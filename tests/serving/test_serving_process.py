"""One real server on loopback: what only a process and sockets can show."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from command_line import refused as command_refused
from command_line import run
from servers import picture

TESTS = Path(__file__).parents[1]
SLOWLY = 1.0  # seconds that the engine of this server takes for an image whose red is 77


def main() -> None:
    """The server of these tests: `python test_serving_process.py`."""
    import numpy as np

    from bayescal.serving.app import create_app
    from bayescal.serving.run import listen, serve
    from bayescal.serving.settings import Settings
    from servers import Colours

    def during(rows: np.ndarray) -> None:
        if (rows[:, 0] == 78).any():
            time.sleep(SLOWLY)
        if (rows[:, 0] == 79).any():
            raise RuntimeError("the engine broke")

    settings = Settings(port=0, head_seconds=0.5, body_seconds=0.5, max_connections=20)
    app = create_app(Colours(during), settings)
    serve(app, settings, listen(settings), lambda address: print(address, flush=True))


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """What the server writes to stderr."""
    return tmp_path_factory.mktemp("server") / "stderr.log"


@pytest.fixture(scope="module")
def server(log) -> Iterator[tuple[int, subprocess.Popen]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, __file__], stdout=subprocess.PIPE, stderr=stderr, env=environment, cwd=TESTS
        )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        assert address.startswith("http://127.0.0.1:")
        yield int(address.rstrip("/").rpartition(":")[2]), process
    finally:
        process.kill()
        process.wait()


def talk(port: int, *pieces: bytes, pause: float = 0.0, wait: float = 5.0) -> bytes:
    """What comes back for these bytes, until the server closes; b"" when it closes without a word."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
            answer = b""
            while part := connection.recv(65536):
                answer += part
            return answer
        except (ConnectionResetError, BrokenPipeError):
            return b""


def post(port: int, red: int = 250, **more) -> httpx.Response:
    files = {"images": ("a.png", picture((red, 5, 5)))}
    return httpx.post(f"http://127.0.0.1:{port}/v1/predict", files=files, timeout=20, **more)


def problem(answer: bytes, status: int) -> str:
    """The sentence of a problem document that came over the wire."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode()), answer
    assert b"application/problem+json" in head
    return json.loads(body)["detail"]


def test_what_is_no_http_is_refused_in_words(server):
    port, _ = server
    assert "not HTTP" in problem(talk(port, b"\x16\x03\x01 hello\r\n\r\n"), 400)
    assert "not HTTP" in problem(talk(port, b"GET / HTTP/1.1\r\n\r\n"), 400)  # no Host
    assert "not HTTP" in problem(talk(port, b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400)
    assert "not HTTP" in problem(talk(port, b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 100_000), 400)  # no end
    both = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close"
    smuggled = b"POST / HTTP/1.1\r\nHost: a\r\n" + both + b"\r\n\r\n0\r\n\r\n"
    assert talk(port, smuggled).startswith((b"HTTP/1.1 4", b""))
    assert post(port).status_code == 200


def test_headers_that_come_a_letter_at_a_time_end_the_connection(server):
    port, _ = server
    started = time.monotonic()
    letters = [bytes([letter]) for letter in b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 100]
    assert talk(port, *letters, pause=0.05) == b""
    assert time.monotonic() - started < 5


def test_a_body_that_does_not_come_is_refused(server):
    port, _ = server
    head = (
        b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    )
    assert "within 0.5 seconds" in problem(talk(port, head), 408)


def established(server: int, client: int) -> bool:
    """Whether the server still holds its end of a connection."""
    ports = f":{server:04X}", f":{client:04X}"
    table = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()]
    return any(here.endswith(ports[0]) and there.endswith(ports[1]) and state == "01" for here, there, state in table)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="asks Linux which connections there are")
def test_an_answer_that_nobody_reads_ends_the_connection(server):
    port, _ = server
    body = json.dumps({"features": [[1, 2, 3]] * 4096}).encode()
    head = (
        f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.settimeout(20)
        connection.sendall((head.encode() + b"\r\n\r\n" + body) * 6)  # 8 MB of answers: more than buffers hold
        deadline = time.monotonic() + 30
        while established(port, connection.getsockname()[1]):
            assert time.monotonic() < deadline, "the server still waits for a client that does not read"
            time.sleep(0.05)
    assert post(port).status_code == 200


def test_a_client_that_leaves_in_the_middle_takes_nothing_with_it(server):
    port, _ = server
    head = (
        b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    )
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(head)
    assert post(port).status_code == 200


def test_too_many_connections_are_refused_in_words_and_the_others_live(server):
    port, _ = server
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    try:
        assert "too many connections" in problem(talk(port), 503)
    finally:
        for connection in idle:
            connection.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            assert post(port).status_code == 200
            break
        except (httpx.HTTPError, AssertionError):
            time.sleep(0.1)
    else:
        pytest.fail("the server did not come back")


def test_what_failed_is_in_the_log(server, log):
    """The answer says that it is: what failed, where, and when."""
    port, _ = server
    assert post(port, red=78).status_code == 500
    written = log.read_text()
    assert "ERROR a request failed: POST '/v1/predict'" in written
    assert "RuntimeError: the engine broke" in written


def test_an_address_in_use_is_said_before_a_model_is_read(server, tmp_path):
    command_refused(run("serve", tmp_path, "--port", server[0]), "cannot listen there", "another --port")


def test_zz_sigterm_finishes_what_is_begun(server):
    """Last, since it ends the server: the slow answer comes whole, new connections are refused, the exit is clean."""
    port, process = server
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(post, port, 77)
        time.sleep(0.4)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=2)
        assert slow.result().json()["answers"][0]["class"] == "red"
    assert process.wait(10) in (0, -signal.SIGTERM)


if __name__ == "__main__":
    main()


def test_answers_do_not_wait_for_acknowledgements():
    """Nagle's algorithm keeps the body of an answer back for 40 ms on a connection that is used again."""
    import asyncio

    from bayescal.serving.run import listen
    from bayescal.serving.settings import Settings

    async def accepted() -> int:
        found = asyncio.get_running_loop().create_future()

        class Told(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                own = transport.get_extra_info("socket")
                found.set_result(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                transport.close()

        listening = listen(Settings(port=0))
        server = await asyncio.get_running_loop().create_server(Told, sock=listening)
        async with server:
            _, writer = await asyncio.open_connection("127.0.0.1", listening.getsockname()[1])
            option = await asyncio.wait_for(found, 10)
            writer.close()
        return option

    assert asyncio.run(accepted())
