"""What the tests of FewShotClassifier share: pictures, short trainings and fitted classifiers."""

import numpy as np
import pytest

from bayescal import FewShotClassifier
from pictures import Pictures, make_pictures

QUICK = {"epochs": 3}
HALF_LEARNED = {"epochs": 2, "learning_rate": 0.001}  # still makes mistakes
WIDE = {"epochs": 2, "prior_scale": 0.5, "initial_scale": 1.0}  # a posterior whose samples disagree


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def data() -> Pictures:
    return make_pictures(8)


@pytest.fixture(scope="session")
def fresh() -> Pictures:
    """Pictures that no classifier has learned from."""
    return make_pictures(5, first=100)


@pytest.fixture(scope="session")
def make(cache):
    """A classifier with the tests' own cache and a short training."""

    def make(method: str = "coop", **changes) -> FewShotClassifier:
        changes.setdefault("options", {} if method == "clip" else QUICK)
        return FewShotClassifier(method, cache=cache, **changes)

    return make


@pytest.fixture(scope="session")
def fit(make, data):
    """`make`, fitted on the pictures with every second one to validate on."""

    def fit(method: str = "coop", **changes) -> FewShotClassifier:
        return make(method, **changes).fit(data.images, data.classes, data.environments, data.every(2))

    return fit


@pytest.fixture(scope="session")
def fitted(fit) -> FewShotClassifier:
    return fit("bayes-cal")


def entropy(probabilities: np.ndarray) -> np.ndarray:
    p = probabilities.astype(np.float64)
    return -(p * np.log(p)).sum(1)
