"""A model names its method; what the name may bring in, and what is said where it brings nothing."""

import textwrap

import numpy as np
import pytest
import torch
from sklearn.base import clone

import outside_methods
from bayescal import FewShotClassifier
from bayescal.errors import ArtifactError, BayescalWarning, MethodError
from bayescal.estimator.artifact import read_artifact, write_artifact
from bayescal.estimator.predictor import Predictor
from bayescal.estimator.saved_method import restored_method, saved_method
from bayescal.methods import get_method, register_method
from bayescal.methods.hyperparameters import RENAMED, default_config
from bayescal.methods.text.coop import CoOp
from bayescal.util.references import check_defines_class
from outside_methods import Mean, installed, odd_method

MODULE = textwrap.dedent("""
    from bayescal.methods.text.zero_shot import ZeroShot

    class Mine(ZeroShot):
        name = "mine"
        title = "Mine"
""")
IMAGES = [np.full((8, 8, 3), 25 * i, dtype=np.uint8) for i in range(8)]
CLASSES, ENVIRONMENTS = ["dog", "cat"] * 4, ["photo", "photo", "sketch", "sketch"] * 2


@pytest.fixture(autouse=True)
def _nothing_from_outside():
    yield
    outside_methods.forget()


def fitted(method, cache, **options) -> FewShotClassifier:
    return FewShotClassifier(method, cache=cache, options=options).fit(IMAGES, CLASSES, ENVIRONMENTS)


def test_a_class_is_as_good_as_a_name(tmp_path):
    by_name, by_class = (fitted(method, tmp_path, epochs=1) for method in ("coop", CoOp))
    assert np.array_equal(by_name.predict_proba(IMAGES), by_class.predict_proba(IMAGES))
    for path, classifier in ((tmp_path / "a", by_name), (tmp_path / "b", by_class)):
        classifier.save(path)
        assert read_artifact(path)[1]["method"] == "coop"
        assert "method_from" not in read_artifact(path)[1]


def test_scikit_learn_clones_a_classifier_with_a_class():
    classifier = FewShotClassifier(method=Mean)
    assert clone(classifier).method is classifier.get_params()["method"] is Mean
    assert clone(classifier.set_params(method="coop")).method == "coop"


def test_options_are_refused_in_the_name_of_the_class(tmp_path):
    with pytest.raises(MethodError, match="method 'outside_methods:Mean' has no option 'epochs'"):
        fitted(Mean, tmp_path, epochs=3)


def test_a_model_of_a_module_names_the_class_and_is_loaded_by_it(tmp_path):
    with installed(tmp_path / "site", "mine-dist", {"mine_module.py": MODULE}):
        classifier = fitted("mine_module:Mine", tmp_path / "cache")
        classifier.save(tmp_path / "model")
        config = read_artifact(tmp_path / "model")[1]
        assert config["method"] == "mine_module:Mine"
        assert config["method_from"] == {"class": "mine_module:Mine", "distribution": "mine-dist 1.5"}
        loaded = FewShotClassifier.load(tmp_path / "model", cache=tmp_path / "cache")
        assert loaded.method == "mine_module:Mine"
        assert np.array_equal(loaded.predict_proba(IMAGES), classifier.predict_proba(IMAGES))
    with pytest.raises(ArtifactError) as missing:
        Predictor.load(tmp_path / "model")
    for said in ("'mine_module:Mine'", "not part of bayescal", "pip install mine-dist==1.5"):
        assert said in str(missing.value)


def test_a_model_of_a_declared_name_says_what_to_install(tmp_path):
    declared = "[bayescal.methods]\nmine = mine_module:Mine\n"
    with installed(tmp_path / "site", "mine-dist", {"mine_module.py": MODULE}, declared):
        saved = saved_method(get_method("mine_module:Mine"))
        assert saved == {
            "method": "mine",
            "method_from": {"class": "mine_module:Mine", "distribution": "mine-dist 1.5"},
        }
        assert restored_method(saved) is get_method("mine")
    with pytest.raises(ArtifactError, match=r"the method 'mine', .*mine_module:Mine.*pip install mine-dist==1\.5"):
        restored_method(saved)


def test_a_loose_file_has_to_be_named(tmp_path):
    with pytest.raises(ArtifactError, match=r"there is no module 'my_loose_file'.*PYTHONPATH=FOLDER"):
        restored_method({"method": "my_loose_file:Mine", "method_from": {"class": "x:Y", "distribution": None}})


@pytest.mark.parametrize(
    ("files", "reference"),
    [
        ({"trap.py": ""}, "trap:Mine"),  # no such class
        ({"trap.py": "Mine = 3"}, "trap:Mine"),
        ({"trap.py": "def Mine(): ..."}, "trap:Mine"),
        ({"trap.py": "class Mine: ..."}, "trap:Mine"),  # a method has a base class
        ({"trap.py": "class Outer:\n    class Mine: ..."}, "trap:Outer.Mine"),
        ({"trap/__init__.py": "", "trap/inner.py": "Mine = 3"}, "trap.inner:Mine"),
        ({"trap/__init__.py": ""}, "trap.inner:Mine"),
        ({"trap.py": "class Mine(object): ..."}, "trap:__class__"),
        ({"trap.py": "class Mine(object): ...\ndef ("}, "trap:Mine"),
        ({}, 7),
        ({"trap.py": "class Mine(object): ..."}, "trap:Mine.x; import os"),
    ],
)
def test_a_model_imports_nothing_that_does_not_define_its_class(files, reference, tmp_path, monkeypatch):
    marker = tmp_path / "ran"
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"open({str(marker)!r}, 'w').close()\n{source}")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ArtifactError):
        restored_method({"method": reference})
    assert not marker.exists()


def test_a_class_that_is_no_method_is_refused(tmp_path, monkeypatch):
    (tmp_path / "no_method.py").write_text("class Mine(dict): ...")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ArtifactError, match=r"expected a method, a subclass of bayescal\.Method"):
        restored_method({"method": "no_method:Mine"})


def test_nested_classes_and_packages_are_found_without_running_them(tmp_path, monkeypatch):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for package in ("deep", "deep/er"):
        (tmp_path / package / "__init__.py").write_text("1 / 0")
    (tmp_path / "deep/er/module.py").write_text("class Outer:\n    class Mine(dict): ...")
    monkeypatch.syspath_prepend(tmp_path)
    check_defines_class("deep.er.module:Outer.Mine", "the method", ArtifactError)


def test_a_class_that_nobody_could_import_is_not_saved(tmp_path):
    class Local(CoOp):
        name = "local"

    register_method(Local)
    with pytest.raises(ArtifactError, match=r"is defined inside a function .*move the class to the top level"):
        fitted(Local, tmp_path, epochs=1).save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    script = odd_method(__module__="__main__")
    with pytest.warns(BayescalWarning, match="defined in a script or notebook"):
        saved_method(script)


@pytest.mark.parametrize(("method", "options"), [("irm", {"lambda_irm": 7.0}), ("tip-adapter", {"alpha": 2.0})])
def test_a_model_of_before_the_renaming_is_read(method, options, tmp_path):
    if method == "irm":
        options = {**options, "epochs": 1}
    classifier = fitted(method, tmp_path / "cache", **options)
    classifier.save(tmp_path / "model")
    tensors, config = read_artifact(tmp_path / "model")
    back = {new: old for old, new in RENAMED[method].items()}
    config["config"] = {back.get(name, name): value for name, value in config["config"].items()}
    assert set(back) & set(config["config"]) == set()
    write_artifact(tmp_path / "old", tensors, {k: v for k, v in config.items() if k not in ("format", "files")})
    loaded = FewShotClassifier.load(tmp_path / "old", cache=tmp_path / "cache")
    assert loaded.options == classifier.predictor_.config
    assert np.array_equal(loaded.predict_proba(IMAGES), classifier.predict_proba(IMAGES))


@pytest.mark.parametrize("method", ["coop", CoOp])
def test_a_predictor_takes_a_name_or_a_class(method, mini):
    config = default_config(CoOp.space, mini.defaults)
    params = {"context": torch.zeros(1, mini.defaults.n_context, mini.text.width)}
    prototypes = torch.zeros(1, mini.dim)
    names = {"classes": ["a", "b"], "class_words": ("dog", "cat"), "environments": ["x"]}
    own = {"method": method, "config": config, "seeds": [1], "params": params, "trained_environments": ("photo",)}
    assert type(Predictor(backbone=mini, prototypes=prototypes, **names, **own).bound) is CoOp
