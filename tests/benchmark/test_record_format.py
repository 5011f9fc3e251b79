"""A record as JSON: everything comes back, and what is no record of this version is refused."""

import json

import pytest

from bayescal.benchmark.export import flat, matching, read_records
from bayescal.benchmark.records import FORMAT, LossLandscape, Record, Scores
from bayescal.errors import BayescalError, DataError
from bayescal.util.checksum import sealed
from benches import record

LANDSCAPE = LossLandscape([0.0], [0.0], [[0.5]], [[0.0, 0.0]], [0.0, 0.0], [0.9, 0.1], 0.5)


def there_and_back(found: Record) -> Record:
    return Record.from_json(json.loads(json.dumps(found.to_json())))


def test_everything_comes_back():
    plain = record(curves={"val": [0.5, None]}, scores={"val": {"accuracy": 0.5, "per_class": {"dog": 1.0}}})
    assert there_and_back(plain) == plain
    assert not {"new", "landscape"} & set(plain.to_json())  # only some experiments add them
    more = record(new={"ood": Scores(eval_set="ood", accuracy=0.25)}, landscape=LANDSCAPE)
    assert there_and_back(more) == more
    assert there_and_back(more).new["ood"].accuracy == 0.25


def test_a_record_of_a_later_version_is_refused_with_what_to_do():
    later = record().to_json() | {"format": FORMAT + 1}
    with pytest.raises(DataError, match=rf"format {FORMAT + 1}.*reads up to {FORMAT}: install the version"):
        Record.from_json(later)


@pytest.mark.parametrize("spoil", ["no scores", "no format", "another field", "no record"])
def test_other_json_is_refused(tmp_path, spoil):
    content = record().to_json()
    if spoil == "no scores":
        del content["scores"]
    elif spoil == "no format":
        del content["format"]
    elif spoil == "another field":
        content["colour"] = "red"
    else:
        content = [1, 2, 3]
    content = sealed(content) if isinstance(content, dict) else content  # a whole file of something else
    with pytest.raises(DataError, match="not a record of a run"):
        Record.from_json(content)
    (tmp_path / "runs.json").write_text(json.dumps(record().to_json()) + "\n" + json.dumps(content) + "\n")
    with pytest.raises(DataError, match=r"runs\.json, line 2: is not a record"):
        list(read_records(tmp_path / "runs.json"))


def test_a_row_has_todays_names_and_the_old_ones_are_answered():
    found = record(variant="cal", scores={"val": {"accuracy": 0.5, "per_class": {"dog": 1.0}}})
    row = flat(found)
    assert (row["variant"], row["samples"], row["shots"], row["val_shots"]) == ("cal", 20, 1, 1)
    assert (row["scores.val.accuracy"], row["scores.val.per_class.dog"]) == (0.5, 1.0)
    assert not any(isinstance(value, dict | list) for value in row.values())
    assert list(matching([found], ["variant=cal", "seed=1"])) == [found]
    for old, new in (("entry", "variant"), ("draws", "samples")):
        with pytest.raises(BayescalError, match=f"is called {new} now: {new}=1"):
            list(matching([found], [f"{old}=1"]))
