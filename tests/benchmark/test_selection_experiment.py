"""`bench selection`: inner runs that leave a training environment out, and rules that choose by them."""

from dataclasses import replace

import numpy as np
import pytest

from bayescal.benchmark.bench import MissingRecordsError
from bayescal.benchmark.experiments import selection
from bayescal.benchmark.runner import LEAVE_ONE_OUT, plan
from bayescal.benchmark.searches import Search
from bayescal.benchmark.splits import leave_out
from bayescal.benchmark.variants import get_variant
from bayescal.errors import BayescalError
from bayescal.evaluation.selection import get_rule
from benches import open_bench

BY_ACCURACY, BY_LIKELIHOOD = "leave-one-environment-out", "leave-one-environment-out-likelihood"


@pytest.fixture
def bench(prepared, tmp_path):
    return open_bench({"pictures": prepared}, tmp_path, methods=("cal",), trials=3, seeds=(1,))


def test_inner_folds_leave_out_each_training_environment_and_every_test_image(prepared):
    for fold in prepared.folds:
        outer = prepared.splits(fold, 1)
        inner = fold.without_each_environment()
        assert [own.left_out for own in inner] == list(fold.train_environments)
        of = prepared.manifest.environment_ids
        for own in inner:
            splits = prepared.splits(own, 1)
            assert set(splits.eval_sets) == {"val", "left_out"}
            assert own.left_out not in of[splits.train]
            assert own.left_out not in of[splits.eval_sets["val"]]
            assert set(of[splits.eval_sets["left_out"]]) == {own.left_out}
            labelled = np.concatenate([outer.train, outer.eval_sets["val"]])
            assert set(splits.rows) == set(labelled)  # all labelled images, and no other
            assert splits.digest != outer.digest
    alone = replace(prepared.folds[0], train_environments=prepared.folds[0].train_environments[:1])
    assert alone.without_each_environment() == []


def test_records_of_inner_runs_are_records_like_others(bench, prepared):
    search = Search("pictures", get_variant("cal"))
    with pytest.raises(MissingRecordsError):
        bench.chosen(search, BY_ACCURACY)
    bench.train([search, search.inner()])
    inner = bench.records(search.inner())
    folds = [own.name for fold in prepared.folds for own in fold.without_each_environment()]
    assert sorted({record.fold for record in inner}) == sorted(folds)
    assert len(inner) == 3 * len(folds)
    assert {record.purpose for record in inner} == {LEAVE_ONE_OUT}
    assert {record.scores["val"].eval_set for record in inner} == {"left_out"}
    outer = bench.records(search)
    assert {(r.trial, str(r.config)) for r in inner} == {(r.trial, str(r.config)) for r in outer}
    assert len(plan(prepared, search.variant, bench.study(search).look(3), (1,), LEAVE_ONE_OUT)) == len(inner)


@pytest.mark.parametrize(("name", "metric", "sign"), [(BY_ACCURACY, "accuracy", 1), (BY_LIKELIHOOD, "nll", -1)])
def test_the_trial_that_is_best_on_left_out_environments_is_chosen(bench, name, metric, sign):
    search = Search("pictures", get_variant("cal"))
    bench.train([search, search.inner()])
    inner = bench.records(search.inner())
    for chosen in bench.chosen(search, name):
        means = {}
        for trial in range(3):
            own = [r for r in inner if r.fold.startswith(f"{chosen.fold} without") and r.trial == trial]
            assert len(own) > 1
            means[trial] = sign * np.mean([getattr(r.scores["val"], metric) for r in own])
        assert chosen.trial == max(means, key=means.get)


def test_a_trial_with_an_inner_run_that_stopped_is_not_chosen(bench):
    search = Search("pictures", get_variant("cal"))
    bench.train([search, search.inner()])
    outer, inner = bench.records(search), bench.records(search.inner())
    rule = get_rule(BY_ACCURACY)
    (first, *_) = rule.choose(outer, inner)
    broken = [
        replace(r, stopped="stopped at step 3") if r.trial == first.trial and r.fold.startswith(first.fold) else r
        for r in inner
    ]
    again = next(record for record in rule.choose(outer, broken) if record.fold == first.fold)
    assert again.trial != first.trial


def test_changed_test_scores_change_no_choice(bench):
    """What is chosen depends on inner runs alone."""
    search = Search("pictures", get_variant("cal"))
    bench.train([search, search.inner()])
    outer, inner = bench.records(search), bench.records(search.inner())
    shuffled = [
        replace(r, scores={**r.scores, "val": replace(r.scores["val"], accuracy=1 - r.scores["val"].accuracy)})
        for r in outer
    ]
    for name in (BY_ACCURACY, BY_LIKELIHOOD):
        rule = get_rule(name)
        assert [r.key for r in rule.choose(outer, inner)] == [r.key for r in rule.choose(shuffled, inner)]


def test_the_table_has_every_rule_and_the_oracle(bench):
    (row,) = bench.run("selection").tables["selection/pictures"].to_records()
    rules = {"training-domain", "test-domain", BY_ACCURACY, BY_LIKELIHOOD}
    assert rules <= set(row)
    assert all(row[rule] <= row["oracle"] + 1e-9 for rule in rules)


def test_a_run_that_another_search_trained_first_has_the_number_of_this_one(bench):
    """Its inner runs are found by that number."""
    shared, own = (Search("pictures", get_variant(name)) for name in ("cal-class", "cal"))
    bench.train([shared])
    bench.train([own, own.inner()])
    for search in (shared, own):
        known = {run.key: run.trial.number for run in bench._plan(search, bench.study(search).look(3))}
        fresh = replace(bench, _records={})
        for found in (bench, fresh):
            assert {record.key: record.trial for record in found.records(search)} == known
            assert {record.variant for record in found.records(search)} == {search.variant.key}
    keys = [{record.key for record in bench.records(search)} for search in (shared, own)]
    assert keys[0] & keys[1]  # some runs are both searches'


def test_classes_that_nobody_could_learn_are_not_measured_on(prepared):
    fold = prepared.folds[0]
    (inner, *_) = fold.without_each_environment()
    outer, of = prepared.splits(fold, 1), prepared.manifest
    alone = outer.train[of.environment_ids[outer.train] == inner.left_out][0]
    class_ids = of.class_ids.copy()
    others = np.concatenate([outer.train, outer.eval_sets["val"]])
    moved = others[(class_ids[others] == class_ids[alone]) & (of.environment_ids[others] != inner.left_out)]
    class_ids[moved] = (class_ids[moved] + 1) % len(of.classes)
    splits = leave_out(outer, replace(of, class_ids=class_ids), inner.left_out)
    left = class_ids[splits.eval_sets["left_out"]]
    assert len(left)
    assert class_ids[alone] not in left
    assert splits.digest != leave_out(outer, of, inner.left_out).digest


def test_tpe_is_refused(prepared, tmp_path):
    bench = open_bench({"pictures": prepared}, tmp_path, methods=("cal",), sampler="tpe")
    with pytest.raises(BayescalError, match="use --sampler random"):
        selection.searches(bench)
