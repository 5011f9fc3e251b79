"""How a default is chosen from what was measured on several data sets."""

import pytest
from speed.tune_defaults import MAY_LOSE, choose, floor_of


def score(nll: float, accuracy: float) -> dict[str, float]:
    return {"nll": nll, "accuracy": accuracy}


BY_SET = {
    "a": [score(0.5, 0.80), score(0.4, 0.90), score(0.6, 0.91)],
    "b": [score(1.0, 0.50), score(1.5, 0.49), score(1.1, 0.52)],
}


def test_the_setting_that_loses_least_is_chosen():
    chosen, lost = choose(BY_SET, {})
    assert lost == pytest.approx([0.05, 0.25, 0.15])
    assert chosen == 0


def test_less_accurate_than_allowed_on_any_set_is_out_of_the_running():
    assert choose(BY_SET, {"a": 0.85})[0] == 2
    assert choose(BY_SET, {"a": 0.85, "b": 0.53})[0] == 0  # nobody is good enough: then by likelihood alone
    assert choose({"b": BY_SET["b"]}, {"a": 0.99})[0] == 0  # a set that had no part in it says nothing


def test_the_floor_is_below_what_the_other_method_s_default_has():
    rows = [{"default": False, "a": score(0.1, 0.95)}, {"default": True, "regret": 0.1, "a": score(0.4, 0.9)}]
    assert floor_of({"coop": {"settings": rows}}, "bayes-cal") == {"a": pytest.approx(0.9 - MAY_LOSE)}
    assert floor_of({"coop": {"settings": rows}}, "erm") == {}
    assert floor_of({}, "bayes-cal") == {}
