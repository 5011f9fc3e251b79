"""NICO's shift is the correlation of class and context: the few-shot sets must have it."""

from dataclasses import replace

import numpy as np
import pytest

from bayescal.benchmark.bench import Bench
from bayescal.benchmark.bundle import load_bundle, save_bundle
from bayescal.benchmark.splits import EvalSplits, draw_splits
from bayescal.data.datasets import dataset_names, get_dataset, open_dataset
from layouts import make_correlated_nico

pytestmark = pytest.mark.filterwarnings("ignore:.*Is the copy complete:bayescal.errors.BayescalWarning")
SEEDS = range(1, 11)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    return open_dataset("nico", make_correlated_nico(tmp_path_factory.mktemp("nico") / "NICO"))


def draw(opened, seed: int, shots: int = 8, balanced: bool | None = None) -> EvalSplits:
    dataset, manifest = opened
    if balanced is not None:
        dataset = replace(dataset, balanced=balanced)
    hashes = [f"{i:064x}" for i in range(len(manifest))]  # no two images are alike
    (fold,) = dataset.folds(manifest)
    return draw_splits(dataset, manifest, hashes, fold, seed, shots, val_shots=20)


def cramers_v(manifest, rows: np.ndarray) -> float:
    """√(χ² / n) of the 2 × 4 table of class and context; 1: one says the other, 0: independent."""
    table = np.zeros((2, 4))
    np.add.at(table, (manifest.class_ids[rows], manifest.environment_ids[rows]), 1)
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    return float(np.sqrt(((table - expected) ** 2 / np.maximum(expected, 1e-9)).sum() / table.sum()))


def test_the_made_up_lists_have_the_published_correlations(opened):
    dataset, manifest = opened
    (fold,) = dataset.folds(manifest)
    assert cramers_v(manifest, np.flatnonzero(fold.pool)) == pytest.approx(0.93, abs=0.005)
    assert cramers_v(manifest, np.flatnonzero(fold.ood_val)) == pytest.approx(0.0, abs=0.005)
    assert cramers_v(manifest, np.flatnonzero(fold.test)) == pytest.approx(0.80, abs=0.005)


def test_few_shot_sets_keep_the_correlation_of_the_pool(opened):
    _, manifest = opened
    drawn = [draw(opened, seed) for seed in SEEDS]
    pool = 0.93
    for part in ("train", "val"):
        found = [cramers_v(manifest, s.train if part == "train" else s.eval_sets["val"]) for s in drawn]
        assert np.mean(found) == pytest.approx(pool, abs=0.08), part
        assert min(found) > 0.7, part
    assert any(cramers_v(manifest, s.train) < 1 for s in drawn)  # images against the rule are drawn too, now and then


def test_each_class_has_its_shots_and_contexts_their_share(opened):
    _, manifest = opened
    for seed in SEEDS:
        splits = draw(opened, seed)
        assert set(np.bincount(manifest.class_ids[splits.train])) == {8}
        assert set(np.bincount(manifest.environment_ids[splits.train])) <= {3, 4, 5}
        assert not any("too few" in note for note in splits.notes)


def test_test_and_ood_validation_sets_have_their_own_correlation(opened):
    """What chooses by the test distribution must look like it: there the correlation is reversed."""
    dataset, manifest = opened
    (fold,) = dataset.folds(manifest)
    splits = draw(opened, seed=1)
    vehicle = manifest.class_ids == manifest.classes.index("vehicle")
    snow = manifest.environment_ids == manifest.environments.index("snow")
    on_snow = lambda rows: vehicle[rows][snow[rows]].mean()  # noqa: E731
    assert on_snow(np.flatnonzero(fold.pool)) > 0.9
    assert on_snow(splits.eval_sets["test_val"]) < 0.3
    assert cramers_v(manifest, splits.eval_sets["ood_val"]) < 0.2


def test_the_balanced_reading_is_an_option_and_loses_the_shift(opened):
    _, manifest = opened
    splits = draw(opened, seed=1, shots=8, balanced=True)
    assert cramers_v(manifest, splits.train) < 1e-6
    table = np.histogram2d(manifest.class_ids[splits.train], manifest.environment_ids[splits.train], bins=(2, 4))[0]
    assert set(table.ravel()) == {2.0}


def test_nico_sub_is_drawn_like_nico():
    assert get_dataset("nico").balanced is get_dataset("nico-sub").balanced is False
    assert all(get_dataset(name).balanced for name in dataset_names() if not name.startswith("nico"))


def test_the_balanced_reading_is_an_option_of_a_bench(bundle, tmp_path):
    """As the command's --balanced: of a data set that keeps its own way, here one that was packed so."""
    prepared = load_bundle(bundle)
    own = tmp_path / "own.bundle"
    save_bundle(replace(prepared, dataset=replace(prepared.dataset, balanced=False)), own)
    assert not Bench.open([str(own)], output=tmp_path).sources.prepared("pictures").dataset.balanced
    bench = Bench.open([str(own)], output=tmp_path, balanced=True)
    assert bench.sources.prepared("pictures").dataset.balanced
    assert "--balanced" in bench.command("main").split()
