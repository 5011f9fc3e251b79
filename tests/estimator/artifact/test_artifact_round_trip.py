"""A model on disk: the same answers in another process, and files that people can read."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from artifacts import SMALL, contents

from bayescal import FewShotClassifier, __version__
from bayescal.estimator.artifact import CONFIG, FORMAT_VERSION, TENSORS, read_artifact, write_artifact
from pictures import make_pictures

pytestmark = pytest.mark.xdist_group("artifact")

IN_A_FRESH_PROCESS = """
import sys
import numpy as np
from bayescal import FewShotClassifier
model, cache, out, *paths = sys.argv[1:]
details = FewShotClassifier.load(model, cache=cache).details(paths)
np.savez(out, **vars(details))
"""


def test_a_fresh_process_gives_bit_identical_answers(classifier, saved, cache, paths, tmp_path):
    out = tmp_path / "answers.npz"
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS, str(saved), str(cache), str(out), *map(str, paths)]
    # the number of threads decides in which order a sum is taken: the same here and there
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    subprocess.run(command, check=True, env=environment)
    expected = vars(classifier.details(paths))
    with np.load(out) as answers:  # no pickle: np.load refuses objects
        assert set(answers) == set(expected)
        for name, value in expected.items():
            assert answers[name].dtype == value.dtype, name
            assert np.array_equal(answers[name], value), name


def test_everything_learned_comes_back(classifier, saved, cache):
    loaded, made = FewShotClassifier.load(saved, cache=cache), classifier.predictor_
    again = loaded.predictor_
    assert set(again.params) == set(made.params)
    assert all(value.equal(again.params[name]) for name, value in made.params.items())
    assert again.prototypes.equal(made.prototypes)
    for name in (
        "method",
        "config",
        "seeds",
        "classes",
        "class_words",
        "environments",
        "trained_environments",
        "samples",
    ):
        assert getattr(again, name) == getattr(made, name), name
    assert (again.threshold, again.temperature) == (made.threshold, made.temperature)
    assert again.temperature != 1
    assert again.record == made.record
    assert loaded.classes_.tolist() == classifier.classes_.tolist()
    assert loaded.environments_.tolist() == classifier.environments_.tolist()
    assert (loaded.threshold_, loaded.record_) == (classifier.threshold_, classifier.record_)
    assert (loaded.members, loaded.samples, loaded.seed, loaded.method) == (2, 3, 3, "bayes-cal")


def test_saving_what_was_loaded_gives_the_same_files(saved, tmp_path):
    FewShotClassifier.load(saved).save(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(saved)


def test_the_config_is_readable_and_complete(classifier, saved, mini):
    text = (saved / CONFIG).read_text(encoding="utf-8")
    config = json.loads(text, parse_constant=pytest.fail)
    assert text.count("\n") > 30  # for people, one entry a line
    assert config["format_version"] == FORMAT_VERSION
    assert config["method"] == "bayes-cal"
    assert config["config"]["position"] == "middle"
    assert config["classes"] == ["ball", "box", "tent"]
    assert config["class_words"] == ["red ball", "box", "tent"]
    assert config["environments"] == ["night", "snow"]
    assert config["backbone"] == {"name": "mini", "label": "mini 2", "fingerprint": mini.fingerprint}
    assert config["threshold"] == classifier.threshold_
    assert config["temperature"] == classifier.predictor_.temperature
    assert (config["samples"], config["seeds"]) == (3, [3, 4])
    record = config["training"]
    assert (record["train_images"], record["validation_images"]) == (12, 12)
    assert len(record["curves"]["ce"]) == len(record["curves"]["val"]) == 2
    assert record["validation_accuracy"] == classifier.record_["validation_accuracy"]
    assert config["versions"]["bayescal"] == __version__
    assert {"torch", "python"} <= set(config["versions"])
    assert sorted(p.name for p in saved.iterdir()) == [CONFIG, TENSORS]


def test_zero_shot_and_one_environment_can_be_saved_too(cache, paths, tmp_path):
    data = make_pictures(4)
    with pytest.warns(UserWarning, match="only one environment"):
        made = FewShotClassifier("clip", cache=cache).fit(paths, data.classes)
    made.save(tmp_path / "model")
    loaded = FewShotClassifier.load(tmp_path / "model", cache=cache)
    assert np.array_equal(loaded.predict_proba(paths), made.predict_proba(paths))


def test_json_is_strict_even_where_numbers_are_not(classifier, tmp_path, paths, cache):
    """No validation image answered correctly: the threshold is infinite. A curve may hold NaN."""
    record = {**classifier.record_, "curves": {"ce": [math.nan, 1.0, math.inf], "val": (0.5, -math.inf)}}
    # without familiarity, because "unfamiliar" is said first
    shy = replace(classifier.predictor_, threshold=math.inf, record=record, familiarity=None)
    shy.save(tmp_path / "shy")
    config = json.loads((tmp_path / "shy" / CONFIG).read_text(), parse_constant=pytest.fail)
    assert config["threshold"] is None
    assert config["training"]["curves"] == {"ce": [None, 1.0, None], "val": [0.5, None]}
    loaded = FewShotClassifier.load(tmp_path / "shy", cache=cache)
    assert loaded.threshold_ == math.inf
    assert set(loaded.predict_selective(paths)) == {"unsure"}


def test_names_of_any_language_survive(tmp_path):
    write_artifact(tmp_path / "model", SMALL, {"classes": ["Köln", "猫", "naïve 🐈"]})
    assert "猫" in (tmp_path / "model" / CONFIG).read_text(encoding="utf-8")
    assert read_artifact(tmp_path / "model")[1]["classes"] == ["Köln", "猫", "naïve 🐈"]
