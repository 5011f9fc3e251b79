"""What the tests of the page share: a tiny model with pictures to add, and a server that can be killed."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
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


@dataclass
class Running:
    """A server in a process of its own, at one address even when it is started again."""

    made: Made
    model: Path | None
    folder: Path = field(default_factory=Path.cwd)
    port: int = 0
    process: subprocess.Popen | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> "Running":
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", self.port))
            self.port = free.getsockname()[1]
        paths = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        model = [] if self.model is None else [str(self.model)]
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "page_server.py"), str(self.made.backbone), str(self.port), *model],
            env={**os.environ, "PYTHONPATH": paths},
            cwd=self.folder,
        )
        for _ in range(600):
            assert self.process.poll() is None, "the server ended"
            try:
                with urllib.request.urlopen(f"{self.address}healthz"):
                    return self
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def labels(self) -> dict[str, str | None]:
        """What is on the disk: label by name of the image."""
        assert self.model is not None
        store = LabelStore(self.model.with_name(f"{self.model.name}-labels"))
        return {i.name: i.label.class_name if i.label else None for i in store.images() if not i.removed}
