"""Model selection on records made by hand: what each rule looks at, what it reports, how means are taken."""

import pytest

from bayescal.errors import BayescalError
from bayescal.evaluation.selection import RULES, get_rule, overall, per_fold
from benches import record

SCORES = {"val": {"accuracy": 0.1}, "ood_val": {"accuracy": 0.2}, "last": {"accuracy": 0.3}}

ONE_SEARCH = [name for name, rule in RULES.items() if not rule.inner_metric]  # the others look at inner runs


def run(trial=0, val=(0.5,), test_val=(0.5,), ood_val=None, best=None, fold="photo", seed=1, **changes):
    """A run with its curves; `best` is the epoch that each metric kept, by default its curve's best."""
    curves = {"val": val, "test_val": test_val, **({"ood_val": ood_val} if ood_val else {})}
    kept = {name: 1 + max(range(len(c)), key=c.__getitem__) for name, c in curves.items() if name != "test_val"}
    scores = {name: value for name, value in SCORES.items() if name in ("last", *kept)}
    return record(
        fold, seed, trial, **{"curves": curves, "chosen": {**kept, **(best or {})}, "scores": scores} | changes
    )


def chosen(rule, *records):
    return [r.trial for r in get_rule(rule).choose(records)]


def test_training_domain_takes_the_best_epoch_of_each_run():
    early, late = run(0, val=[0.5, 0.9, 0.6]), run(1, val=[0.5, 0.7, 0.8])
    assert chosen("training-domain", early, late) == [0]
    assert get_rule("training-domain").value(early) == 0.9
    assert get_rule("training-domain").score(early) == SCORES["val"]["accuracy"]


def test_training_domain_compares_the_epoch_that_was_kept():
    """The epoch whose parameters are reported counts, whatever else the curve says."""
    assert get_rule("training-domain").value(run(val=[0.5, 0.9, 0.6], best={"val": 3})) == 0.6
    assert get_rule("training-domain").value(run(val=[0.5, 0.9], best={"val": 0})) == 0.5  # before the first epoch


def test_test_domain_asks_once_at_the_last_checkpoint():
    better_before, better_now = run(0, test_val=[0.99, 0.6]), run(1, test_val=[0.1, 0.7])
    assert chosen("test-domain", better_before, better_now) == [1]
    assert get_rule("test-domain").value(better_before) == 0.6
    assert get_rule("test-domain").score(better_now) == SCORES["last"]["accuracy"]


def test_ood_takes_the_epoch_that_was_best_on_images_of_neither_distribution():
    a, b = run(0, val=[0.9, 0.1], ood_val=[0.3, 0.6]), run(1, val=[0.1, 0.9], ood_val=[0.7, 0.2])
    assert chosen("ood", a, b) == [1]
    assert (get_rule("ood").value(a), get_rule("ood").value(b)) == (0.6, 0.7)
    assert get_rule("ood").score(b) == SCORES["ood_val"]["accuracy"]


def test_without_such_images_a_rule_chooses_nothing():
    assert get_rule("ood").value(run()) is None
    assert chosen("ood", run(0), run(1)) == []
    assert get_rule("training-domain").value(run(curves={"val": []})) is None
    assert get_rule("training-domain").value(run(scores={})) is None


@pytest.mark.parametrize("rule", ONE_SEARCH)
def test_the_first_trial_wins_a_tie_whatever_the_order(rule):
    runs = [run(trial, val=[0.8], test_val=[0.8], ood_val=[0.8]) for trial in (4, 2, 9)]
    assert chosen(rule, *runs) == chosen(rule, *reversed(runs)) == [2]


@pytest.mark.parametrize("rule", ONE_SEARCH)
def test_a_run_that_stopped_is_never_chosen(rule):
    good = {"val": [0.9], "test_val": [0.9], "ood_val": [0.9]}
    bad = {"val": [0.2], "test_val": [0.2], "ood_val": [0.2]}
    stopped = run(0, **good, stopped="stopped at step 3")
    assert chosen(rule, stopped, run(1, **bad)) == [1]
    assert chosen(rule, stopped) == []


def test_every_fold_and_seed_chooses_for_itself():
    found = get_rule("training-domain").choose(
        [
            run(0, val=[0.9], fold="photo", seed=2), run(1, val=[0.8], fold="photo", seed=2),
            run(0, val=[0.1], fold="photo", seed=1), run(1, val=[0.2], fold="photo", seed=1),
            run(0, val=[0.3], fold="art", seed=2), run(1, val=[0.4], fold="art", seed=2),
        ]
    )  # fmt: skip
    assert [(r.fold, r.seed, r.trial) for r in found] == [("art", 2, 1), ("photo", 1, 1), ("photo", 2, 0)]


def test_three_rules_read_one_search_each_in_its_own_way():
    search = [
        run(0, val=[0.9, 0.5], test_val=[0.1, 0.1], ood_val=[0.1, 0.2]),
        run(1, val=[0.1, 0.2], test_val=[0.1, 0.9], ood_val=[0.3, 0.1]),
        run(2, val=[0.5, 0.5], test_val=[0.99, 0.5], ood_val=[0.8, 0.1]),
    ]
    found = {rule: chosen(rule, *search) for rule in ONE_SEARCH}
    assert found == {"training-domain": [0], "test-domain": [1], "ood": [2]}


def test_an_unknown_rule_is_refused():
    with pytest.raises(BayescalError, match="training-domain, test-domain, ood"):
        get_rule("oracle")


# --- means -----------------------------------------------------------------------------------------------------------


def test_scores_by_fold_and_seed_leave_out_what_is_not_defined():
    scores = (("photo", 1, 0.5), ("photo", 2, 0.7), ("art", 1, None))
    records = [record(fold, seed, scores={"last": {"accuracy": value}}) for fold, seed, value in scores]
    assert per_fold(records, lambda r: r.scores["last"].accuracy) == {"photo": {1: 0.5, 2: 0.7}}


def test_folds_are_averaged_within_each_seed():
    by_fold = {"photo": {1: 0.5, 2: 0.7, 3: 0.1}, "art": {1: 0.9, 2: 0.8}}
    assert overall(by_fold) == pytest.approx({1: 0.7, 2: 0.75})  # seed 3 did not finish everywhere
    assert overall({}) == {}
    assert overall({"photo": {1: 0.5}, "art": {2: 0.5}}) == {}


def test_the_mean_of_some_folds_is_not_taken_for_that_of_all():
    by_fold = {"photo": {1: 0.5}, "art": {1: 0.9}}
    assert overall(by_fold, ["art", "photo"]) == pytest.approx({1: 0.7})
    assert overall(by_fold, ["art", "photo", "sketch"]) == {}
