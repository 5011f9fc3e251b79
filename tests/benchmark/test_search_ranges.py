"""The ranges in which the CAL family is searched are those of the protocol, and the data rooms do not know them."""

from random import Random

import numpy as np
import pytest

from bayescal.benchmark.search_ranges import RANGES, search_ranges
from bayescal.data.datasets import dataset_names, get_dataset
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import check_options

# λ1, λ2, λ3 as exponents; CTP; CSC: the protocol's table
SEARCH = {
    "pacs": ((-4, -1), (-1, 0), (-4, -1), ("end",), (False,)),
    "office-home": ((-3, 0), (-2, 0), (-3, 0), ("end",), (False,)),
    "vlcs": ((-2, -1), (-1, 0), (-2, -1), ("end",), (False,)),
    "colored-mnist": ((-3, 0), (-1, 1), (-3, 0), ("end", "middle"), (False, True)),
    "nico": ((-3, 0), (-2, 0), (-3, 0), ("end",), (False,)),
    "ccd": ((-1, 0), (-1, 1), (-1, 0), ("end", "middle"), (False,)),
}


@pytest.mark.parametrize("name", SEARCH)
def test_the_search_is_that_of_the_protocol(name):
    env, irm, orth, positions, class_specific = SEARCH[name]
    space = search_ranges(name)
    for parameter, (low, high) in (("lambda_env", env), ("lambda_irm", irm), ("lambda_orth", orth)):
        draws = np.log10([space[parameter].draw(Random(seed)) for seed in range(300)])
        assert low <= draws.min() < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < draws.max() <= high
        assert low <= np.log10(space[parameter].default) <= high
    for parameter, options in (("position", positions), ("class_specific", class_specific)):
        param = space[parameter]
        found = {param.default} if param.draw is None else {param.draw(Random(seed)) for seed in range(50)}
        assert found == set(options)
        assert not param.is_number


def test_searches_name_options_that_the_methods_have():
    for name in RANGES:
        for method in ("cal", "bayes-cal"):
            check_options(get_method(method).space, search_ranges(name))


def test_every_range_belongs_to_a_named_data_set():
    assert set(RANGES) <= set(dataset_names())
    assert search_ranges("my own") == {}  # each method's own ranges hold
    assert not hasattr(get_dataset("pacs"), "space")
