"""What a method says it can do is what decides how it is treated, whatever it is called and made of."""

import random

import numpy as np
import pytest
import torch

import outside_methods
import tiny
from bayescal import FewShotClassifier
from bayescal.benchmark.experiments import base_to_new, instances
from bayescal.benchmark.options import Options
from bayescal.benchmark.runner import PlannedRun, portable
from bayescal.benchmark.search_ranges import search_ranges
from bayescal.benchmark.study import Trial
from bayescal.benchmark.variants import MethodVariant, get_variant
from bayescal.cli import predictions
from bayescal.data.datasets import get_dataset
from bayescal.end_to_end.algorithms import algorithm_names, get_algorithm
from bayescal.errors import BayescalError, DataError, MethodError
from bayescal.export.answering import check_exportable
from bayescal.methods import find_method, get_method, method_names, register_method
from bayescal.methods.contract import predict
from bayescal.methods.domain_generalization.erm import ERM
from bayescal.methods.hyperparameters import RENAMED, default_config, number, setting
from bayescal.methods.parameter_count import learned_numbers
from bayescal.methods.registry import BUILT_IN
from bayescal.methods.text.bayes_cal import BayesCAL
from bayescal.methods.text.cal import CAL
from bayescal.methods.text.coop import CoOp
from bayescal.methods.text.zero_shot import ZeroShot
from bayescal.training.loss_landscape import learned_means
from bayescal.training.stack import train_runs
from outside_methods import Mean, odd_method

TOO_LONG = " ".join(["word"] * 100)


@pytest.fixture(autouse=True)
def _nothing_from_outside():
    yield
    outside_methods.forget()


def able(attribute: str) -> set[str]:
    return {name for name in BUILT_IN if getattr(find_method(name), attribute)}


def test_what_the_packages_methods_say_they_are():
    prompts = {"coop", "cal", "bayes-cal", "cocoop", "dplclip"}
    templates = {
        "clip",
        "clip-adapter",
        "tip-adapter",
        "tip-adapter-f",
        "logistic-regression",
        "taskres",
        "bayes-taskres",
    }
    cal = {"cal", "bayes-cal", "cal-lv", "bayes-cal-lv", "cal-w2v", "bayes-cal-w2v"}
    assert set(BUILT_IN) - able("trained_by_gradient") == {"clip", "tip-adapter", "logistic-regression"}
    assert able("has_posterior") == {name for name in cal if name.startswith("bayes")} | {"bayes-taskres"}
    assert able("uses_text") == prompts | templates
    assert able("reads_environment_names") == {"cal", "bayes-cal"}
    assert able("reads_new_names") == prompts | {"clip", "clip-adapter", "cal-w2v", "bayes-cal-w2v"}
    assert able("prompts_depend_on_images") == {"cocoop", "dplclip"}
    assert able("answers_depend_on_batch") == {"dplclip"}
    assert able("alignment_terms") == cal
    assert able("file_options") == {"cal-w2v", "bayes-cal-w2v"}
    assert set(BUILT_IN) - able("on_features") == {"jigsaw"}
    assert able("end_to_end") == set(algorithm_names())
    assert {"erm", "stable", "jigsaw"} <= able("end_to_end")
    assert "visual-mlp" not in able("end_to_end")


@pytest.mark.parametrize("name", [name for name in method_names() if not find_method(name).file_options])
def test_a_posterior_is_what_makes_samples_differ(name):
    """Predictions from one sample and from two differ where, and only where, the method says it has a posterior."""
    problem, method = tiny.tiny_problem(), get_method(name)
    config = default_config(method.space, tiny.Defaults, **({"epochs": 1} if method.trained_by_gradient else {}))
    result = train_runs(name, problem, [tiny.tiny_run(config, 1)])[0]
    mean, one, two = (
        predict(result.bind(problem), result.params, problem.features[:9], samples).probs for samples in (0, 1, 2)
    )
    assert torch.equal(one, two) is torch.equal(mean, one) is not method.has_posterior


@pytest.mark.parametrize("name", sorted(able("alignment_terms")))
def test_scales_are_what_has_a_gaussian(name, tmp_path):
    """A parameter is a scale if the posterior mean does not depend on it."""
    problem, method = tiny.tiny_problem(), get_method(name)
    files = {option: tiny.tiny_word_vectors(tmp_path) for option in method.file_options}
    config = default_config(method.space, tiny.Defaults, epochs=1, **files)
    result = train_runs(name, problem, [tiny.tiny_run(config, 1)])[0]
    bound = result.bind(problem)
    scales = bound.scale_parameters()
    assert bool(scales) is method.has_posterior
    assert set(scales) <= set(result.params)
    moved = {n: v + 1.0 if n in scales else v for n, v in result.params.items()}
    before, after = (predict(bound, params, problem.features[:9]).probs for params in (result.params, moved))
    assert torch.equal(before, after)


# --- training by gradient ------------------------------------------------------------------------------------------


def test_without_gradient_there_are_no_epochs_and_no_views(mini, tmp_path):
    """An option that is called "epochs" does not make a method one that is trained."""
    odd = odd_method(Mean, space={"epochs": setting(7)})
    assert odd.epochs_of({"epochs": 7}) == 0
    told = []
    train_runs(odd, tiny.tiny_problem(), [tiny.tiny_run({"epochs": 7}, 1)], progress=told.append)
    assert sum(told) == 0
    images = [np.full((8, 8, 3), 25 * i, dtype=np.uint8) for i in range(8)]
    fitted = FewShotClassifier(odd, views=3, cache=tmp_path).fit(images, ["dog", "cat"] * 4, ["a", "a", "b", "b"] * 2)
    assert fitted.record_["views"] == 0


def test_epochs_of_a_trained_method_are_those_of_its_config():
    told = []
    config = default_config(CoOp.space, tiny.Defaults, epochs=2)
    train_runs(odd_method(), tiny.tiny_problem(), [tiny.tiny_run(config, 1)], progress=told.append)
    assert sum(told) == CoOp.epochs_of(config) == 2


# --- names -----------------------------------------------------------------------------------------------------------


def fit(method, classes=("dog", "cat"), environments=("photo", "sketch"), **options) -> None:
    images = [np.full((8, 8, 3), 25 * i, dtype=np.uint8) for i in range(8)]
    FewShotClassifier(method, options=options).fit(images, [*classes] * 4, [environments[i // 4] for i in range(8)])


def test_names_are_checked_where_the_text_tower_reads_them(monkeypatch):
    checked = []
    monkeypatch.setattr(
        "bayescal.estimator.fitting.check_prompts", lambda backbone, names, n, *kind: checked.append((names, n))
    )
    fit(odd_method(Mean, uses_text=True, space={}))
    fit(odd_method(Mean, uses_text=False, space={"template": setting(""), "n_context": setting(4)}))
    both = odd_method(Mean, uses_text=True, reads_environment_names=True, space={"n_context": setting(4)})
    fit(both, n_context=2)
    fit(both, environments=("photo", "photo"))  # with one environment there is nothing to tell apart
    classes, environments = ("cat", "dog"), ("photo", "sketch")
    assert checked == [(classes, None), (classes, 2), (environments, 2), (classes, None)]


def test_names_that_are_too_long_are_refused_before_anything_is_encoded(monkeypatch):
    monkeypatch.setattr("bayescal.estimator.fitting.encode", lambda *given: pytest.fail("encoded"))
    with pytest.raises(DataError, match="the text tower has room for"):
        fit(odd_method(), classes=("dog", TOO_LONG))


class _Bench:
    """As much of a bench as a list of methods needs."""

    def __init__(self, *methods: str, **options):
        self.options, self.notes = Options(("pacs",), methods=methods, **options), []

    lacks_file = instances.Bench.lacks_file


def test_methods_that_read_new_names_are_kept_for_new_names():
    register_method(odd_method(name="reader", reads_new_names=True))
    register_method(odd_method(name="bayes-cal-like", reads_new_names=False, __qualname__="Like"))
    bench = _Bench("coop", "reader", "bayes-cal-like", "erm")
    assert base_to_new.names(bench) == ["coop", "reader"]
    assert bench.notes == ["left out, since they know no names but those of training: bayes-cal-like, erm"]


# --- answers that depend on each other -------------------------------------------------------------------------------


class Centred(Mean):
    """Images are compared with the classes after their own mean has been taken away."""

    answers_depend_on_batch = True

    def logits(self, prepared, features, groups=None):
        return super().logits(prepared, features - features.mean(-2, keepdim=True), groups)


@pytest.fixture(scope="module")
def centred(mini, tmp_path_factory):
    method = odd_method(Centred, space={"predict_batch": setting(3)})
    images = [np.full((8, 8, 3), 20 * i, dtype=np.uint8) for i in range(12)]
    classifier = FewShotClassifier(method, cache=tmp_path_factory.mktemp("cache"))
    return classifier.fit(images, ["dog", "cat"] * 6, ["a"] * 6 + ["b"] * 6).predictor_


def test_images_that_answers_depend_on_are_answered_together(centred, monkeypatch):
    """However few images are answered at once otherwise, and whatever the options of a method are called."""
    monkeypatch.setattr(predictions, "LARGEST", 5)
    features = torch.randn(12, centred.backbone.dim, generator=torch.Generator().manual_seed(0))
    together, alone = centred.details(features), centred.details(features[:5])
    assert not np.allclose(together.probabilities[:5], alone.probabilities)
    assert np.array_equal(predictions.details_in_parts(centred, features).probabilities, together.probabilities)
    monkeypatch.setattr(Centred, "answers_depend_on_batch", False)
    assert np.array_equal(predictions.details_in_parts(centred, features).probabilities[:5], alone.probabilities)


def test_answers_that_depend_on_each_other_are_not_exported(centred):
    with pytest.raises(BayescalError, match="Odd cannot be exported: its answer to an image depends on the images gi"):
        check_exportable(centred)


# --- search ----------------------------------------------------------------------------------------------------------


def test_a_data_sets_ranges_are_for_methods_with_alignment_terms():
    pacs, ranges = get_dataset("pacs"), search_ranges("pacs")
    register_method(odd_method(alignment_terms=True, space={**CoOp.space, "lambda_irm": number(0.1)}))
    register_method(odd_method(CAL, name="cal-like", alignment_terms=False, __qualname__="Like"))
    assert get_variant("odd").search_space(pacs)["lambda_irm"] == ranges["lambda_irm"]
    assert get_variant("odd").search_space(pacs)["position"] == ranges["position"]
    assert get_variant("cal-like").search_space(pacs)["lambda_irm"] == CAL.space["lambda_irm"]
    assert get_variant("cal").search_space(pacs)["lambda_irm"] == ranges["lambda_irm"]


def test_a_variant_is_a_name_a_class_or_a_reference():
    assert get_variant(CoOp) == get_variant("coop") == get_variant("bayescal.methods.text.coop:CoOp")
    assert get_variant(Mean).method == get_variant(Mean).key == "outside_methods:Mean"
    assert get_variant(Mean).title == "Mean"


def test_the_instances_get_the_weights_they_have():
    fixed = {variant.method: variant.fixed for variant in instances.variants(_Bench(*method_names(), word_vectors="w"))}
    assert {name for name, values in fixed.items() if "lambda_irm" in values} == {
        "bayes-cal", "bayes-cal-lv", "bayes-cal-w2v"
    }  # fmt: skip


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_count_by_name_wherever_they_lie():
    odd = odd_method(file_options=("table",), space={**CoOp.space, "table": setting(""), "word_vectors": setting("")})
    register_method(odd)
    config = {"table": "/some/where/table.csv", "word_vectors": "/a/b"}
    assert portable("odd", config) == {"table": "table.csv", "word_vectors": "/a/b"}  # an option that is no file


def test_a_file_that_is_given_goes_to_the_methods_that_ask_for_it():
    wants = {"file_options": ("word_vectors",), "space": {**CoOp.space, "word_vectors": setting("")}}
    register_method(odd_method(name="plain-name", **wants))
    register_method(odd_method(name="w2v-by-name", __qualname__="ByName"))
    without, given = _Bench(), _Bench(word_vectors="words.npz")
    assert without.lacks_file("plain-name")
    assert not given.lacks_file("plain-name")
    assert not without.lacks_file("w2v-by-name")
    assert learned_numbers("w2v-by-name") == learned_numbers("coop") == learned_numbers("plain-name")
    other = odd_method(name="other", file_options=("table",), space={**CoOp.space, "table": setting("")})
    assert learned_numbers(other) is None  # nobody knows what to write into such a file


# --- scales, image models --------------------------------------------------------------------------------------------


def test_scales_are_no_part_of_a_landscape_whatever_they_are_called():
    class Spread(BayesCAL):
        """Bayes-CAL whose first half is called a scale: none of its names ends in .rho."""

        name = "spread"

        def scale_parameters(self):
            return ("class.context",)

    problem = tiny.tiny_problem()
    config = default_config(Spread.space, tiny.Defaults, epochs=1)
    result = train_runs(Spread, problem, [tiny.tiny_run(config, 1)], trajectory=True)[0]
    names = learned_means(problem, result)
    assert "class.context" not in names
    assert {"class.rho", "environment.rho"} <= set(names)
    assert result.bind(problem).decays("class.rho")
    assert not result.bind(problem).decays("class.context")


def test_an_algorithm_from_outside_trains_an_image_model_if_it_says_so():
    odd = odd_method(ERM)
    assert get_algorithm(odd) is odd
    for refused in (odd_method(ERM, end_to_end=False), ZeroShot):
        with pytest.raises(MethodError, match="does not train an image model"):
            get_algorithm(refused)


# --- names that were others before -----------------------------------------------------------------------------------


def test_every_old_name_is_that_of_a_parameter_and_seeds_its_draws():
    for method, table in RENAMED.items():
        space = find_method(method).space
        assert set(table.values()) <= set(space)
        assert not set(table) & set(space)
        for old, new in table.items():
            assert space[new].drawn_as == (old if space[new].draw is not None else "")
    for method in BUILT_IN:
        drawn_as = {p.drawn_as for p in find_method(method).space.values() if p.drawn_as}
        assert drawn_as <= set(RENAMED.get(method, {}))


def test_the_weight_of_a_term_is_called_after_it():
    """Every λ has a term of the objective; `beta`, which is 1 for the exact bound, is no such weight."""
    problem = tiny.tiny_problem()
    for name in method_names():
        method = get_method(name)
        weights = {option.removeprefix("lambda_") for option in method.space if option.startswith("lambda_")}
        if not weights or method.file_options or name == "stable":  # its λ is in the inner problem
            continue
        config = default_config(method.space, tiny.Defaults, epochs=1, **{f"lambda_{term}": 0.1 for term in weights})
        terms = set(train_runs(name, problem, [tiny.tiny_run(config, 1)])[0].curves)
        assert weights <= terms, name


def planned(prepared, method: str, **config) -> PlannedRun:
    space = get_method(method).space
    trial = Trial(0, default_config(space, tiny.Defaults, **config))
    return PlannedRun(prepared, MethodVariant(method, method, method), prepared.folds[0], 1, trial)


def test_the_key_of_a_run_is_what_it_was_before_its_options_were_renamed(prepared, monkeypatch):
    new = planned(prepared, "irm", lambda_irm=2.0).key
    old_space = {RENAMED_BACK.get(name, name): param for name, param in find_method("irm").space.items()}
    monkeypatch.setattr(find_method("irm"), "space", old_space)
    monkeypatch.setattr("bayescal.methods.hyperparameters.RENAMED", {})
    assert planned(prepared, "irm", irm_lambda=2.0).key == new


RENAMED_BACK = {new: old for old, new in RENAMED["irm"].items()}


def test_another_version_of_a_method_is_another_run(prepared, monkeypatch):
    before = planned(prepared, "coop").key
    monkeypatch.setattr(CoOp, "version", 2)
    assert planned(prepared, "coop").key != before


def test_draws_of_a_renamed_option_are_those_of_its_old_name():
    from bayescal.methods.hyperparameters import draw_config

    for trial in range(3):
        drawn = draw_config(find_method("irm").space, tiny.Defaults, trial)
        assert drawn["lambda_irm"] == 10 ** random.Random(f"{trial}/irm_lambda").uniform(-1, 5)
