"""`bench auto`: what `fit` does by default beside every single method, on the same images."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from bayescal.benchmark.bench import MissingRecordsError
from bayescal.benchmark.experiments import auto
from bayescal.errors import BayescalWarning
from bayescal.estimator import members
from bayescal.estimator.members import MEMBERS
from benches import open_bench


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(members, "STEPS", 5)


@pytest.fixture
def bench(prepared, tmp_path):
    return open_bench({"pictures": prepared}, tmp_path, seeds=(1, 2))


def test_tables_have_every_method_and_every_metric(bench):
    result = bench.run("auto")
    table = result.tables["auto/pictures"].to_records()
    assert [row["label"] for row in table] == list(auto.ROWS.values())
    assert all(0 <= row["accuracy"] <= 1 and row["nll"] >= 0 for row in table)
    weights = result.tables["auto/weights"].to_records()
    assert sum(row["pictures"] for row in weights) == pytest.approx(1.0)
    assert result.section.lead.startswith("Mean accuracy over data sets: auto ")
    assert "auto/expected" in result.tables


def test_other_words_for_the_classes_are_another_measurement(bench, prepared, tmp_path):
    words = replace(prepared.manifest, class_words=("hound", *prepared.manifest.class_words[1:]))
    other = open_bench({"pictures": replace(prepared, manifest=words)}, tmp_path, seeds=(1, 2))
    assert auto._path(other, "pictures", 1) != auto._path(bench, "pictures", 1)


def test_nothing_is_measured_twice_and_tables_measure_nothing(bench, monkeypatch):
    with pytest.raises(
        MissingRecordsError, match="auto has not been measured on pictures yet: run `bayescal bench auto"
    ):
        auto.section(bench)
    bench.run("auto")
    path, kept = sorted((bench.output / "auto").glob("*.json"))  # a file per seed
    before = kept.stat().st_mtime_ns
    path.write_text(path.read_text().replace("accuracy", "acuracy", 1))
    with pytest.warns(BayescalWarning, match="is damaged: it is not as it was written"):
        again = bench.run("auto")
    assert "acuracy" not in path.read_text()
    assert kept.stat().st_mtime_ns == before
    monkeypatch.setattr(auto, "measure", lambda *given: pytest.fail("measured again"))
    assert bench.run("auto").tables == again.tables


def test_all_labelled_images_are_learned_from_and_test_images_are_not(prepared, bench, monkeypatch):
    cases = []
    real = auto.train_mixtures

    def spy(problem, defaults, given, *rest, **more):
        cases.extend(given)
        return real(problem, defaults, given, *rest, **more)

    monkeypatch.setattr(auto, "train_mixtures", spy)
    bench.run("auto")
    assert len(cases) == 2 * len(prepared.folds)
    for case, (fold, seed) in zip(cases, [(f, s) for f in prepared.folds for s in (1, 2)], strict=True):
        splits = prepared.splits(fold, seed)
        labelled = prepared.feature_rows(np.concatenate([splits.train, splits.eval_sets["val"]]))
        assert torch.equal(case.train, labelled)
        assert not set(case.train.tolist()) & set(prepared.feature_rows(splits.eval_sets["test"]).tolist())


def test_the_numbers_of_a_row_are_means_over_folds(bench):
    table = bench.run("auto").tables["auto/pictures"].to_records()
    files = sorted((bench.output / "auto").glob("*.json"))
    cases = [case for path in files for case in json.loads(path.read_text())["cases"]]
    for name in ("auto", MEMBERS[0].name):
        own = {seed: [c["rows"][name]["accuracy"] for c in cases if c["seed"] == seed] for seed in (1, 2)}
        row = next(row for row in table if row["label"] == auto.ROWS[name])
        assert row["accuracy"] == pytest.approx(np.mean([np.mean(values) for values in own.values()]))
        worst = np.mean([min(c["rows"][name]["worst"] for c in cases if c["seed"] == seed) for seed in (1, 2)])
        assert row["worst"] == pytest.approx(worst)
