"""The page on an exported model: it answers, keeps labels and says what to label next; what it cannot do it says."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from exporting import drawn, stacked
from PIL import Image

from bayescal.evaluation.expected import ExpectedAccuracy
from bayescal.export import export_model
from bayescal.export.reading import ANSWERS, ExportedModel
from bayescal.serving.app import create_app
from bayescal.serving.desk import Desk
from bayescal.serving.engine import open_engine
from bayescal.serving.exported_predictor import ExportedPredictor
from bayescal.serving.later import LaterDesk
from bayescal.serving.settings import Settings
from command_line import refused as command_refused
from command_line import run
from servers import Client, picture, refused

pytestmark = pytest.mark.xdist_group("exported")
BYTES = {"Content-Type": "application/octet-stream"}
CHECKED = {
    "on": "environments", "images": 4, "accuracy": 0.75, "ece": 0.1, "coverage": 1.0, "selective_accuracy": 0.75,
    "environments": [], "classes": [], "reliability": {"count": [], "confidence": [], "accuracy": []},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Small, with all that a model can have."""
    path, predictor = tmp_path_factory.mktemp("page") / "exported", stacked()
    predictor.expected = ExpectedAccuracy(0.7, 0.5, 0.9, 0.9, 0.95)
    predictor.record = {"checked": CHECKED}
    export_model(predictor, path)
    return path


def page_of(folder: Path, labels: Path) -> Client:
    """As `bayescal serve` makes it."""
    engine = open_engine(folder)

    def make() -> Desk:
        desk = Desk(lambda _: pytest.fail("nothing was taught"), local=True, labels=labels)
        desk.open(folder, ExportedPredictor(engine))
        return desk

    return Client(create_app(engine, Settings(), LaterDesk(make)))


def add(page: Client, number: int) -> str:
    content = picture(tuple(int(v) for v in np.random.default_rng(number).integers(0, 256, 3)), (9, 7))
    answer = page.post("/page/images", params={"name": f"{number}.png"}, content=content, headers=BYTES)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def test_features_are_what_the_answers_are_made_of(folder):
    model, predictor, pixels = ExportedModel(folder), stacked(), drawn(5)
    features, whole = model.features(pixels), model.predict_pixels(pixels)
    parts = model.predict_features(features)
    assert features.shape == (5, 12) == (5, model.width)
    for name in ("probabilities", "entropy", "familiarity", "mutual_information", "disagreement"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), abs=1e-6)
    assert (parts.environment == whole.environment).all()
    encoder = ExportedPredictor(model).backbone
    how = encoder.preprocess
    normal = (pixels / 255.0 - how.mean) / how.std
    import torch

    found = encoder.encode_images(torch.from_numpy(normal.astype(np.float32)).permute(0, 3, 1, 2))
    assert np.abs(found.numpy() - features).max() == 0
    true = predictor.details(torch.from_numpy(features))
    assert np.abs(parts.probabilities - true.probabilities).max() < 1e-5
    assert len(model.predict_features(features[:0]).labels) == 0


def test_the_api_takes_features(folder, tmp_path):
    page = page_of(folder, tmp_path / "labels")
    width = page.get("/v1/model").json()["feature_width"]
    answers = page.post(json={"features": [[0.1] * width, [-0.2] * width]}).json()["answers"]
    assert len(answers) == 2
    assert sum(answers[0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    refused(page.post(json={"features": [[0.1] * (width + 1)]}), 422, f"expected {width}")


def test_images_are_answered_labelled_and_put_in_order(folder, tmp_path):
    page, labels = page_of(folder, tmp_path / "labels"), tmp_path / "labels"
    page.get("/v1/model")
    assert not labels.exists(), "nothing is written before the page is opened"
    images = [add(page, number) for number in range(6)]
    state = page.get("/page/state").json()
    model = ExportedModel(folder)
    for entry in state["images"]:
        file = next(labels.glob(f"images/{entry['id']}*"))
        said = model.predict_pixels(model.pixels(Image.open(file).convert("RGB"))[None])
        assert entry["answer"]["class"] == said.labels[0]
        assert entry["answer"]["familiarity"] == pytest.approx(float(said.familiarity[0]), abs=1e-4)
        assert entry["answer"]["unfamiliar"] == bool(said.unfamiliar[0])
    queue = page.get("/page/queue").json()["images"]
    assert sorted(queue) == sorted(images)
    page.post("/page/labels", json={"labels": [{"image": queue[0], "class": state["model"]["classes"][0]}]})
    again = page_of(folder, labels)  # after a restart
    kept = {entry["id"]: entry["label"] for entry in again.get("/page/state").json()["images"]}
    assert kept[queue[0]] == {"class": state["model"]["classes"][0], "environment": "here"}
    assert set(again.get("/page/queue").json()["images"]) == set(images) - {queue[0]}
    details = again.get(f"/page/images/{images[0]}").json()
    assert (len(details["probabilities"]), details["neighbours"]) == (3, [])
    quality = again.get("/page/quality").json()
    assert quality["expected"]["unseen"] == 0.7
    assert quality["checked"]["accuracy"] == 0.75
    assert quality["yours"]["images"] == 1
    assert len(again.get("/page/download/answers.csv").text.splitlines()) == 7
    assert ANSWERS.encode() in again.get("/page/download/model.zip").content


def test_what_it_cannot_do_it_says(folder, tmp_path):
    page = page_of(folder, tmp_path / "labels")
    image = add(page, 0)
    page.post("/page/labels", json={"labels": [{"image": image, "class": "dog"}]})
    said = page.get("/page/state").json()["model"]["cannot_learn"]
    assert "An exported model cannot learn" in said
    assert f"--labels {tmp_path / 'labels'}" in said
    refused(page.post("/page/teach"), 422, said)


def test_where_labels_cannot_be_kept_programs_are_answered_all_the_same(folder, tmp_path):
    (tmp_path / "file").write_text("in the way")
    page = page_of(folder, tmp_path / "file")
    refused(page.get("/page/state"), 422, "--labels")
    refused(page.post("/page/teach"), 422, "--labels")
    assert page.post(files={"images": ("a.png", picture())}).status_code == 200


def test_labels_without_torch_are_refused(folder, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("bayescal.cli.serve.find_spec", lambda name: None if name == "torch" else find(name))
    command_refused(run("serve", folder, "--port", 0, "--labels", tmp_path / "labels"), "needs torch")
