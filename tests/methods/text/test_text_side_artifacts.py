"""LV, W2V, CoCoOp and DPLCLIP through the artifact: what was saved is all that prediction needs."""

import numpy as np
import pytest
import torch

from bayescal.estimator.predictor import Predictor
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import default_config
from bayescal.training.problem import Problem
from bayescal.training.runs import Run
from bayescal.training.stack import train_runs

CLASSES, ENVIRONMENTS = ("dog", "horse", "house"), ("photo", "sketch")


@pytest.mark.parametrize("name", ["cal-lv", "bayes-cal-lv", "cal-w2v", "bayes-cal-w2v", "cocoop", "dplclip"])
def test_a_saved_model_answers_as_before(name, mini, tmp_path):
    words = tmp_path / "words.npz"
    names = np.array([*CLASSES, *ENVIRONMENTS])
    np.savez(words, words=names, rows=np.arange(5), table=np.eye(5, 8, dtype=np.float32))
    space = get_method(name).space
    options = {"epochs": 1, "word_vectors": str(words), "mlp_width": 16}
    config = default_config(space, mini.defaults, **{k: v for k, v in options.items() if k in space})
    features = torch.randn(12, mini.dim, generator=torch.Generator().manual_seed(0))
    index = torch.arange(12)
    problem = Problem(
        mini.text, mini.tokenize, mini.logit_scale, features, index % 3, index % 2, CLASSES, ENVIRONMENTS
    )  # fmt: skip
    # two ensemble members: rows of one stack
    results = train_runs(name, problem, [Run(config, seed, index) for seed in (1, 2)])
    predictor = Predictor(
        backbone=mini,
        method=name,
        config=config,
        seeds=[1, 2],
        params={n: torch.cat([result.params[n] for result in results]) for n in results[0].params},
        classes=list(CLASSES),
        class_words=CLASSES,
        environments=list(ENVIRONMENTS),
        trained_environments=ENVIRONMENTS,
        prototypes=features[:2],
        samples=3,
    )
    before = predictor.details(features)
    predictor.save(tmp_path / "model")
    words.unlink()
    after = Predictor.load(tmp_path / "model").details(features)
    assert np.array_equal(before.probabilities, after.probabilities)
    assert after.probabilities.sum(1) == pytest.approx(np.ones(12), abs=1e-5)
