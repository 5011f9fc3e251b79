"""From planned runs to records: each run trained once, killed anywhere and continued with the same outcome."""

import os
from dataclasses import replace

import pytest
import torch

from bayescal.benchmark import runner
from bayescal.benchmark.runner import LocalTrainer, run_all
from bayescal.benchmark.store import Store, sqlite_url
from bayescal.training import loop
from bayescal.util.process import began
from benches import open_bench, planned_runs, same
from benches import trained as trained_records

pytestmark = pytest.mark.xdist_group("bench")


@pytest.fixture
def trained(monkeypatch) -> list[list[str]]:
    """Keys of every stack that is trained, as it begins."""
    stacks: list[list[str]] = []
    train = runner._train

    def traced(stack, *rest):
        stacks.append([run.key for run in stack.planned])
        return train(stack, *rest)

    monkeypatch.setattr(runner, "_train", traced)
    return stacks


def test_what_is_recorded_is_not_trained_again(prepared, store, trained):
    planned = planned_runs(prepared, "coop")
    first = run_all(store, planned[:2])
    records = run_all(store, planned)
    assert records[:2] == first  # the very same, with the time they were made
    assert [r.key for r in records] == [run.key for run in planned]
    assert sorted(key for stack in trained for key in stack) == sorted(run.key for run in planned)
    assert run_all(store, list(reversed(planned))) == list(reversed(records))
    assert len(trained) == 2


def test_equal_runs_are_trained_once(prepared, store, trained):
    planned = planned_runs(prepared, "coop", seeds=(1,))
    run_all(store, [*planned, *planned])
    assert [len(stack) for stack in trained] == [3]


def test_stacks_are_no_larger_than_asked_for_and_give_the_same_records(prepared, tmp_path, trained):
    planned = planned_runs(prepared, "bayes-cal-lv", trials=2, seeds=(1,))
    whole = run_all(Store(sqlite_url(tmp_path / "a")), planned)
    parts = run_all(Store(sqlite_url(tmp_path / "b")), planned, max_runs=4)
    assert [len(stack) for stack in trained] == [6, 4, 2]
    for a, b in zip(whole, parts, strict=True):
        assert a.curves == {name: pytest.approx(c, rel=1e-3, abs=1e-5) for name, c in b.curves.items()}
        assert a.scores["val"].nll == pytest.approx(b.scores["val"].nll, rel=1e-3)


def test_a_record_says_in_which_precision_it_was_trained(prepared, tmp_path, trained):
    """As with the device, a run that is recorded is not trained again in another precision."""
    half = replace(prepared, problem=replace(prepared.problem, precision=torch.bfloat16))
    plans = [planned_runs(on, "coop", trials=1, seeds=(1,)) for on in (prepared, half)]
    full, lower = (run_all(Store(sqlite_url(tmp_path / str(i))), plan) for i, plan in enumerate(plans))
    assert [record.key for record in full] == [record.key for record in lower]
    assert {record.backbone.precision for record in full} == {"float32"}
    assert {record.backbone.precision for record in lower} == {"bfloat16"}
    for a, b in zip(full, lower, strict=True):
        assert a.curves["ce"] != b.curves["ce"]
        assert a.curves["ce"] == pytest.approx(b.curves["ce"], rel=0.1)
    assert run_all(Store(sqlite_url(tmp_path / "0")), plans[1]) == full
    assert len(trained) == 2


class Kill(BaseException):
    """Stands for a signal: nobody catches it."""


def test_an_interrupted_stack_continues_from_its_checkpoint(prepared, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    planned = planned_runs(prepared, "bayes-cal-lv", trials=2, seeds=(1,))
    whole = run_all(Store(sqlite_url(tmp_path / "whole")), planned)
    store, done = Store(sqlite_url(tmp_path / "killed")), []

    def advance(run_epochs):
        done.append(run_epochs)
        if len(done) == 2:
            raise Kill

    folder = tmp_path / "checkpoints"
    with pytest.raises(Kill):
        run_all(store, planned, trainer=LocalTrainer(folder), advance=advance)
    assert not store.finished([run.key for run in planned])
    assert list(folder.glob("*/*.safetensors"))
    records = run_all(store, planned, trainer=LocalTrainer(folder), advance=advance)
    assert done == [6, 6, 6]  # three epochs of six runs in all: none was trained twice
    assert same(records) == same(whole)
    assert list(folder.iterdir()) == []  # a checkpoint of what is recorded serves nobody


def test_a_failure_gives_up_its_claims_and_keeps_what_was_finished(prepared, store, trained):
    planned = planned_runs(prepared, "coop")
    seen = []

    def fails_on_the_second_stack(results, first):
        seen.append(len(results))
        if len(trained) == 2:
            raise RuntimeError("in the middle")
        return [{"purpose": first.fold.name}] * len(results)

    with pytest.raises(RuntimeError, match="in the middle"):
        run_all(store, planned, max_runs=2, add_to_record=fails_on_the_second_stack)
    finished = store.finished([run.key for run in planned])
    assert finished == set(trained[0])
    assert all(record.purpose == record.fold for record in store.find())  # what was added is in the record
    store.owner = f"{os.uname().nodename}/1/{began(1)}"  # another living process
    left = [run.key for run in planned if run.key not in finished]
    assert store.claim(left) == left


def test_runs_of_another_process_are_waited_for(prepared, store, tmp_path, trained):
    planned = planned_runs(prepared, "coop", seeds=(1,))
    other = Store(store.url)
    other.owner = f"{os.uname().nodename}/1/{began(1)}"
    theirs = [run.key for run in planned[:2]]
    assert other.claim(theirs) == theirs
    waited = []

    def wait(runs):
        waited.append(runs)
        other.add(run_all(Store(sqlite_url(tmp_path / "elsewhere")), planned[:2]))

    records = run_all(store, planned, wait=wait)
    assert waited == [2]
    assert [r.key for r in records] == [run.key for run in planned]
    assert trained[0] == [planned[2].key]  # only what was free was trained here


def test_runs_of_a_process_that_died_are_taken_over(prepared, store, trained):
    planned = planned_runs(prepared, "coop", seeds=(1,))
    dead = Store(store.url)
    dead.owner = f"{os.uname().nodename}/{os.getpid()}/0"  # this number, but begun at another time
    dead.claim([run.key for run in planned])
    assert len(run_all(store, planned, wait=lambda runs: pytest.fail("waits for the dead"))) == 3


def test_a_search_of_a_few_choices_trains_each_once(prepared, tmp_path, trained):
    from bayescal.benchmark.searches import Search
    from bayescal.benchmark.variants import get_variant

    bench = open_bench({"pictures": prepared}, tmp_path, trials=9, seeds=(1,))
    records = trained_records(bench, Search("pictures", get_variant("coop")))
    assert len(records) == 4 * 3  # two positions × shared or not; three folds
    assert sum(len(stack) for stack in trained) == 12
    study = bench.study(Search("pictures", get_variant("coop"))).optuna
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * 9  # equal trials are told about too


def test_more_trials_and_seeds_continue_where_fewer_ended(prepared, tmp_path, trained):
    from bayescal.benchmark.searches import Search
    from bayescal.benchmark.variants import get_variant

    search = Search("pictures", get_variant("bayes-cal-lv"))
    few = trained_records(open_bench({"pictures": prepared}, tmp_path, trials=1, seeds=(1,)), search)
    many = trained_records(open_bench({"pictures": prepared}, tmp_path, trials=2, seeds=(1, 2)), search)
    assert len(few) == 3
    assert len(many) == 12
    by_key = {r.key: r for r in many}
    assert all(by_key[r.key] == r for r in few)
    keys = [key for stack in trained for key in stack]
    assert len(keys) == len(set(keys)) == 12


def test_tpe_learns_in_batches_and_continues(prepared, tmp_path, trained):
    from bayescal.benchmark.searches import Search
    from bayescal.benchmark.variants import get_variant

    search = Search("pictures", get_variant("cal-lv"))
    options = {"sampler": "tpe", "seeds": (1,)}
    bench = open_bench({"pictures": prepared}, tmp_path, trials=6, **options)
    assert bench.missing(search) == (18, 18)  # a look before the start asks for nothing
    assert not bench.study(search).optuna.trials
    records = trained_records(bench, search)
    assert len(records) == 18
    assert bench.missing(search) == (18, 0)
    values = [trial.value for trial in bench.study(search).optuna.trials]
    for number, value in enumerate(values):
        runs = [r for r in records if r.trial == number]
        best = [r.curves["val"][r.chosen["val"] - 1] for r in runs]
        assert value == pytest.approx(sum(best) / 3)
    again = open_bench({"pictures": prepared}, tmp_path, trials=7, **options)
    assert again.missing(search) == (21, 3)
    assert trained_records(again, search)[:18] == records
