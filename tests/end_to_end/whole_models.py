"""Small pictures on disk, and trainings of a tiny timm model on them."""

from pathlib import Path

import numpy as np
import torch

from bayescal.backbones.base import Preprocess
from bayescal.data import Manifest
from bayescal.end_to_end import EndToEndPredictor, fit_end_to_end
from bayescal.end_to_end.algorithms import SCRATCH, ImageTask, get_algorithm, space_of
from bayescal.end_to_end.network import TimmNetwork
from bayescal.end_to_end.vision import load_vision
from bayescal.methods.contract import Batch, Runs
from bayescal.methods.hyperparameters import default_config
from pictures import make_pictures, save_pictures

torch.set_num_threads(1)

MODEL, SIZE = "test_resnet", 32  # 370,000 parameters, with batch normalisation
CPU = torch.device("cpu")
HOW = Preprocess(SIZE, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), "bilinear", "squash")


def drawn_manifest(folder: Path, n: int, first: int = 0) -> Manifest:
    """n pictures of each of three classes in each of two environments."""
    drawn = make_pictures(n, first)
    return Manifest.from_columns(save_pictures(drawn.images, folder), drawn.classes, drawn.environments)


def pacs_manifest(pacs: Path, n: int) -> Manifest:
    """n real images of each of two classes in each of three environments."""
    cells = [(e, c) for e in ("photo", "sketch", "cartoon") for c in ("dog", "guitar")]
    rows = [(path, c, e) for e, c in cells for path in sorted((pacs / e / c).iterdir())[:n]]
    return Manifest.from_columns(*zip(*rows, strict=True))


def fit(manifest: Manifest, *, checkpoints=None, on_epoch=None, weights=None, **options) -> EndToEndPredictor:
    settings = {"image_size": SIZE, "epochs": 1, "batch_size": 12, **options}
    method = settings.pop("method", "erm")
    return fit_end_to_end(
        manifest,
        vision=MODEL,
        method=method,
        options=settings,
        checkpoints=checkpoints,
        on_epoch=on_epoch,
        weights=weights,
    )


def bound(name: str, classes=("a", "b"), environments=("x", "y", "z"), seed: int = 3, **options):
    """An algorithm on a tiny timm model with its initial parameters."""
    algorithm, vision = get_algorithm(name), load_vision(MODEL, SIZE, seed=seed)
    config = default_config(space_of(algorithm), SCRATCH, **options)
    runs = Runs.stack(space_of(algorithm), [config], [seed])
    network = TimmNetwork(vision.module, vision.n_features, len(classes))
    return algorithm(ImageTask(classes, (environments,), CPU, vision.n_features), runs, network)


def some_batch(size: int = 12, n_classes: int = 2, n_environments: int = 3, step: int = 0) -> Batch:
    g = torch.Generator().manual_seed(8)
    return Batch(
        features=torch.randn(1, size, 3, SIZE, SIZE, generator=g),
        labels=torch.randint(n_classes, (1, size), generator=g),
        environments=(torch.arange(size) % n_environments)[None],
        n_train=size,
        step=step,
    )


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def everything_learned(predictor: EndToEndPredictor) -> dict[str, torch.Tensor]:
    return {**predictor.backbone.vision.module.state_dict(), **predictor.params, "prototypes": predictor.prototypes}


def accuracy_on(predictor: EndToEndPredictor, manifest: Manifest) -> float:
    features, rows, _ = predictor.backbone.encode(manifest.paths)
    labels = np.array(manifest.classes)[manifest.class_ids[rows.numpy()]]
    return float((predictor.details(features).labels == labels).mean())
