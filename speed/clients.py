"""Clients of a server on loopback: each sends its next request when the last was answered. Bounded in count and time.

Raw HTTP over asyncio, so that the clients take little of the processors that they share with the server.
"""

import asyncio
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 600.0  # seconds of one load, however many requests are left


@dataclass(frozen=True)
class Load:
    """What clients saw."""

    seconds: float
    times: list[float]  # of each answer with status 200
    statuses: dict[int, int]
    without_advice: int  # answers with status 503 and no Retry-After

    @property
    def per_second(self) -> float:
        return len(self.times) / self.seconds

    def quantile(self, share: float) -> float:
        if len(self.times) < 2:
            return float("nan")
        return statistics.quantiles(self.times, n=1000, method="inclusive")[min(998, round(share * 1000) - 1)]

    def notes(self) -> dict[str, object]:
        return {
            "p50_ms": round(self.quantile(0.5) * 1e3, 2), "p90_ms": round(self.quantile(0.9) * 1e3, 2),
            "p99_ms": round(self.quantile(0.99) * 1e3, 2), "max_ms": round(max(self.times, default=0.0) * 1e3, 2),
            "statuses": self.statuses, "seconds": round(self.seconds, 2),
        }  # fmt: skip


def request(body: bytes, media_type: str) -> bytes:
    """A whole POST /v1/predict."""
    lines = (
        "POST /v1/predict HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Type: {media_type}",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join([*lines, "", ""]).encode() + body


def image_request(*files: bytes) -> bytes:
    """Images as a program's HTTP library would send them."""
    head = b'--b\r\nContent-Disposition: form-data; name="images"; filename="image.jpg"\r\n\r\n'
    return request(b"".join(head + file + b"\r\n" for file in files) + b"--b--\r\n", "multipart/form-data; boundary=b")


def load(port: int, requests: Sequence[bytes], clients: int, count: int) -> Load:
    """`count` requests, taken in turn from `requests`, by so many clients at once."""
    return asyncio.run(_load(port, requests, clients, count))


async def _load(port: int, requests: Sequence[bytes], clients: int, count: int) -> Load:
    todo, times, statuses = itertools.islice(itertools.cycle(requests), count), [], Counter()
    silent = 0
    started = time.perf_counter()

    async def client() -> None:
        nonlocal silent
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        for one in todo:  # shared: a request is sent by one client alone
            if time.perf_counter() - started > LONGEST:
                break
            sent = time.perf_counter()
            writer.write(one)
            status, head = await _answer(reader)
            statuses[status] += 1
            if status == 200:
                times.append(time.perf_counter() - sent)
            elif status == 503:
                silent += b"retry-after" not in head
                await asyncio.sleep(0.02)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return Load(time.perf_counter() - started, times, dict(statuses), silent)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
    await (reader.readexactly(int(length)) if length else reader.read())  # without: until the server closes
    return int(head[9:12]), head
