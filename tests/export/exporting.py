"""A model on mini that was exported once, and small classifiers on a tiny image tower."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tiny
from bayescal.data.preprocess import Preprocess
from bayescal.data.transforms import normalised
from bayescal.estimator.predictor import Predictor, StackedPredictor
from bayescal.evaluation.familiarity import Familiarity
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import default_config
from bayescal.training.stack import train_runs
from chromium import PACKAGES
from command_line import run
from small_runs import SMALL

WEB = PACKAGES / "onnxruntime-web"


@pytest.fixture(scope="session")
def exported(model, tmp_path_factory) -> Path:
    """The model of the command line's tests, as ONNX; with the program of the page, where the npm package is."""
    path = tmp_path_factory.mktemp("exported") / "exported"
    result = run("export", model, "-o", path, *(["--web", WEB] if WEB.is_dir() else []))
    assert result.code == 0, result.err
    return path


CPU = torch.device("cpu")
HOW = Preprocess(4, (0.5, 0.4, 0.3), (0.2, 0.3, 0.25), "bicubic", "shortest")


class TinyVisual(nn.Module):
    """Pixels (N, 3, 4, 4) → (N, 12), with two layers."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first, self.second = (
            nn.Parameter(torch.randn(*shape, generator=generator) * shape[0] ** -0.5) for shape in ((48, 30), (30, 12))
        )

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels.flatten(1) @ self.first).relu() @ self.second


@dataclass
class TinyBackbone:
    """As much of a backbone as an exported model is made from."""

    tower: Any
    visual: nn.Module
    name: str = "tiny"
    label: str = "tiny"
    fingerprint: str = "0"
    dim: int = 12
    logit_scale: float = 10.0
    device: torch.device = CPU
    preprocess: Preprocess = HOW

    def tokenize(self, text: str) -> list[int]:
        return tiny.tokenize(text)

    def encode_images(self, pixels: Tensor) -> Tensor:
        with torch.no_grad():
            return self.visual(pixels)


def backbone() -> TinyBackbone:
    return TinyBackbone(tiny.tiny_tower(), TinyVisual().requires_grad_(False))


def predictor(name: str, seeds: tuple[int, ...] = (1, 2), **options: Any) -> Predictor:
    """A method trained for a moment, as an ensemble of two."""
    method, problem = get_method(name), tiny.tiny_problem()
    given = {key: value for key, value in {**SMALL, **options}.items() if key in method.space}
    config = default_config(method.space, tiny.Defaults, **given)
    trained = train_runs(name, problem, [tiny.tiny_run(config, seed) for seed in seeds])
    params = [result.params for result in trained]
    return Predictor(
        backbone=backbone(),  # type: ignore[arg-type]
        method=method,
        config=config,
        seeds=list(seeds),
        params={key: torch.cat([own[key] for own in params]) for key in params[0]},
        trained_environments=tiny.ENVIRONMENTS[:2],
        **names(),
    )


def names() -> dict[str, Any]:
    problem = tiny.tiny_problem()
    means = torch.stack([problem.features[3 * e : 3 * e + 3].mean(0) for e in (0, 1)])
    return {
        "classes": list(tiny.CLASSES),
        "class_words": tiny.CLASSES,
        "environments": list(tiny.ENVIRONMENTS[:2]),
        "prototypes": nn.functional.normalize(means),
        "samples": 3,
    }


def stacked() -> StackedPredictor:
    """Two methods in one model, with everything that a model can have."""
    problem = tiny.tiny_problem()
    members = {name: predictor(name) for name in ("bayes-cal", "logistic-regression")}
    texts = torch.randn(3, 12, generator=torch.Generator().manual_seed(1))
    return StackedPredictor(
        backbone=backbone(),  # type: ignore[arg-type]
        members=members,
        weights=torch.tensor([0.3, 0.7], dtype=torch.float64),
        temperature=0.7,
        threshold=0.6,
        familiarity=Familiarity.of(
            problem.features,
            problem.environments,
            texts,
            problem.features[:4].flip(1),
            problem.features[4:9].roll(3, 1),
        ),
        **names(),
    )


def drawn(n: int, height: int = 4, width: int = 4, seed: int = 0) -> np.ndarray:
    """Random pictures (n, height, width, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def features_of(tower: TinyBackbone, pixels: np.ndarray) -> Tensor:
    return tower.encode_images(torch.from_numpy(normalised(pixels, tower.preprocess)).permute(0, 3, 1, 2))
