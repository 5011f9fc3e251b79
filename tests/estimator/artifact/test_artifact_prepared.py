"""A saved model keeps what prediction needs of its texts: the same answers, and no text tower."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny
from bayescal.backbones import Backbone, Preprocess
from bayescal.backbones.defaults import CLIP
from bayescal.estimator.artifact import read_artifact
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.estimator.kept import NotKept, put_together, taken_apart
from bayescal.estimator.predictor import Predictor, StackedPredictor
from bayescal.methods import find_method, method_names
from bayescal.methods.contract import predict
from bayescal.methods.hyperparameters import default_config
from bayescal.methods.registry import BUILT_IN
from bayescal.text.tower import LazyTower, TextTower
from bayescal.training.runs import Run, StackResult
from bayescal.training.stack import train_runs

PER_IMAGE = {"cocoop", "dplclip"}
LEARNED_ON_FEATURES = [name for name in method_names() if find_method(name).on_features]


class Tokenizer:
    sot_token_id, eot_token_id = 18, 19
    encode = staticmethod(tiny.tokenize)


def no_tower() -> TextTower:
    raise AssertionError("the text tower was read")


def backbone(read: Callable[[], TextTower] = tiny.tiny_tower) -> Backbone:
    """The tiny problem's, without an image tower."""
    return Backbone(
        name="tiny",
        architecture="tiny",
        visual=torch.nn.Identity(),
        tower=LazyTower(12, torch.device("cpu"), read),
        tokenizer=Tokenizer(),
        preprocess=Preprocess(8, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic", "shortest"),
        logit_scale=10.0,
        fingerprint="7" * 20,
        defaults=CLIP,
        trained_context=32,
    )


@pytest.fixture
def load(monkeypatch):
    """Load a model with another way to read the text tower."""

    def load_with(path: Path, read: Callable[[], TextTower]) -> BasePredictor:
        monkeypatch.setattr("bayescal.estimator.predictor.load_backbone", lambda *given: backbone(read))
        return BasePredictor.load(path)

    return load_with


def trained(name: str, words: str, **more) -> Predictor:
    """Two members, trained for two epochs on the tiny problem."""
    space = find_method(name).space
    options = {"epochs": 2, "word_vectors": words, "mlp_width": 8, **more}
    config = default_config(space, tiny.Defaults, **{k: v for k, v in options.items() if k in space})
    runs: list[Run] = [replace(tiny.tiny_run(config, 1), seed=seed) for seed in (1, 2)]
    fields = {
        "classes": list(tiny.CLASSES), "class_words": tiny.CLASSES, "environments": ["photo", "sketch"],
        "prototypes": torch.eye(2, 12), "samples": 3, "record": {},
    }  # fmt: skip
    return Predictor.of(backbone(), StackResult.of(train_runs(name, tiny.tiny_problem(), runs)), **fields)


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> str:
    return tiny.tiny_word_vectors(tmp_path_factory.mktemp("words"))


FEATURES = tiny.tiny_problem().features[:20]


@pytest.mark.parametrize("name", [name for name in LEARNED_ON_FEATURES if name not in PER_IMAGE])
def test_answers_are_the_same_without_a_text_tower(name, words, load, tmp_path):
    made = trained(name, words)
    made.save(tmp_path / "model")
    loaded = load(tmp_path / "model", no_tower)
    torch.testing.assert_close(loaded.posterior(FEATURES).probs, made.posterior(FEATURES).probs, rtol=0, atol=1e-6)
    assert loaded.details(FEATURES).mutual_information == pytest.approx(
        made.details(FEATURES).mutual_information, abs=1e-6
    )
    loaded.save(tmp_path / "again")  # without it, too
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "model" / "model.safetensors"
    ).read_bytes()


def test_methods_whose_prompts_depend_on_images_say_so():
    assert {name for name in BUILT_IN if find_method(name).prompts_depend_on_images} == PER_IMAGE


@pytest.mark.parametrize("name", sorted(PER_IMAGE))
def test_prompts_that_depend_on_images_are_not_kept(name, words, load, tmp_path):
    made = trained(name, words)
    made.save(tmp_path / "model")
    tensors, config = read_artifact(tmp_path / "model")
    assert config["prepared"] is None
    assert not [key for key in tensors if key.startswith("prepared")]
    loaded = load(tmp_path / "model", tiny.tiny_tower)
    torch.testing.assert_close(loaded.posterior(FEATURES).probs, made.posterior(FEATURES).probs, rtol=0, atol=1e-6)


def test_a_stacked_model_keeps_it_for_each_member(words, load, tmp_path):
    members = {
        name: trained(name, words) for name in ("bayes-cal", "clip", "tip-adapter", "logistic-regression", "erm")
    }
    first = members["clip"]
    shared = {key: getattr(first, key) for key in ("classes", "class_words", "environments", "prototypes", "samples")}
    weights = torch.full((len(members),), 1 / len(members), dtype=torch.float64)
    made = StackedPredictor(backbone=first.backbone, members=members, weights=weights, **shared)
    made.save(tmp_path / "model")
    loaded = load(tmp_path / "model", no_tower)
    torch.testing.assert_close(loaded.posterior(FEATURES).probs, made.posterior(FEATURES).probs, rtol=0, atol=1e-6)


def test_another_number_of_samples_and_other_words_read_the_tower(words, load, tmp_path):
    made = trained("bayes-cal", words)
    made.save(tmp_path / "model")
    for samples in (0, 5):
        made.samples = samples
        blind = load(tmp_path / "model", no_tower)
        blind.samples = samples
        with pytest.raises(AssertionError, match="the text tower was read"):
            blind.posterior(FEATURES)
        loaded = load(tmp_path / "model", tiny.tiny_tower)
        loaded.samples = samples
        assert loaded.posterior(FEATURES).probs.equal(made.posterior(FEATURES).probs)
    method = loaded.bind(["house", "dog"])
    assert predict(method, loaded.params, FEATURES, 3).probs.shape == (2, 20, 2)


def test_a_method_that_has_changed_since_computes_it_anew(words, load, tmp_path, monkeypatch):
    made = trained("coop", words)
    made.save(tmp_path / "model")
    monkeypatch.setattr(find_method("coop"), "version", 99)
    changed = load(tmp_path / "model", no_tower)
    with pytest.raises(AssertionError, match="the text tower was read"):
        changed.posterior(FEATURES)


def test_what_is_the_same_is_stored_once(words, tmp_path):
    trained("erm", words).save(tmp_path / "model")  # prepares nothing: its parameters as they are
    _, config = read_artifact(tmp_path / "model")
    stored = (tmp_path / "model" / "model.safetensors").stat().st_size
    shutil.rmtree(tmp_path / "model")
    made = trained("erm", words)
    assert set(made.kept()[0]) == {f"prepared/{name}" for name in made.params}
    assert config["prepared"]["samples"] == 3
    assert stored < 1.3 * sum(value.nbytes for value in made.params.values()) + 4096


def test_any_form_of_plain_data_comes_back():
    tensor = torch.arange(3)
    value = {"a": (tensor, [1, None, "x"]), "b": {"c": tensor + 1, "d": 0.5}, "e": True}
    tensors, form = taken_apart(value)
    assert sorted(tensors) == ["a/0", "b/c"]
    again = put_together(form, tensors)
    assert again["a"][0] is tensor
    assert isinstance(again["a"], tuple)
    assert again["a"][1] == [1, None, "x"]
    assert (again["b"]["d"], again["e"]) == (0.5, True)
    assert taken_apart(tensor) == ({"": tensor}, {"tensor": ""})
    for odd in ({1: tensor}, object(), {"a/b": tensor, "a": {"b": tensor}}, float("nan")):
        with pytest.raises(NotKept):
            taken_apart(odd)
