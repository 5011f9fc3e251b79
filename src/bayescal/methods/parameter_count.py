"""How many numbers a method learns, counted on a task of PACS's size without loading a backbone."""

import tempfile
from pathlib import Path

import numpy as np
import torch

from bayescal.backbones.defaults import MINI
from bayescal.methods import get_method
from bayescal.methods.contract import Method, Runs, Samples, Task
from bayescal.methods.hyperparameters import default_config
from bayescal.text.tower import TextTower

CLASSES, ENVIRONMENTS, TRAIN_IMAGES = 7, 3, 112
TASK = f"{CLASSES} classes, {ENVIRONMENTS} environments, 16 shots, the embedded backbone"


def learned_numbers(name: str | type[Method]) -> int | None:
    """Parameters of one run with the embedded backbone's sizes and defaults; only shapes matter.

    None for a method that needs files which cannot be made up here.
    """
    method = get_method(name)
    if set(method.file_options) - {"word_vectors"}:
        return None
    tower = TextTower(vocab_size=8, width=256, heads=4, layers=1, dim=512, start_token=6, end_token=7)
    classes = tuple(f"class {i}" for i in range(CLASSES))
    environments = (tuple(f"environment {i}" for i in range(ENVIRONMENTS)),)
    task = Task(tower, lambda text: [i % 5 for i, _ in enumerate(text.split())], 63.0, classes, environments)
    with tempfile.TemporaryDirectory() as folder:
        options = {"word_vectors": _word_vectors(Path(folder))} if method.file_options else {}
        runs = Runs.stack(method.space, [default_config(method.space, MINI, **options)], [1])
        bound = method(task, runs)
        return bound.parameter_count(bound.init(_samples(tower.dim)))


def _samples(dim: int) -> Samples:
    image = torch.arange(TRAIN_IMAGES)[None]
    mask = torch.ones_like(image, dtype=torch.bool)
    return Samples(torch.ones(1, TRAIN_IMAGES, dim), image % CLASSES, image % ENVIRONMENTS, mask)


def _word_vectors(folder: Path) -> str:
    words = ["class", "environment", *map(str, range(10))]
    path = folder / "words.npz"
    np.savez(path, words=words, rows=np.arange(len(words)), table=np.ones((len(words), 300), dtype=np.float16))
    return str(path)
