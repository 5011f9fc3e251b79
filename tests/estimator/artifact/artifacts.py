"""What the tests of saved models share: a trained classifier, its model on disk, and a copy to spoil."""

import shutil
from pathlib import Path

import pytest
import torch

from bayescal import FewShotClassifier
from pictures import make_pictures, save_pictures

SMALL = {"numbers": torch.arange(6.0).view(2, 3)}


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def paths(tmp_path_factory) -> list[Path]:
    return save_pictures(make_pictures(4).images, tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="session")
def classifier(cache, paths) -> FewShotClassifier:
    data = make_pictures(4)
    options = {"epochs": 2, "prior_scale": 0.3, "position": "middle", "learning_rate": 1e-4}
    classifier = FewShotClassifier(
        "bayes-cal",
        cache=cache,
        members=2,
        samples=3,
        options=options,
        class_words={"ball": "red ball"},
        seed=3,
    )
    classifier.fit(paths, data.classes, data.environments, data.every(2))
    classifier.predictor_.temperature = 1.3  # as if calibrated
    return classifier


@pytest.fixture(scope="session")
def saved(classifier, tmp_path_factory) -> Path:
    """A model that tests read and never change."""
    path = tmp_path_factory.mktemp("models") / "model"
    classifier.save(path)
    return path


@pytest.fixture
def model(saved, tmp_path) -> Path:
    """A copy that a test may spoil."""
    shutil.copytree(saved, tmp_path / "model")
    return tmp_path / "model"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
