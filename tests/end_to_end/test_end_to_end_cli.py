"""`bayescal fit --end-to-end`, and the other commands on its model."""

import json

import pytest
from whole_models import MODEL

from bayescal import FewShotClassifier
from bayescal.end_to_end import algorithm_names
from bayescal.end_to_end import train as training
from command_line import _own_cache, left_in, make_shapes, refused, run

__all__ = ["_own_cache"]
pytestmark = pytest.mark.xdist_group("command-line")

TINY = ("--end-to-end", "--vision", MODEL, "--set", "image_size=32", "--set", "epochs=1", "--set", "batch_size=8")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp("shapes") / "data", n=5, environments=("photo", "sketch", "night"))


@pytest.fixture(scope="module")
def model(shapes, tmp_path_factory):
    """A model and what `fit` said about it."""
    path = tmp_path_factory.mktemp("whole") / "model"
    result = run(
        "fit", shapes, "-o", path, *TINY, "--method", "vrex", "--set", "lambda_variance=2", "--leave-out", "night"
    )
    assert result.code == 0, result.err
    return path, result.out


def test_fit_says_what_was_found_trained_and_what_to_do_next(model):
    path, said = model
    assert "Found 20 images of 2 classes in 2 environments; night left out (10 images)." in said
    assert f"(vrex on {MODEL} from random weights, float32; epoch 1 of 1)" in said
    assert "Validation accuracy: " in said
    assert "Threshold: " in said
    assert said.strip().splitlines()[-1].strip().startswith("bayescal predict ")
    assert left_in(path.parent) == ["model"]
    config = json.loads((path / "config.json").read_text())
    assert (config["config"]["lambda_variance"], config["environments"]) == (2, ["photo", "sketch"])


def test_predict_and_evaluate_read_the_model(model, shapes, tmp_path):
    path, _ = model
    answers = run("predict", path, shapes / "night", tmp_path / "nowhere.png", "--json").json
    assert [answer["status"] for answer in answers] == ["ok"] * 10 + ["unreadable"]
    assert {answer["environment"] for answer in answers[:-1]} <= {"photo", "sketch"}
    assert all(sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-5) for answer in answers[:-1])
    result = run("evaluate", path, shapes, "--json", "-o", tmp_path / "evaluation")
    assert result.code == 0, result.err
    assert (result.json["images"], result.json["backbone"], result.json["method"]) == (30, MODEL, "vrex")
    assert {group["name"]: group["seen"] for group in result.json["environments"]} == {
        "photo": True,
        "sketch": True,
        "night": False,
    }
    right = [answer["class"] == answer["image"].split("/")[-2] for answer in answers[:-1]]
    night = next(group for group in result.json["environments"] if group["name"] == "night")
    assert night["accuracy"] == pytest.approx(sum(right) / 10)


def test_the_classifier_reads_the_model_too(model, shapes):
    classifier = FewShotClassifier.load(model[0])
    images = [str(path) for path in sorted((shapes / "night" / "dog").iterdir())]
    answers = run("predict", model[0], *images, "--json").json
    assert classifier.predict(images).tolist() == [answer["class"] for answer in answers]


def test_the_same_command_gives_the_same_model_and_quiet_is_quiet(shapes, tmp_path):
    for name in ("a", "b"):
        result = run("fit", shapes, "-o", tmp_path / name, *TINY, "--quiet", "--calibrate", "--seed", 3)
        assert (result.code, result.out) == (0, ""), result.err
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]


def test_an_interrupted_fit_keeps_its_checkpoint_and_continues(shapes, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    command = ("fit", shapes, "-o", tmp_path / "model", *TINY, "--set", "epochs=2", "--quiet")
    real, calls = training.accuracy, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(training, "accuracy", interrupted)
    result = run(*command)
    assert (result.code, left_in(tmp_path)) == (130, [".model.checkpoints"])
    assert "the same command continues" in result.err
    assert run(*command).code == 0
    assert left_in(tmp_path) == ["model"]
    assert len(calls) == 3  # epoch 1, epoch 2 until the interruption, epoch 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--method", "jigsaw"), ("jigsaw", "--end-to-end --vision resnet50")),
        (("--vision", "resnet50"), ("--vision", "add that option")),
        (("--end-to-end",), ("--vision resnet50",)),
        (("--end-to-end", "--vision", "resnet5O"), ("'resnet5O'", "Did you mean", "'resnet50'")),
        ((*TINY, "--method", "bayes-cal"), ("'bayes-cal' does not train an image model", "erm, irm")),
        ((*TINY, "--method", "gruopdro"), ("is unknown", "Did you mean 'groupdro'?")),
        ((*TINY, "--set", "lambda_irm=1"), ("method 'erm' has no option 'lambda_irm'",)),
        ((*TINY, "--set", "image_size=big"), ("image_size", "whole number")),
        ((*TINY, "--set", "precision=float16"), ("precision 'float16'",)),
        ((*TINY, "--set", "epochs=0"), ("epochs (0)",)),
        ((*TINY, "--members", "3"), ("--members has no meaning with --end-to-end",)),
        ((*TINY, "--backbone", "RN50:openai"), ("--backbone has no meaning",)),
        ((*TINY, "--vision-weights", "nowhere.pth"), ("there is no weights file nowhere.pth",)),
        ((*TINY, "--device", "cuda:99"), ("cuda:99",)),
    ],
)
def test_what_cannot_work_is_refused_with_a_reason(arguments, said, shapes, tmp_path):
    refused(run("fit", shapes, "-o", tmp_path / "model", *arguments), *said)
    assert left_in(tmp_path) == []


def test_jigsaw_trains_from_the_command_line_and_is_listed(shapes, tmp_path, monkeypatch):
    result = run("fit", shapes, "-o", tmp_path / "model", *TINY, "--method", "jigsaw", "--set", "permutations=4")
    assert result.code == 0, result.err
    assert "jigsaw on" in result.out
    monkeypatch.setenv("COLUMNS", "300")
    listed = run("methods").out
    assert "Carlucci" in listed
    assert all(name in listed for name in algorithm_names())
