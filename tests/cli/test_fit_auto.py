"""`bayescal fit` by default: what to expect elsewhere, why this model, and what `predict` and `evaluate` make of it."""

import json

import pytest

from bayescal.estimator import members
from command_line import make_shapes, refused, run

pytestmark = pytest.mark.xdist_group("command-line")


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("auto")
    data = make_shapes(folder / "data", n=6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "STEPS", 5)
        done = run("fit", data, "-o", folder / "model", "--cache", folder / "cache")
    assert done.code == 0, done.err
    return data, folder, done


def test_it_says_what_to_expect_and_why(learned):
    _, _, done = learned
    assert "Mixed 11 models learned from 24 images" in done.out
    assert "In an environment it has not seen, expect about" in done.out
    assert "Hardest when left out:" in done.out
    assert "Why this model: each member's weight, and how it did on left-out environments." in done.out
    assert "Bayes-CAL, β = 0.3" in done.out


def test_predict_has_familiarity(learned):
    data, folder, _ = learned
    image = next(data.rglob("*.png"))
    (answer,) = json.loads(run("predict", folder / "model", image, "--json", "--cache", folder / "cache").out)
    assert answer["unfamiliar"] is False
    assert -5 < answer["familiarity"] < 5
    assert answer["disagreement"] >= 0
    assert "unfamiliar" in run("predict", folder / "model", image, "--csv").out.splitlines()[0]


def test_evaluate_shows_the_estimate_beside_the_truth(learned, tmp_path):
    _, folder, _ = learned
    elsewhere = make_shapes(tmp_path / "new", n=3, environments=("fog",))
    done = run("evaluate", folder / "model", elsewhere, "-o", tmp_path / "out", "--cache", folder / "cache")
    assert done.code == 0, done.err
    assert "Expected when it was learned: In an environment it has not seen" in done.out
    assert "Found in unseen environments: fog" in done.out
    record = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert record["method"] == "auto"
    assert 0 <= record["expected"]["low"] <= record["expected"]["high"] <= 1
    assert len(record["members"]) == 11


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "epochs=3"], "auto mixes several methods; choose one with --method"),
        (["--trials", "3"], "trials is for a single method"),
        (["--val-shots", "3"], "val_shots is for a single method"),
    ],
)
def test_what_is_for_a_single_method_is_refused(learned, tmp_path, arguments, said):
    data, _, _ = learned
    refused(run("fit", data, "-o", tmp_path / "model", *arguments), said)
