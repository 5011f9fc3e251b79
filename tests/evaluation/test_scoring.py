"""Records: their numbers are those of the trained runs one by one, worked out here by hand; and they can travel."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from bayescal import __version__
from bayescal.benchmark.records import Record
from bayescal.benchmark.runner import POSTERIOR_SAMPLES, portable, run_all
from bayescal.benchmark.store import Store, sqlite_url
from bayescal.evaluation.calibration import KEEP
from bayescal.evaluation.scoring import RiskCoverage, score
from bayescal.training.stack import train_runs, train_stack
from bayescal.util.jsonable import finite
from benches import CLASSES, ENVIRONMENTS, SEEDS, open_folder, planned_runs
from command_line import make_shapes

pytestmark = pytest.mark.xdist_group("bench")
METHOD = "bayes-cal"  # predicts by posterior samples
OVERSHOOTS = {"optimizer": "adam", "learning_rate": 0.3, "batch_size": 4096, "initial_scale": 0.1, "beta": 0.1}


@pytest.fixture(scope="module")
def search(prepared, tmp_path_factory):
    """Two trials, two seeds and three folds, trained as one stack in steps that overshoot, and their records."""
    planned = planned_runs(prepared, METHOD, trials=2, epochs=4, **OVERSHOOTS)
    records = run_all(Store(sqlite_url(tmp_path_factory.mktemp("search"))), planned)
    return planned, records


def one_of(search, best: str) -> int:
    """A run whose best epoch is before the end, or at it: the first, or the last of them."""
    early = [record.chosen["val"] < 4 for record in search[1]]
    assert set(early) == {True, False}
    return {"early": early.index(True), "last early": 11 - early[::-1].index(True), "at the end": early.index(False)}[
        best
    ]


def by_hand(probs: np.ndarray, labels: np.ndarray, threshold: float) -> dict[str, float]:
    """Metrics of one run as their definitions say: probs (N, C)."""
    n = len(labels)
    answer, confidence = probs.argmax(1), probs.max(1)
    right = answer == labels
    ece = 0.0
    for lower in np.arange(15) / 15:
        inside = (confidence >= lower) & (confidence < lower + 1 / 15)
        if inside.any():
            ece += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    sure = confidence >= threshold
    wins = [(a > b) + 0.5 * (a == b) for a in confidence[right] for b in confidence[~right]]
    order = np.argsort(-confidence, kind="stable")
    risks = np.cumsum(~right[order]) / np.arange(1, n + 1)
    return {
        "accuracy": right.mean(),
        "ece": ece,
        "brier": ((probs - np.eye(probs.shape[1])[labels]) ** 2).sum(1).mean(),
        "nll": -np.log(probs[np.arange(n), labels]).mean(),
        "auroc": np.mean(wins) if wins else None,
        "aurc": risks.mean(),
        "coverage": sure.mean(),
        "selective_accuracy": right[sure].mean() if sure.any() else None,
        "selective_accuracy_code": right.sum() / (n - (~sure & ~right).sum()),
    }


def alone(prepared, run, checkpoint: str, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities, labels and environments of a set under a run that was trained by itself."""
    result = train_runs(METHOD, prepared.problem, [run.run()])[0]
    rows = prepared.feature_rows(prepared.splits(run.fold, run.seed).eval_sets[name])
    probs = result.predict(
        prepared.problem, prepared.problem.features[rows], samples=POSTERIOR_SAMPLES, checkpoint=checkpoint
    ).probs[0]
    return (
        probs.numpy().astype(float),
        prepared.problem.labels[rows].numpy(),
        prepared.problem.environments[rows].numpy(),
    )


@pytest.mark.parametrize("best", ["early", "last early", "at the end"])
@pytest.mark.parametrize(("checkpoint", "name"), [("val", "test"), ("last", "test_rest")])
def test_scores_are_those_of_the_run_by_itself(prepared, search, best, checkpoint, name):
    i = one_of(search, best)
    run, record = search[0][i], search[1][i]
    found = record.scores[checkpoint]
    probs, labels, environments = alone(prepared, run, checkpoint, name)
    assert (found.eval_set, found.images) == (name, len(labels))
    seen, truth, _ = alone(prepared, run, checkpoint, "val")
    sure = np.sort(seen.max(1)[seen.argmax(1) == truth])
    threshold = sure[len(sure) - math.ceil(KEEP * len(sure))] if len(sure) else None
    assert found.threshold == pytest.approx(threshold, abs=1e-4)
    for metric, value in by_hand(probs, labels, threshold).items():
        assert getattr(found, metric) == (None if value is None else pytest.approx(value, abs=1e-3)), metric
    right = probs.argmax(1) == labels
    assert found.per_class == pytest.approx({CLASSES[c]: right[labels == c].mean() for c in np.unique(labels)})
    assert found.per_environment == pytest.approx({run.fold.name: right.mean()})
    assert found.worst_environment == pytest.approx(right.mean())
    assert set(environments) == {ENVIRONMENTS.index(run.fold.name)}


def test_curves_are_those_of_the_run_by_itself(prepared, search):
    run, record = search[0][7], search[1][7]
    result = train_runs(METHOD, prepared.problem, [run.run()])[0]
    assert record.chosen == {"val": result.best_epoch}
    for name, curve in result.curves.items():
        assert record.curves[name] == pytest.approx(curve, rel=1e-3, abs=1e-5), name
    assert {"val", "test", "test_val", "test_rest", "ce", "env", "irm", "orth", "kl", "total"} <= set(record.curves)


def test_a_record_says_what_the_run_was(prepared, search):
    for run, record in zip(*search, strict=True):
        assert record.key == run.key
        assert (record.dataset, record.variant, record.method) == ("pictures", METHOD, METHOD)
        assert (record.fold, record.seed, record.trial) == (run.fold.name, run.seed, run.trial.number)
        assert record.config == run.trial.config
        assert record.train_environments == tuple(name for name in ENVIRONMENTS if name != run.fold.name)
        splits = prepared.splits(run.fold, run.seed)
        assert record.split.digest == splits.digest
        sizes = {"train": 9, "val": 6, "test": 21, "test_val": 6, "test_rest": 15}
        assert {"train": record.split.train, **record.split.eval_sets} == sizes
        assert record.stopped is None
        assert record.versions["bayescal"] == __version__
    assert len({record.key for record in search[1]}) == 12


def test_records_are_plain_json_without_paths_of_this_machine(prepared, search, pictures, tmp_path):
    vectors = "/home/somebody/vectors/words.npz"
    for record in search[1]:
        text = json.dumps(record.to_json(), allow_nan=False)
        assert Record.from_json(json.loads(text)) == record
        assert str(pictures.parent) not in text
    planned = planned_runs(prepared, "bayes-cal-w2v", word_vectors=vectors)[0]
    elsewhere = planned_runs(prepared, "bayes-cal-w2v", word_vectors="/mnt/words.npz")[0]
    assert portable("bayes-cal-w2v", planned.trial.config)["word_vectors"] == "words.npz"
    assert planned.key == elsewhere.key
    assert planned.trial.config["word_vectors"] == vectors  # what trains still knows where the file is


def test_word_vectors_are_recorded_by_the_files_name(prepared, tmp_path):
    path = tmp_path / "my vectors.npz"
    words = np.array([*CLASSES, *ENVIRONMENTS])
    table = np.random.default_rng(0).normal(size=(len(words), 8)).astype(np.float32)
    np.savez(path, words=words, rows=np.arange(len(words)), table=table)
    planned = planned_runs(prepared, "bayes-cal-w2v", word_vectors=str(path), epochs=1)[:1]
    record = run_all(Store(sqlite_url(tmp_path / "out")), planned)[0]
    assert record.config["word_vectors"] == record.settings["word_vectors"] == "my vectors.npz"
    assert str(tmp_path) not in json.dumps(record.to_json())


@pytest.mark.parametrize(
    ("change", "same_key"),
    [({"seed": 1}, True), ({"epochs": 4}, False), ({"lambda_orth": 0.2}, False)],
)
def test_a_key_is_a_function_of_what_decides_the_outcome(prepared, change, same_key):
    options = {name: value for name, value in change.items() if name != "seed"}
    first, second = planned_runs(prepared, METHOD)[0], planned_runs(prepared, METHOD, **options)[0]
    assert (first.key == second.key) == same_key


def test_every_fold_seed_and_method_has_a_key_of_its_own(prepared):
    keys = [run.key for method in ("coop", "cal", METHOD) for run in planned_runs(prepared, method, seeds=SEEDS)]
    assert len(set(keys)) == 3 * 3 * 2
    part = prepared.with_classes(("dog", "house"))
    assert {run.key for run in planned_runs(part, "coop")}.isdisjoint(keys)


def test_stacks_of_predictions_are_cut_to_fit_memory(prepared, search, monkeypatch):
    runs = [run for run in search[0] if (run.fold.name, run.seed) == ("photo", 1)]
    stack = train_stack(METHOD, prepared.problem, [run.run() for run in runs])
    features = prepared.problem.features[:10]
    whole = stack.predict(prepared.problem, features, samples=5).probs
    monkeypatch.setattr("bayescal.training.runs.HELD_NUMBERS", 1)
    parts = stack.predict(prepared.problem, features, samples=5).probs
    assert whole.shape == (2, 10, 3)
    assert torch.allclose(whole, parts, atol=1e-5)


def test_classes_and_environments_are_counted_apart():
    probs = torch.tensor([[[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]])
    found = score(probs, torch.tensor([0, 0, 0, 1]), torch.tensor([2, 0, 0, 0]), torch.tensor([0.75]), "ab", "xyz")[0]
    assert found.per_class == {"a": 1.0, "b": 0.0}
    assert found.per_environment == pytest.approx({"x": 2 / 3, "z": 1.0})
    assert found.worst_environment == pytest.approx(2 / 3)
    assert (found.coverage, found.selective_accuracy, found.selective_accuracy_code) == (0.5, 1.0, 1.0)
    assert found.risk_coverage == RiskCoverage([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.0, 0.25])
    assert sum(found.reliability.count) == 4


# --- what has no number ----------------------------------------------------------------------------------------------


def test_what_is_not_defined_is_none_and_not_nan():
    probs = torch.tensor([[[0.9, 0.1], [0.8, 0.2]], [[float("nan")] * 2] * 2])
    labels, environments = torch.tensor([0, 0]), torch.tensor([1, 1])
    good, broken = score(probs, labels, environments, torch.tensor([0.5, float("inf")]), ("a", "b"), ("x", "y"))
    assert good.auroc is None  # there is no error to rank
    assert good.per_class == {"a": 1.0}
    assert good.per_environment == {"y": 1.0}
    assert broken.threshold is None
    assert broken.accuracy == 0.0
    json.dumps([asdict(good), asdict(broken)], allow_nan=False)
    assert [finite(x) for x in (1, float("nan"), float("inf"), torch.tensor(0.5))] == [1.0, None, None, 0.5]


def test_validation_leaves_half_of_a_small_test_set_to_report_on(tmp_path):
    """Few images and more shots than there are: the test-domain rule reports on fewer, the others on all."""
    folder = make_shapes(tmp_path / "shapes", 6)
    prepared = open_folder(folder, seeds=(1,), shots=4, val_shots=6)
    sets = prepared.splits(prepared.folds[0], 1).eval_sets
    assert len(sets["test_rest"]) == len(sets["test"]) // 2 == 6
    for method in ("coop", "cocoop"):
        for record in run_all(
            Store(sqlite_url(tmp_path / "out")), planned_runs(prepared, method, seeds=(1,), epochs=1)
        ):
            assert record.scores["last"].images == 6
            assert record.scores["val"].images == 12
            assert 0 <= record.scores["val"].accuracy <= 1
            json.dumps(record.to_json(), allow_nan=False)
