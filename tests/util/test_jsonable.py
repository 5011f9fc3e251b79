"""JSON without NaN and infinity, whatever lies how deep."""

import json
import math

import numpy as np
import pytest
import torch

from bayescal.util.jsonable import dumps, finite, jsonable


def test_numbers_that_json_does_not_have_become_none_at_any_depth():
    value = {"a": [1.5, math.nan, (math.inf, {"b": -math.inf})], "n": 3, "s": "NaN", "none": None, "yes": True}
    assert jsonable(value) == {"a": [1.5, None, [None, {"b": None}]], "n": 3, "s": "NaN", "none": None, "yes": True}
    assert math.isnan(value["a"][1])  # the original is not touched


def test_the_text_is_strict_json():
    def refuse(name):
        raise ValueError(name)

    text = dumps({"x": np.float64("nan"), "y": (1, 2.5)}, indent=1)
    assert json.loads(text, parse_constant=refuse) == {"x": None, "y": [1, 2.5]}


@pytest.mark.parametrize("kind", [float, np.float32, torch.tensor])
def test_one_number_of_any_library(kind):
    assert finite(kind(0.5)) == 0.5
    assert finite(kind(math.nan)) is finite(kind(-math.inf)) is None
    assert type(finite(kind(2.0))) is float
