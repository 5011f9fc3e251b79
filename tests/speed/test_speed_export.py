"""What `python -m speed.export` keeps of a precision that costs too much."""

import json
from typing import Any

import numpy as np
import pytest
from speed.measure import write_json

from bayescal.export import check
from bayescal.export.check import Checked, Sample, TooCostly
from speed import export

FOUND = Checked(images=200, largest_difference=0.3, same_class=0.98, accuracy=0.9, accuracy_exported=0.89)
NOBODY: Any = None  # the model is not asked
SAMPLE = Sample(np.zeros((4, 2, 2, 3), np.uint8), np.zeros(4, int))


def test_a_precision_that_costs_too_much_says_how_much(monkeypatch):
    monkeypatch.setattr(check, "compare", lambda *_: FOUND)
    with pytest.raises(TooCostly, match=r"1\.0 points fewer of 200 images right \(90\.0% → 89\.0%\)") as refused:
        check.checking(NOBODY, SAMPLE, "int8")(b"")
    assert refused.value.checked == FOUND


def test_its_numbers_are_kept_as_json_that_every_reader_knows(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise TooCostly("in int8 the model answers fewer", FOUND)

    monkeypatch.setattr(export, "export_model", refuse)
    results = export.measured("pacs", NOBODY, SAMPLE, 2)
    write_json(results, tmp_path / "x.json", "python -m speed.export pacs")
    kept = json.loads((tmp_path / "x.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    notes = kept["results"][-1]["notes"]
    assert (notes["accuracy_exported"], notes["met"]) == (0.89, False)
    assert notes["refused"].startswith("in int8")
