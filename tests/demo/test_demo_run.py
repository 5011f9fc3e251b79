"""The demo: what is compared is what is said, nothing is chosen on a test, and README says what came out."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from bayescal import FewShotClassifier
from bayescal.backbones import load_backbone
from bayescal.data.synthetic import lying_cue, new_place
from bayescal.demo import compare, run, scenes, words
from bayescal.demo.compare import Outcome
from bayescal.demo.scenes import AS_TRAINED, FIT, LYING_CUE, NEW_PLACE, REVERSED
from bayescal.errors import DataError
from bayescal.estimator import members
from bayescal.evaluation import metrics
from bayescal.features import FeatureBank
from command_line import _own_cache

__all__ = ["_own_cache"]
pytestmark = pytest.mark.xdist_group("demo")
ROOT = Path(__file__).parents[2]
PARTS = (("first_wall", "train", 4, 0), ("second_wall", "train", 4, 1), ("second_wall", "test", 2, 1))


@pytest.fixture(scope="module")
def _small(_own_cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_place, "POOL", 2)
        patch.setattr(new_place, "TEST", 2)
        patch.setattr(lying_cue, "PARTS", (*PARTS, ("third_wall", "test", 3, 2)))
        patch.setattr(scenes, "SYMBOL_SHOTS", 3)
        patch.setattr(scenes, "WALL_SHOTS", 4)
        patch.setattr(members, "STEPS", 5)
        patch.setattr(compare, "TRIED", ({"epochs": 2}, {"epochs": 3}))
        yield


@pytest.fixture(scope="module")
def backbone():
    mini = load_backbone("mini")
    posterior = replace(mini.defaults.posterior, epochs=2)
    return replace(mini, defaults=replace(mini.defaults, epochs=2, posterior=posterior))


@pytest.fixture(scope="module")
def questions(_small, backbone, tmp_path_factory):
    return scenes.prepare(tmp_path_factory.mktemp("demo"), backbone)


@pytest.fixture(scope="module")
def found(questions, backbone):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayescal.estimator.classifier.load_backbone", lambda *_: backbone)
        return {question.key: compare.compare(question, backbone, (1, 2), lambda text: None) for question in questions}


def test_methods_learn_from_the_same_images_and_never_from_a_test(questions):
    for question in questions:
        for seed in (1, 2):
            scene = question.scene(seed)
            train, val = scene.split(seed)
            tested = set(np.concatenate(list(scene.tests.values())).tolist())
            assert not {*train.tolist(), *val.tolist()} & tested
            assert not set(train.tolist()) & set(val.tolist())
            assert {scene.manifest.environments[e] for e in scene.manifest.environment_ids[train]} == set(scene.learned)
    walls = questions[1]
    assert walls.scene(1) is not walls.scene(2)  # seeds take the two rules in turn
    assert (walls.tests, walls.chance) == ((AS_TRAINED, REVERSED), 0.5)


def test_the_run_that_validates_best_is_chosen_for_every_seed(questions, backbone):
    question = questions[1]
    chosen = compare.train(question, "coop", backbone, (1, 2))
    assert sorted(chosen) == [1, 2]
    assert [config["epochs"] for config in compare.configs("coop", backbone)] == [2, 3]
    assert compare.configs("clip", backbone) == compare.configs("clip", backbone)[:1]  # nothing to try
    for seed, run_ in chosen.items():
        assert run_.seed == seed


def test_scores_are_those_of_the_chosen_run(questions, backbone, found):
    question = questions[1]
    outcomes, _ = found[LYING_CUE]
    for seed, result in compare.train(question, "cal", backbone, (1, 2)).items():
        scene = question.scene(seed)
        features, labels = scene.features(scene.tests[REVERSED])
        probs = result.predict(scene.problem, features, samples=20, checkpoint="val").probs
        assert outcomes[REVERSED]["cal"].accuracy[seed - 1] == pytest.approx(float(metrics.accuracy(probs, labels)[0]))


def test_fit_is_the_classifier_as_it_comes(questions, found):
    """The seeds of a scene are trained as one stack; each is what `fit` makes of its labelled images by itself."""
    outcomes, fitted = found[NEW_PLACE]
    question = questions[0]
    scene, manifest = question.scenes[0], question.scenes[0].manifest
    labelled = np.sort(np.concatenate(scene.split(1)))
    alone = FewShotClassifier(seed=1).fit(manifest.select(labelled))
    rows = scene.tests[question.headline]
    features = scene.features(rows)[0]
    expected = alone.predictor_.details(features)
    found_of = fitted[1].details(features)
    np.testing.assert_allclose(found_of.probabilities, expected.probabilities, atol=1e-3)
    assert fitted[1].threshold == pytest.approx(alone.threshold_, abs=1e-3)
    truth = np.array(manifest.classes)[manifest.class_ids[rows]]
    (by_method,) = outcomes.values()
    assert by_method[FIT].accuracy[0] == pytest.approx((found_of.labels == truth).mean())
    assert by_method[FIT].title == "fit (default)"
    assert list(by_method) == ["clip", "coop", "cal", "bayes-cal", FIT]


def test_three_answers_are_real_ones(questions, found):
    scene, model = questions[0].scenes[0], found[NEW_PLACE][1][1]
    row = run.three_answers(scene, model, questions[0].headline)
    assert len(row.images) == len(row.captions) == 3
    details = model.details(FeatureBank(model.backbone).encode(row.images).features)
    for i, caption in enumerate(row.captions):
        answer, confidence, place, truth = re.fullmatch(
            r"(\w+) \((\d+) %\), most like ([a-z ]+); truth: (\w+)", caption
        ).groups()
        assert answer == ("unsure" if details.unsure[i] else details.labels[i])
        assert float(confidence) == pytest.approx(100 * details.confidence[i], abs=0.6)
        assert place == details.environment[i].replace("_", " ")
        assert truth in scene.manifest.classes


@pytest.mark.usefixtures("_small")
def test_what_is_said_and_left_behind(backbone, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "load_backbone", lambda name: backbone)
    monkeypatch.setattr("bayescal.estimator.classifier.load_backbone", lambda *_: backbone)
    threads = torch.get_num_threads()
    console = Console(width=100, record=True, file=io.StringIO())
    output = tmp_path / "out"
    run.run_demo(output, seeds=(1,), console=console)
    assert torch.get_num_threads() == threads
    said = " ".join(console.export_text().split())
    assert "nan" not in said.split()
    assert "± nan" not in said
    content = json.loads((output / "results.json").read_text(encoding="utf-8"))
    for question in content["questions"].values():
        assert " ".join(question["sentence"].split()) in said
    assert sorted(path.name for path in output.iterdir()) == sorted(run.WRITTEN)
    assert FewShotClassifier.load(output / "model").classes_.tolist() == sorted(new_place.FAMILIES)
    with pytest.raises(DataError, match="exists already"):
        run.run_demo(output, seeds=(1,), console=console)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(DataError, match="something else than a demo"):
        run.run_demo(tmp_path / "mine", force=True)


# --- words -----------------------------------------------------------------------------------------------------------


def of(method: str, *accuracy: float, selective: tuple[float, ...] = (), coverage: tuple[float, ...] = ()) -> Outcome:
    return Outcome(method, method, accuracy, selective, coverage)


def test_sentences_follow_the_numbers():
    place = {
        "clip": of("clip", 0.2, 0.2, 0.2),
        "coop": of("coop", 0.5, 0.52, 0.51),
        "cal": of("cal", 0.6, 0.62, 0.61),
        "bayes-cal": of("bayes-cal", 0.8, 0.82, 0.81),
        FIT: of(FIT, 0.7, 0.7, 0.7, selective=(0.9, 0.9, 0.9), coverage=(0.5, 0.5, 0.5)),
    }
    said = words.new_place({"brick, never seen": place}, 0.2, 12)
    assert "No word tells" in said
    assert "bayes-cal reads 81 %" in said
    assert "raises its accuracy: 70 % of all, 90 % of the 50 %" in said
    assert said.endswith("To take from it: a few labels in several styles teach what no word says.")
    worse = {**place, "bayes-cal": of("bayes-cal", 0.4, 0.42, 0.41), "clip": of("clip", 0.5, 0.5, 0.5)}
    said = words.new_place({"brick, never seen": worse}, 0.2, 12)
    assert "already reads 50 %" in said
    assert "Bayes-CAL reads 41 %, clearly behind fit (−29.0 ± 0.6 points)" in said
    known = {**place, "clip": of("clip", 0.8, 0.8, 0.8)}
    assert words.new_place({"brick, never seen": known}, 0.2, 12).endswith("little that the words do not say.")


def test_one_seed_has_no_error():
    said = words.against(of("ours", 0.5), of("theirs", 0.75))
    assert said == "behind theirs on this one seed (−25.0 points)"


def test_who_falls_for_the_colour():
    names = ("clip", "erm", "coop", "cal", "bayes-cal", FIT)
    before = {name: of(name, 0.9, 0.91) for name in names}
    after = {name: of(name, 0.88, 0.9) for name in names} | {"erm": of("erm", 0.5, 0.51)}
    said = words.lying_cue({AS_TRAINED: before, REVERSED: after})
    assert said.startswith("With the paints exchanged, erm (90 % → 50 %) falls for the colour; clip")
    assert "bayes-cal (90 % → 89 %) and fit (90 % → 89 %) hold." in said
    assert "To take from it: what starts from the class names holds" in said
    all_fall = {name: of(name, 0.5, 0.51) for name in names}
    said = words.lying_cue({AS_TRAINED: before, REVERSED: all_fall})
    assert "fall for the colour. Bayes-CAL is level with" in said
    assert "hold" not in said
    assert said.endswith("try the model on images without it before you trust it.")
    assert words.lying_cue({AS_TRAINED: before, REVERSED: before}).endswith("misleads none of them.")


# --- what is committed -----------------------------------------------------------------------------------------------


def committed() -> dict:
    return json.loads((ROOT / "docs" / "pictures" / "demo.json").read_text(encoding="utf-8"))


def outcomes_of(question: dict) -> compare.Outcomes:
    return {
        test: {
            name: Outcome(**{k: tuple(v) if isinstance(v, list) else v for k, v in own.items()})
            for name, own in methods.items()
        }
        for test, methods in question["tests"].items()
    }


def test_committed_sentences_are_those_of_the_committed_numbers():
    content = committed()
    place, cue = (content["questions"][key] for key in (NEW_PLACE, LYING_CUE))
    assert place["sentence"] == words.new_place(outcomes_of(place), place["chance"], place["labelled"])
    assert cue["sentence"] == words.lying_cue(outcomes_of(cue))
    for question in (place, cue):
        for methods in question["tests"].values():
            assert {len(own["accuracy"]) for own in methods.values()} == {len(content["seeds"])}


def test_readme_says_what_came_out():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for question in committed()["questions"].values():
        assert f"**{question['title']}.** {question['sentence']}" in readme
