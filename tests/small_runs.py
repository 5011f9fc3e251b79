"""Two short runs of any method on the tiny problem, for tests of how steps are taken."""

import pytest

import tiny
from bayescal.methods import get_method, method_names
from bayescal.methods.hyperparameters import default_config
from bayescal.training.runs import Run

LEARNING = [name for name in method_names() if get_method(name).trained_by_gradient]
# Small, and with a change of every kind after the third step, which is captured: penalties and resets of
# the optimiser (the fifth of twelve steps: in the middle of an epoch), rates, dropout; several samples.
SMALL = {
    "epochs": 4, "batch_size": 8, "anneal_share": 0.42, "dropout": 0.3, "train_samples": 2, "mlp_width": 8,
    "weight_steps": 3, "alpha_steps": 3, "beta_steps": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def _words(tmp_path_factory) -> str:
    return tiny.tiny_word_vectors(tmp_path_factory.mktemp("words"))


@pytest.fixture
def make_runs(_words):
    """Two runs of a method, with other images, environments and numbers."""

    def make(name: str, n: int = 18, **options) -> list[Run]:
        space = get_method(name).space
        options = {**SMALL, "word_vectors": _words, **options}
        config = default_config(space, tiny.Defaults, **{k: v for k, v in options.items() if k in space})
        other = {k: 0.7 * v for k, v in config.items() if space[k].is_number and "anneal" not in k}
        return [tiny.tiny_run(config, 1, (0, 1), n), tiny.tiny_run({**config, **other}, 2, (1, 2), n)]

    return make
