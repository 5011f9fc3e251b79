"""What the tests of the page share: a tiny model with pictures to add, and a server that can be killed."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from bayescal import FewShotClassifier, read_manifest
from bayescal.serving.labels import LabelStore
from old_files import makers

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Made:
    """Where things are: a tiny backbone, the images it learned from, the model, images that are new to it."""

    backbone: Path
    data: Path
    model: Path
    new: list[Path]
    classifier: FewShotClassifier


def make(folder: Path, images: int) -> Made:
    tiny = makers()
    data = tiny.write_images(folder / "data")
    classifier = FewShotClassifier("logistic-regression", tiny.backbone_name(folder / "backbone"), views=0)
    classifier.fit(read_manifest(data)).save(folder / "model")
    new = folder / "new"
    new.mkdir()
    cells = [(kind, style) for kind in tiny.CLASSES for style in tiny.ENVIRONMENTS]
    for number in range(images):
        kind, style = cells[number % len(cells)]
        (new / f"{number:03}_{kind}.png").write_bytes(tiny.png(tiny.picture(kind, style, 1000 + number)))
    return Made(folder / "backbone", data, folder / "model", sorted(new.iterdir()), classifier)


class Servers:
    """Starts servers, which import nothing any more."""

    def __init__(self, made: Made):
        paths = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "page_server.py"), str(made.backbone)],
            env={**os.environ, "PYTHONPATH": paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def start(self, port: int, cwd: Path, model: Path | None) -> int:
        """The number of its process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        told = {"port": port, "cwd": str(cwd), "model": None if model is None else str(model)}
        print(json.dumps(told), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


@dataclass
class Running:
    """A server in a process of its own, at one address even when it is started again."""

    servers: Servers
    model: Path | None
    folder: Path
    port: int = 0
    process: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> "Running":
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", self.port))
            self.port = free.getsockname()[1]
        self.process = self.servers.start(self.port, self.folder, self.model)
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"{self.address}healthz"):
                    return self
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        """As nothing can be caught."""
        with contextlib.suppress(ProcessLookupError):
            for _ in range(600):
                os.kill(self.process, signal.SIGKILL)
                time.sleep(0.05)

    def labels(self) -> dict[str, str | None]:
        """What is on the disk: label by name of the image."""
        assert self.model is not None
        store = LabelStore(self.model.with_name(f"{self.model.name}-labels"))
        return {i.name: i.label.class_name if i.label else None for i in store.images() if not i.removed}
