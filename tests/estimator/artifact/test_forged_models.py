"""Models whose checksums are right and whose content is not: each is refused in a sentence, none in a traceback."""

import copy
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from test_artifact_prepared import backbone, trained

import tiny
from bayescal.errors import ArtifactError, BayescalError
from bayescal.estimator.artifact import CONFIG, FORMAT, FORMAT_VERSION, TENSORS, read_artifact
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.estimator.predictor import StackedPredictor
from bayescal.estimator.training_images import TrainingImages
from bayescal.evaluation.expected import ExpectedAccuracy
from bayescal.evaluation.familiarity import Familiarity
from bayescal.methods import find_method
from bayescal.util.checksum import checksum

pytestmark = pytest.mark.xdist_group("artifact")

Forge = Callable[[dict[str, Any], dict[str, torch.Tensor]], Any]  # spoils a config c and tensors t
FEATURES = tiny.tiny_problem().features[:18]


def everything() -> dict[str, Any]:
    """What a model of today keeps beside its method: of 18 images, the last six for validation."""
    labels, environments = np.arange(18) % 3, np.arange(18) // 3 % 2
    directions = torch.nn.functional.normalize(FEATURES, dim=-1)
    return {
        "familiarity": Familiarity.of(
            FEATURES[:12], torch.from_numpy(environments[:12]), torch.eye(3, 12), torch.ones(2, 12), torch.eye(12)[5:]
        ),
        "expected": ExpectedAccuracy(0.8, 0.6, 0.9, 0.9, 0.85, "photo", 0.7),
        "training": TrainingImages(
            directions, FEATURES.norm(dim=-1), np.zeros((18, 32), np.uint8), tuple(f"/{i}.png" for i in range(18)),
            labels, environments, 12, ("photo", "sketch"),
        ),
    }  # fmt: skip


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> dict[str, tuple[dict, dict]]:
    """Config and tensors of a model of one method, and of a stacked one."""
    folder = tmp_path_factory.mktemp("originals")
    words = tiny.tiny_word_vectors(folder)
    members = {name: trained(name, words) for name in ("bayes-cal", "tip-adapter")}
    one = members["bayes-cal"]
    shared = {key: getattr(one, key) for key in ("classes", "class_words", "environments", "prototypes", "samples")}
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    auto = StackedPredictor(backbone=one.backbone, members=members, weights=weights, **shared, **everything())
    for name, value in everything().items():
        setattr(one, name, value)
    made = {}
    for name, predictor in {"one": one, "auto": auto}.items():
        predictor.save(folder / name)
        tensors, config = read_artifact(folder / name)
        made[name] = config, {key: value.clone() for key, value in tensors.items()}
    return made


def write_forged(path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Whatever they hold, with checksums that fit."""
    blob = save({name: value.contiguous() for name, value in tensors.items()})
    files = {TENSORS: {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()}}
    config = {"format": FORMAT, "format_version": FORMAT_VERSION, "files": files, **config}
    config["checksum"] = checksum(config)
    path.mkdir()
    (path / TENSORS).write_bytes(blob)
    (path / CONFIG).write_text(json.dumps(config))


@pytest.fixture
def answer(originals, tmp_path, monkeypatch):
    """Spoil a copy of a model, load it and let it answer."""
    monkeypatch.setattr("bayescal.estimator.predictor.load_backbone", lambda *given: backbone())

    def forged(kind: str, forge: Forge):
        config, tensors = copy.deepcopy(originals[kind])
        for name in ("files", "format", "format_version"):
            del config[name]
        forge(config, tensors)
        write_forged(tmp_path / "model", config, tensors)
        return BasePredictor.load(tmp_path / "model").details(FEATURES)

    return forged


def put(name: str, value: Any) -> Forge:
    """Another value for an entry of the config: "backbone.name" is in an object."""

    def forge(config: dict, _: dict) -> None:
        *above, last = name.split(".")
        for part in above:
            config = config[part]
        config[last] = value

    return forge


def drop(name: str) -> Forge:
    def forge(config: dict, _: dict) -> None:
        *above, last = name.split(".")
        for part in above:
            config = config[part]
        del config[last]

    return forge


def tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor] | None) -> Forge:
    """Another tensor in the place of each whose name begins so; None: without them."""

    def forge(_: dict, tensors: dict) -> None:
        for key in [key for key in tensors if key.startswith(name)]:
            value = tensors.pop(key)
            if change is not None:
                tensors[key] = change(value)

    return forge


def both(*forges: Forge) -> Forge:
    return lambda config, tensors: [forge(config, tensors) for forge in forges]


def nan(value: torch.Tensor) -> torch.Tensor:
    """Labels stay as they are: a whole number cannot be NaN."""
    return torch.full_like(value, math.nan) if value.is_floating_point() else value


UNPREPARED = both(put("prepared", None), tensor("prepared/", None))
MEMBER = "members.bayes-cal"
SHARED = {
    **{f"{name} is missing": drop(name) for name in (
        "classes", "class_words", "environments", "backbone", "samples", "threshold", "temperature", "training",
    )},
    **{f"{name} is {value!r}": put(name, value) for name, values in {
        "kind": (7, [], None, "other", {}),
        "classes": ("dog", [], [["dog"], 1, 2], {"dog": 1}, ["dog", "dog", "cat"], ["dog", "cat"], 3),
        "class_words": (None, ["a", "b"], [1, 2, 3], "abc"),
        "environments": (None, [], "photo", ["photo"], [{}, {}]),
        "backbone": (None, "mini", {}, {"name": 1, "fingerprint": 2}, []),
        "backbone.fingerprint": (None, ["x"]),
        "samples": (-1, 2.5, "3", None, True, 10**30),
        "threshold": ("high", [], math.nan, -math.inf),
        "temperature": (0, -1.0, None, "1", math.inf, math.nan),
        "unfamiliar_below": ("x", [], math.nan),
        "expected": (3, [], {"unseen": "x"}, {}, {"more": 1}),
        "expected.low": (7.0, "x"),
        "training": (None, [], "x"),
        "training.train_images": ("72", None, {}, 2.5),
        "training.validation_images": ({"a": 1}, [3]),
        "training.validation_accuracy": ("1.0", []),
        "training.views": (-1, "0"),
        "training.seed": (1 << 63, None),
        "training.seconds": ("long",),
        "training.additions": (3, {}, [1]),
        "training.checked": ([], "x"),
        "training.members": ("x", [1]),
        "training_images": (3, {}, []),
        "training_images.train": (-1, "12", 13, 10**9),
        "training_images.environment_words": (None, [1, 2], ["photo"]),
        "copies": (3, [], {"a": 1}, {"a": {"of": "nothing", "shape": [1]}}, {"a": {"of": "environment_prototypes"}},
                   {"a": {"of": "environment_prototypes", "shape": [5, "x"]}}),
        "files": (None, {}, {TENSORS: 3}, {TENSORS: {"bytes": 1}}, []),
        "format_version": ([], {}, "3", 99),
    }.items() for value in values},
    **{f"tensors {name} {what}": tensor(name, change) for name, changes in {
        "environment_prototypes": {
            "gone": None, "cut": lambda t: t[:, :-1], "flat": lambda t: t.flatten(), "fewer": lambda t: t[:1],
            "nan": nan, "whole": lambda t: t.long(), "empty": lambda t: t[:, :0],
        },
        "familiarity/images": {"gone": None, "cut": lambda t: t[:, :-1], "none": lambda t: t[:0], "nan": nan},
        "familiarity/texts": {"gone": None, "more": lambda t: torch.cat([t, t])},
        "familiarity/noise": {"gone": None, "cut": lambda t: t[:, :-1], "none": lambda t: t[:0], "nan": nan},
        "familiarity/words": {"gone": None, "cut": lambda t: t[:, :-1], "none": lambda t: t[:0], "nan": nan},
        "familiarity/mean": {"gone": None, "scalar": lambda t: t[0]},
        "familiarity/deviation": {"long": lambda t: t.repeat(2), "zero": torch.zeros_like},
        "training/images": {"gone": None, "fewer": lambda t: t[:-1], "cut": lambda t: t[:, :-1]},
        "training/lengths": {"gone": None, "fewer": lambda t: t[:-1]},
        "training/hashes": {"gone": None, "narrow": lambda t: t[:, :5], "float": lambda t: t.float()},
        "training/names": {"gone": None, "cut": lambda t: t[:-30], "long": lambda t: t.long()},
        "training/classes": {"gone": None, "large": lambda t: t + 3, "float": lambda t: t.float()},
        "training/environments": {"negative": lambda t: t - 1, "fewer": lambda t: t[1:]},
    }.items() for what, change in changes.items()},
}  # fmt: skip
OF_METHOD = {
    **{f"{name} is missing": drop(name) for name in ("method", "config", "seeds", "trained_environments")},
    **{f"{name} is {value!r}": put(name, value) for name, values in {
        "method": (None, 3, [], "no-such-method", "../../x", "os:system", "erm"),
        "method_from": (3, [], {"class": 3}),
        "config": (None, [], {}, "x", {"more": 1}),
        "config.learning_rate": (-1, "0.1", None, [], math.nan, True, 10**30),
        "config.n_context": ("4", 2.5, None, -3),
        "config.no_such_option": (1,),
        "seeds": (None, [], 3, ["1", "2"], [1], [1, 2, 3], [1 << 63, 1], [1.5, 2], [[1], [2]]),
        "trained_environments": (None, "photo", [1]),
        "prepared": (3, [], {}, {"samples": 3}),
        "prepared.samples": ("3", -3, None),
        "prepared.version": ("1", None),
        "prepared.form": (None, 3, {}, {"tensor": "nothing"}, {"more": []}, {"dict": []}, {"value": 3},
                          {"list": [{"tensor": []}]}),
    }.items() for value in values},
    **{f"tensors {name} {what}": tensor(name, change) for name, changes in {
        "params/": {"nan": nan, "fewer": lambda t: t[:1], "scalar": lambda t: t.flatten()[0]},
        "prepared/": {"gone": None, "cut": lambda t: t[..., :-1], "nan": nan, "flat": lambda t: t.flatten()},
    }.items() for what, change in changes.items()},
}  # fmt: skip
WITHOUT_PREPARED = {
    "no parameters": tensor("params/", None),
    "cut parameters": tensor("params/", lambda t: t[..., :-1]),
    "flat parameters": tensor("params/", lambda t: t.flatten(1)),
}
STACKED = {
    "members gone": drop("members"),
    **{f"members are {value!r}": put("members", value) for value in (None, [], {}, {"clip": 3}, 3)},
    "a member gone": drop(MEMBER),
    "weights gone": tensor("weights", None),
    "one weight": tensor("weights", lambda t: t[:1]),
    "weights of nothing": tensor("weights", torch.zeros_like),
    "negative weights": tensor("weights", lambda t: torch.tensor([2.0, -1.0], dtype=t.dtype)),
    "weights nan": tensor("weights", nan),
    "few members": put("kind", "few-shot"),
    **{f"{name} is {value!r}": put(f"{MEMBER}.{name}", value) for name, value in {
        "method": 3, "config": [], "config.learning_rate": -1, "seeds": [], "prepared.form": {}, "prepared": [],
    }.items()},
    "prepared gone": tensor("members/bayes-cal/prepared/", None),
    "prepared nan": tensor("members/tip-adapter/prepared/", nan),
    "params nan": tensor("members/tip-adapter/params/", nan),
}  # fmt: skip
FORGED = {
    **{f"one: {name}": ("one", forge) for name, forge in (SHARED | OF_METHOD).items()},
    **{f"one, unprepared: {name}": ("one", both(UNPREPARED, forge)) for name, forge in WITHOUT_PREPARED.items()},
    **{f"auto: {name}": ("auto", forge) for name, forge in STACKED.items()},
    **{f"auto: {name}": ("auto", forge) for name, forge in list(SHARED.items())[::7]},
}


@pytest.mark.parametrize("kind", ["one", "auto"])
def test_what_is_not_spoiled_is_read_and_answers(answer, kind):
    assert answer(kind, lambda config, tensors: None).probabilities.shape == (18, 3)


def test_without_what_is_prepared_it_answers_too(answer):
    assert answer("one", UNPREPARED).probabilities.shape == (18, 3)


@pytest.mark.parametrize("older", [("words",), ("words", "noise")])
def test_a_model_that_compares_with_less_is_read_and_answers(answer, older):
    """As those do that were saved before there was noise to compare with, or before there were words."""

    def less(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for name in older:
            del tensors[f"familiarity/{name}"]
        for name in ("mean", "deviation"):
            tensors[f"familiarity/{name}"] = tensors[f"familiarity/{name}"][: 4 - len(older)].clone()

    assert np.isfinite(answer("auto", less).familiarity).all()


def test_words_without_noise_are_refused(answer):
    def forged(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        del tensors["familiarity/noise"]
        for name in ("mean", "deviation"):
            tensors[f"familiarity/{name}"] = tensors[f"familiarity/{name}"][:3].clone()

    with pytest.raises(BayescalError, match="words without noise"):
        answer("auto", forged)


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_model_is_refused_in_a_sentence(answer, name):
    kind, forge = FORGED[name]
    with pytest.raises(BayescalError) as caught:
        answer(kind, forge)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (put("seeds", ["1", "2"]), "config.json does not fit: seeds[0]: expected a whole number, found '1'"),
        (put("config.learning_rate", -1), "option 'learning_rate': expected a number that is not negative, found -1"),
        (tensor("training/hashes", lambda t: t[:, :5]), "training/hashes: expected the shape (18, 32), found (18, 5)"),
        (drop("class_words"), "class_words: is missing"),
    ],
)
def test_the_sentence_says_where_and_what(answer, tmp_path, forge, said):
    with pytest.raises(ArtifactError) as caught:
        answer("one", forge)
    assert str(caught.value).startswith(f"{tmp_path / 'model'} is no model that can be read, ")
    assert said in str(caught.value)


def test_a_refused_first_answer_is_refused_again(answer, tmp_path):
    with pytest.raises(ArtifactError):
        answer("one", both(UNPREPARED, WITHOUT_PREPARED["no parameters"]))
    predictor = BasePredictor.load(tmp_path / "model")  # reads no text tower yet
    for _ in range(2):
        with pytest.raises(ArtifactError, match=find_method("bayes-cal").name):
            predictor.details(FEATURES)


def test_answers_that_are_no_numbers_are_none(originals, tmp_path, monkeypatch):
    """With numbers near the largest, a model answers made-up images and not every other one."""
    monkeypatch.setattr("bayescal.estimator.predictor.load_backbone", lambda *given: backbone())
    config, tensors = originals["one"]
    write_forged(tmp_path / "model", {name: config[name] for name in config if name != "files"}, tensors)
    predictor = BasePredictor.load(tmp_path / "model")
    features = FEATURES.clone()
    features[3] = math.nan
    with pytest.raises(BayescalError, match="1 of 18 answers are no numbers"):
        predictor.details(features)
