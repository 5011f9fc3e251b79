"""Calling the command line in this process, and small data sets of real image files for it."""

import contextlib
import io
import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from bayescal.cli import main

CLASSES, ENVIRONMENTS = ("dog", "house"), ("photo", "sketch")


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(*arguments: Any, stdin: str = "") -> Result:
    """`bayescal ARGUMENTS`, with its exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    before, code = sys.stdin, None
    sys.stdin = io.StringIO(stdin)
    try:
        # Warnings as a fresh process has them: pytest's own filters would hide what users see.
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            main([str(argument) for argument in arguments])
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdin = before
    return Result(0 if code is None else code, out.getvalue(), err.getvalue())


def fit(data: Path, output: Path, *more: Any) -> Result:
    """A short training."""
    method = () if "--method" in more else ("--method", "bayes-cal")
    return run("fit", data, "-o", output, "--set", "epochs=2", *method, *more)


def shape(kind: str, style: str, number: int, size: int = 32) -> Image.Image:
    """A coloured disc (dog) or square (house) on noise: no two are equal."""
    noise = np.random.default_rng([len(kind), len(style), number]).integers(0, 80, (size, size, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    draw, box = ImageDraw.Draw(image), (6, 6 + number % 5, 24, 24 + number % 5)
    colour = {"photo": (220, 60, 40), "sketch": (230, 230, 230)}.get(style, (40, 90, 220))
    (draw.ellipse if kind == "dog" else draw.rectangle)(box, fill=colour)
    return image


def make_shapes(
    folder: Path,
    n: int = 6,
    classes: Sequence[str] = CLASSES,
    environments: Sequence[str] = ENVIRONMENTS,
) -> Path:
    """folder/environment/class/0.png …"""
    for environment in environments:
        for name in classes:
            path = folder / environment / name
            path.mkdir(parents=True)
            for number in range(n):
                shape(name, environment, number).save(path / f"{number}.png")
    return folder


def write_csv(path: Path, rows: Sequence[Sequence[Any]], header: str = "path,class,environment,split") -> Path:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def refused(result: Result, *said: str) -> None:
    """Exit code 2, one message with these words in it, no traceback."""
    assert result.code == 2, result.err
    assert "Error: " in result.err
    assert "Traceback" not in result.err
    for words in said:
        assert words in result.err


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@lru_cache(maxsize=1)
def _session(base: Path) -> tuple[Path, Path]:
    data = make_shapes(base / "shapes")
    result = fit(data, base / "model")
    assert result.code == 0, result.err
    return data, base / "model"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """No test reads or writes the user's own feature cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAYESCAL_CACHE", str(tmp_path_factory.getbasetemp() / "command-line-cache"))
        patch.setenv("COLUMNS", "100")
        patch.delenv("BAYESCAL_DEBUG", raising=False)
        yield


@pytest.fixture(scope="session")
def _trained(tmp_path_factory, _own_cache):
    base = tmp_path_factory.getbasetemp() / "command-line"
    base.mkdir(exist_ok=True)
    return _session(base)


@pytest.fixture(scope="session")
def shapes(_trained) -> Path:
    """2 environments × 2 classes × 6 images; not to be changed."""
    return _trained[0]


@pytest.fixture(scope="session")
def model(_trained) -> Path:
    """A model fitted on `shapes`; not to be changed."""
    return _trained[1]


@pytest.fixture
def data(tmp_path) -> Path:
    """A data set that a test may spoil; the only thing in `tmp_path`."""
    return make_shapes(tmp_path / "data", n=4)
