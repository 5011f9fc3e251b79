"""The server under load: `python -m speed.serving`. Loopback only; every load is bounded in count and in time.

A server in a process of its own is asked by 64 clients in this one, on the same cores, and compared with what its
engine does alone: decoding and forward passes in the same number of threads, without a server. Then: one client,
features, 20,000 requests with the server's memory, a queue that is too short, and SIGTERM in the middle of a load.
"""

import argparse
import io
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from speed.clients import Load, image_request, load, request
from speed.measure import ROOT, Result, print_results, processors_used, write_json

CLIENTS = 64
BATCH = 32
RECORD = ROOT / "speed" / "results" / "serving-cpu.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder of fit or export; default: fitted here")
    parser.add_argument("--images", type=int, default=2000, help="requests with an image, from all clients together")
    parser.add_argument("--requests", type=int, default=20_000, help="requests while memory is watched")
    parser.add_argument("--side", type=int, default=160, help="width and height of the images")
    parser.add_argument("--output", type=Path, default=RECORD)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = given.model or fitted(Path(folder) / "model")
        files = pictures(given.side, 200)
        parts = (
            lambda: measured(model, files, given.images),
            lambda: watched(model, given.requests),
            lambda: strained(model, files),
        )
        command = "python -m speed.serving" + (" --model MODEL" if given.model else "")
        about = {"processors": round(processors_used(), 2), "side": given.side}
        results: list[Result] = []
        for part in parts:  # each is kept as soon as it is there
            results += part()
            write_json(results, given.output, command, **about)
    print_results(results, f"the server under load, {CLIENTS} clients")


def fitted(folder: Path) -> Path:
    """A model of the default kind, from drawn pictures."""
    from bayescal import FewShotClassifier
    from bayescal.data import make_new_place

    manifest = make_new_place(folder.parent / "symbols", pool=12, test=5)
    FewShotClassifier().fit(manifest).save(folder)
    return folder


def pictures(side: int, count: int) -> list[bytes]:
    """JPEG files that are not all alike: smooth noise, so that they have the size of photographs."""
    import numpy as np
    from PIL import Image

    random, files = np.random.default_rng(0), []
    for _ in range(count):
        small = Image.fromarray(random.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8))
        stream = io.BytesIO()
        small.resize((side, side), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
        files.append(stream.getvalue())
    return files


class Engine:
    """What the server's engine does without a server, with as many threads."""

    def __init__(self, model: Path):
        from bayescal.serving.engine import open_engine
        from bayescal.serving.settings import Settings

        self.settings = Settings(max_batch=BATCH)
        self.engine = open_engine(model, threads=self.settings.threads)

    def rate(self, files: list[bytes], count: int, decode: bool) -> float:
        """Images per second: from files if `decode`, else the forward passes alone."""
        import numpy as np

        from bayescal.data.images import read_bytes

        pixels = np.stack([self.engine.pixels(read_bytes(file, "image")) for file in files[:BATCH]])

        def work(start: int) -> None:
            rows = pixels
            if decode:
                group = [files[i % len(files)] for i in range(start, start + BATCH)]
                rows = np.stack([self.engine.pixels(read_bytes(file, "image")) for file in group])
            self.engine.predict_pixels(rows)

        count = max(1, round(count / BATCH)) * BATCH
        with ThreadPoolExecutor(self.settings.passes) as pool:
            started = time.perf_counter()
            list(pool.map(work, range(0, count, BATCH)))
            return count / (time.perf_counter() - started)

    def feature_rate(self, rows: list[list[float]], seconds: float = 2.0) -> float:
        """Rows of features per second, in passes of BATCH."""
        import numpy as np

        features = np.asarray(rows[:BATCH], dtype=np.float32)
        started, done = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            self.engine.predict_features(features)
            done += len(features)
        return done / (time.perf_counter() - started)


@contextmanager
def server(model: Path, *more: str) -> Iterator[tuple[int, subprocess.Popen]]:
    """`bayescal serve` on a free port; it ends with the block."""
    command = [sys.executable, "-m", "bayescal", "serve", str(model), "--port", "0", "--max-batch", str(BATCH), *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                break
        else:
            raise SystemExit("the server did not start:\n" + "".join(said))
        threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop it
        yield int(found[1]), process
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()


def feature_requests(width: int, count: int) -> tuple[list[list[float]], list[bytes]]:
    import numpy as np

    rows = np.random.default_rng(0).normal(size=(count, width)).round(4).tolist()
    return rows, [request(json.dumps({"features": [row]}).encode(), "application/json") for row in rows]


def measured(model: Path, files: list[bytes], images: int) -> list[Result]:
    """Throughput and latency, beside the engine's own; the two take turns."""
    engine = Engine(model)
    requests = [image_request(file) for file in files]
    images = max(1, round(images / 3 / BATCH)) * BATCH  # of each of three turns
    alone, forward, many, spent = [], [], [], Spent()
    with server(model) as (port, process):
        load(port, requests, 8, 200)  # warm
        engine.rate(files, 4 * BATCH, decode=True)
        for _ in range(3):
            process.send_signal(signal.SIGSTOP)
            with spent.by("engine", os.getpid(), images):
                alone.append(engine.rate(files, images, decode=True))
            forward.append(engine.rate(files, images, decode=False))
            process.send_signal(signal.SIGCONT)
            with spent.by("server", process.pid, images), spent.by("clients", os.getpid(), images):
                many.append(load(port, requests, CLIENTS, images))
        single = load(port, requests, 1, max(50, images // 4))
        found = [of_images(alone, forward, many), spent.result(), latency("one client, an image", single)]
        found.append(latency(f"{CLIENTS} clients, an image", middle(many)))
        if engine.engine.width is not None:
            rows, texts = feature_requests(engine.engine.width, 200)
            at_once = load(port, texts, CLIENTS, images)
            own = engine.feature_rate(rows)
            found.append(latency(f"{CLIENTS} clients, a row of features", at_once, engine_per_second=round(own)))
    return found


class Spent:
    """Processor time per image of engine, server and clients: what can be compared while other programs run."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.images: dict[str, int] = {}

    @contextmanager
    def by(self, who: str, process: int, images: int) -> Iterator[None]:
        before = processor_time(process)
        yield
        self.seconds[who] = self.seconds.get(who, 0.0) + processor_time(process) - before
        self.images[who] = self.images.get(who, 0) + images

    def result(self) -> Result:
        each = {who: self.seconds[who] / self.images[who] for who in self.seconds}
        notes = {f"{who}_ms": round(1e3 * seconds, 2) for who, seconds in each.items()}
        what = "processor time of server and clients per image / of the engine alone"
        return Result(what, each["server"] + each["clients"], each["engine"], 0.8, notes=notes)


def processor_time(process: int) -> float:
    """Seconds that all threads of a process have computed, those that have ended too."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def middle(loads: list[Load]) -> Load:
    """The one with the median rate."""
    return sorted(loads, key=lambda one: one.per_second)[len(loads) // 2]


def of_images(alone: list[float], forward: list[float], many: list[Load]) -> Result:
    """Seconds per image, with the target of 80 % of the engine's own throughput."""
    rate = sorted(alone)[len(alone) // 2]
    notes = {
        "engine_images_per_second": round(rate, 1),
        "forward_passes_alone_per_second": round(sorted(forward)[len(forward) // 2], 1),
        "server_images_per_second": round(middle(many).per_second, 1),
        "runs": [[round(a, 1), round(m.per_second, 1)] for a, m in zip(alone, many, strict=True)],
    }
    ours = 1 / middle(many).per_second
    return Result(f"{CLIENTS} clients, per image / the engine alone", ours, 1 / rate, 0.8, notes=notes)


def latency(what: str, found: Load, **notes: Any) -> Result:
    """The 99th percentile, which must stay below ten medians."""
    notes = {"per_second": round(found.per_second, 1), **found.notes(), **notes}
    return Result(f"{what}: p99", found.quantile(0.99), target=10 * found.quantile(0.5), notes=notes)


def watched(model: Path, count: int) -> list[Result]:
    """Resident memory over many requests, half features and half small images where the model takes both."""
    width = Engine(model).engine.width
    files = pictures(32, 100)
    small = [image_request(file) for file in files]
    sizes = [image_request(*files[:n]) for n in range(1, BATCH + 1)]  # buffers of each stay allocated
    mixed = (
        small
        if width is None
        else [r for pair in zip(small, feature_requests(width, 100)[1], strict=True) for r in pair]
    )
    with server(model) as (port, process):
        load(port, sizes, 1, 3 * len(sizes))  # until everything has been allocated once, in every thread
        load(port, mixed, CLIENTS, max(500, count // 10))
        curve = [resident(process.pid)]
        answered = 0
        for _ in range(10):
            answered += load(port, mixed, CLIENTS, count // 10).statuses.get(200, 0)
            curve.append(resident(process.pid))
    notes = {"answered": answered, "megabytes": [round(m / 1e6, 1) for m in curve]}
    grown = (statistics.median(curve[-3:]) - statistics.median(curve[:3])) / 1e6  # it goes up and down by batches
    return [
        Result(
            f"memory grown over {count:,} requests", grown, target=20.0, unit="MB", notes=notes, memory=curve[-1] / 1e9
        )
    ]


def resident(process: int) -> float:
    """Bytes of memory that a process has."""
    line = next(n for n in Path(f"/proc/{process}/status").read_text().splitlines() if n.startswith("VmRSS"))
    return int(line.split()[1]) * 1024.0


def strained(model: Path, files: list[bytes]) -> list[Result]:
    """A queue of 8 for 64 clients, and the end in the middle of a load."""
    requests = [image_request(file) for file in files]
    with server(model, "--max-queue", "8") as (port, _):
        full = load(port, requests, CLIENTS, 1000)
    others = sum(n for status, n in full.statuses.items() if status not in (200, 503)) + full.without_advice
    with server(model) as (port, process):
        load(port, requests, 4, 50)
        slow = threading.Timer(0.2, process.send_signal, [signal.SIGTERM])
        batch = [big_request(files[:8])] * 8
        slow.start()
        ended = load(port, batch, 8, 8)
        code = process.wait(40)
    lost = 8 - ended.statuses.get(200, 0)
    return [
        Result(
            "a full queue: answers but 200 and 503 with advice", others, target=0, unit="answers", notes=full.notes()
        ),
        Result(
            "SIGTERM: begun and not answered", lost, target=0, unit="answers", notes={"exit": code, **ended.notes()}
        ),
    ]


def big_request(files: list[bytes]) -> bytes:
    """Many images in one request, which takes a second or so."""
    head = b'--b\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\n\r\n'
    return request(b"".join(head + file + b"\r\n" for file in files) + b"--b--\r\n", "multipart/form-data; boundary=b")


if __name__ == "__main__":
    main()
