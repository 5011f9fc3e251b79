"""Methods and distributions that are not part of the package, for tests of what comes from outside."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bayescal.methods import registry
from bayescal.methods.contract import COMMON, Method
from bayescal.methods.text.coop import CoOp

WORDS = {"title": "Odd", "learns": "something", "cost": "little", "citation": "Nobody, Nothing, 2024"}


def odd_method(base: type[Method] = CoOp, name: str = "odd", **attributes) -> type[Method]:
    """A method with a name and a class that say nothing about it; registered under no name."""
    return type("Odd", (base,), {**WORDS, "name": name, "__module__": __name__, **attributes})


class Mean(Method):
    """Classes are the mean features of their training images: nothing is trained by gradient, no text is read."""

    name = "mean"
    title = "Mean"
    learns = "nothing by gradient: the mean feature of each class"
    cost = "none"
    citation = "Nobody, Nothing, 2024"
    trained_by_gradient = False
    frozen = ("means",)
    space = {}  # noqa: RUF012

    def init(self, train):
        member = torch.nn.functional.one_hot(train.labels, self.task.n_classes).to(train.features)
        means = member.transpose(1, 2) @ train.features / member.sum(1)[..., None].clamp(min=1)
        return {"means": means}

    def loss(self, params, batch):
        raise NotImplementedError

    def prepare(self, params, samples):
        return params["means"]

    def logits(self, prepared, features, groups=None):
        unit = torch.nn.functional.normalize(features, dim=-1)
        return (10 * unit @ torch.nn.functional.normalize(prepared, dim=-1).transpose(1, 2))[:, None]


WITHOUT_EPOCHS = {name: param for name, param in COMMON.items() if name != "epochs"}


@contextmanager
def installed(folder: Path, name: str, modules: dict[str, str], entry_points: str = "") -> Iterator[Path]:
    """A distribution on the path: its modules by file name, and its entry points, as an installer leaves them."""
    info = folder / f"{name.replace('-', '_')}-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(entry_points)
    files = [*modules, f"{info.name}/METADATA", f"{info.name}/RECORD"]
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    (info / "top_level.txt").write_text("".join(f"{Path(file).stem}\n" for file in modules))
    for file, text in modules.items():
        (folder / file).write_text(text)
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield folder
    finally:
        sys.path.remove(str(folder))
        for module in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[module], "__file__", "")):
                del sys.modules[module]
        forget()


def forget() -> None:
    """Know no method from outside any more."""
    registry._outside.registered.clear()
    registry._outside._loaded.clear()
    registry._references.clear()
