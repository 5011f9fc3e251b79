"""What the page asks of the server, as programs and other sites could ask it too."""

import asyncio
import io
import json
import os
import shutil
import zipfile

import pytest
from page_client import BYTES, add, desk_of, page_of
from pages import Made, make

from bayescal.errors import DataError
from bayescal.serving.app import create_app
from bayescal.serving.labels import LabelStore
from bayescal.serving.settings import Settings
from servers import Client, picture, refused


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Made:
    return make(tmp_path_factory.mktemp("page"), 4)


@pytest.fixture
def page(made, tmp_path) -> Client:
    return page_of(desk_of(made, tmp_path / "labels"))


def test_everything_comes_from_here_and_nothing_is_inline(page):
    """Under this policy a script that somebody smuggles into a name does nothing."""
    index = page.get("/")
    assert "unsafe" not in index.headers["Content-Security-Policy"]
    assert "script-src 'self'" in index.headers["Content-Security-Policy"]
    assert "http" not in index.text.replace("http-equiv", "")
    assert "style=" not in index.text
    assert "<script>" not in index.text
    for name in ("app.js", "style.css", "icon.svg"):
        assert f"/static/{name}" in index.text
        assert page.get(f"/static/{name}").status_code == 200


@pytest.mark.parametrize(
    "name", ["..%2fpage.py", "%2e%2e/page.py", "page.py", "../labels.py", "__init__.py", "app.js%00"]
)
def test_no_other_file_can_be_asked_for(page, name):
    refused(page.get(f"/static/{name}"), 404)


def test_an_answer_is_the_models_and_the_api_answers_from_the_same(page, made):
    image = add(page, made.new[0].read_bytes(), "zero.png")
    (entry,) = page.get("/page/state").json()["images"]
    said = made.classifier.details(made.new[:1])
    assert entry["id"] == image
    assert entry["answer"]["class"] == said.labels[0]
    assert entry["answer"]["confidence"] == pytest.approx(float(said.confidence[0]), abs=1e-5)
    files = {"images": made.new[0].read_bytes()}
    assert page.post(files=files).json()["answers"][0]["class"] == said.labels[0]


def test_only_what_changed_is_told(page, made):
    first, second = (add(page, path.read_bytes()) for path in made.new[:2])
    changes = page.get("/page/state").json()["changes"]
    page.post("/page/labels", json={"labels": [{"image": second, "class": "dog"}]})
    state = page.get("/page/state", params={"since": changes}).json()
    assert [entry["id"] for entry in state["images"]] == [second]
    assert state["images"][0]["label"] == {"class": "dog", "environment": "here"}
    assert state["new_labels"] == 1
    page.post("/page/removed", json={"images": [first]})
    gone = page.get("/page/state", params={"since": state["changes"]}).json()["images"]
    assert [(entry["id"], entry["removed"]) for entry in gone] == [(first, True)]
    assert [entry["id"] for entry in page.get("/page/state").json()["images"]] == [second]


def test_what_was_removed_is_told_also_when_another_model_answers_by_then(made, tmp_path):
    desk = desk_of(made, tmp_path / "labels")
    images = [desk.collection.add(path.read_bytes(), path.name) for path in made.new]
    desk.label([(image, "dog", None, None) for image in images])
    since = desk.state()["changes"]
    desk.collection.store.remove(images[:1])
    desk.teach()
    desk.jobs.join()
    told = {entry["id"]: entry["removed"] for entry in desk.state(since)["images"]}
    assert told == {image: image == images[0] for image in images}


def test_a_label_that_comes_late_does_not_beat_a_newer_one(page, made):
    image = add(page, made.new[0].read_bytes())
    page.post("/page/labels", json={"labels": [{"image": image, "class": "house"}]})
    page.post("/page/labels", json={"labels": [{"image": image, "class": "dog", "made": 1000.0}]})
    assert page.get("/page/state").json()["images"][0]["label"]["class"] == "house"
    page.post("/page/labels", json={"labels": [{"image": image, "class": "dog", "made": 9e9}]})
    assert page.get("/page/state").json()["images"][0]["label"]["class"] == "dog"


def test_labels_that_were_given_for_another_folder_are_refused(page, made, tmp_path):
    """Another server may have taken the place of the one that the page was opened at."""
    one = {"image": add(page, made.new[0].read_bytes()), "class": "dog"}
    refused(page.post("/page/labels", json={"labels": [one], "folder": "/elsewhere"}), 409, "/elsewhere", "labels")
    assert page.get("/page/state").json()["images"][0]["label"] is None
    here = page.get("/page/state").json()["model"]["labels"]
    assert page.post("/page/labels", json={"labels": [one], "folder": here}).status_code == 200


def test_refusals_are_sentences(page):
    none = "0" * 64
    refused(page.post("/page/images", params={"name": "<b>.png"}, content=b"text", headers=BYTES), 422, "<b>.png")
    refused(page.post("/page/images", params={"name": "x"}, content=b"", headers=BYTES), 422, "empty")
    refused(page.post("/page/images", content=picture(), headers=BYTES), 422)
    refused(page.get(f"/page/images/{none}"), 422, "no such image")
    refused(page.get(f"/page/images/{none}/picture"), 422, "no such image")
    refused(page.get("/page/images/..%2F..%2Fetc/picture"), 404)
    refused(page.get("/page/training/99999/picture"), 422, "no such training image")
    refused(page.get("/page/training/-1/picture"), 422)
    refused(page.get("/page/training/0/picture", params={"size": 9999}), 422, "size")
    refused(page.post("/page/labels", json={"labels": [{"image": none, "class": "dog"}]}), 422, "add it first")
    refused(page.post("/page/labels", json={"labels": [{"image": "../x", "class": "dog"}]}), 422)
    refused(page.post("/page/labels", json=[]), 422)
    refused(page.post("/page/teach"), 422, "nothing new")
    refused(page.post("/page/undo"), 422, "nothing to undo")
    assert page.get("/page/state").json()["images"] == []


WITH_JSON = ("/page/labels", "/page/removed", "/page/look", "/page/open", "/page/fit")


@pytest.mark.parametrize("path", WITH_JSON)
def test_bodies_of_json_have_limits(made, tmp_path, path):
    """Of bytes, values and time: none is read for longer, and none takes the time of other requests."""
    page = page_of(desk_of(made, tmp_path / "labels", model=False))

    async def drip():
        for _ in range(20):
            yield bytes(100_000)

    kind = {"Content-Type": "application/json"}
    refused(page.post(path, content=drip(), headers=kind), 413, "1,048,576 bytes")
    faults = "{" + ",".join(f'"{n:x}":0' for n in range(60_000)) + "}"
    refused(page.post(path, content=faults, headers=kind), 413, "too many values")
    refused(page.post(path, content="{", headers=kind), 422, "JSON")
    refused(page.post(path, content="[" * 100_000, headers=kind), 413)
    refused(page.post(path, content='{"path": "\\ud800", "output": "x"}', headers=kind), 422)
    refused(page.post(path, content="{}"), 415, "application/json")


def test_a_body_of_json_that_does_not_come_is_refused(made, tmp_path):
    page = Client(create_app(None, Settings(body_seconds=0.1), desk_of(made, tmp_path / "labels")))

    async def stall():
        yield b"{"
        await asyncio.sleep(5)

    refused(page.post("/page/labels", content=stall(), headers={"Content-Type": "application/json"}), 408)


def test_as_many_labels_as_are_allowed_fit_into_a_request(page, made):
    image = add(page, made.new[0].read_bytes())
    one = {"image": image, "class": "cat, black", "environment": "garden", "made": 1e9}
    assert page.post("/page/labels", json={"labels": [one] * 5000}).status_code == 200
    refused(page.post("/page/labels", json={"labels": [{"image": image}] * 5001}), 422, "5000")


def test_nothing_of_a_refused_image_stays(page, tmp_path):
    page.post("/page/images", params={"name": "x.png"}, content=picture()[:40], headers=BYTES)
    assert list((tmp_path / "labels" / "images").iterdir()) == []


def test_other_sites_are_refused(made, tmp_path):
    foreign = page_of(desk_of(made, tmp_path / "labels"), origin="https://evil.example")
    for method, path in (("GET", "/page/state"), ("POST", "/page/teach"), ("POST", "/page/look")):
        refused(foreign.ask(method, path), 403, "another site")


def test_two_servers_on_one_folder_agree(made, tmp_path):
    """Also on the model that one of them has taught, and after it is undone."""
    one, two = (desk_of(made, tmp_path / "labels") for _ in range(2))
    images = [one.collection.add(path.read_bytes(), path.name) for path in made.new]
    two.label([(image, "dog", None, None) for image in images[:2]] + [(images[2], "house", "garden", None)])
    assert [entry["label"] for entry in one.state()["images"]] == [entry["label"] for entry in two.state()["images"]]
    one.teach()
    one.jobs.join()
    assert one.jobs.progress.state == "done", one.jobs.progress.message
    assert two.state()["model"]["number"] == 1
    assert two.state()["images"] == one.state()["images"]
    assert "garden" in two.state()["model"]["environments"]
    assert [entry["learned"] for entry in two.state()["images"]] == [True, True, True, False]
    two.undo()
    assert one.state()["model"]["number"] == 0
    assert one.collection.predictor is one.base


def test_what_was_taught_is_in_use_after_a_restart(made, tmp_path):
    desk = desk_of(made, tmp_path / "labels")
    images = [desk.collection.add(path.read_bytes(), path.name) for path in made.new]
    desk.label([(image, "zebra", None, None) for image in images])
    desk.teach()
    desk.jobs.join()
    again = desk_of(made, tmp_path / "labels")
    assert again.state()["model"]["classes"] == ["dog", "guitar", "house", "zebra"]
    assert again.collection.store.damaged == 0
    assert again.state()["images"] == desk.state()["images"]


def test_a_taught_image_is_compared_with_others_and_is_no_measure(made, tmp_path):
    desk = desk_of(made, tmp_path / "labels")
    images = [desk.collection.add(path.read_bytes(), path.name) for path in made.new]
    assert desk.quality()["taught"] == 0
    desk.label([(image, "dog", None, None) for image in images])
    desk.teach()
    desk.jobs.join()
    quality = desk.quality()
    assert (quality["taught"], quality["yours"]) == (len(images), None)
    training = desk.collection.predictor.training
    image = desk.collection.present()[0]
    near = desk.collection.details(image)["neighbours"]
    assert len(near) == 8
    assert image.id not in {training.hashes[other["number"]].tobytes().hex() for other in near}


@pytest.mark.parametrize("what", ["gone", "another model"])
def test_a_taught_model_that_does_not_belong_here_is_not_used(made, tmp_path, what, monkeypatch):
    desk = desk_of(made, tmp_path / "labels")
    desk.label([(desk.collection.add(path.read_bytes(), path.name), "dog", None, None) for path in made.new])
    desk.teach()
    desk.jobs.join()
    if what == "gone":
        shutil.rmtree(tmp_path / "labels" / "models" / "1")
        again = desk_of(made, tmp_path / "labels")
    else:
        monkeypatch.setattr(made.classifier.predictor_, "threshold", 0.123)  # learned anew
        made.classifier.save(tmp_path / "model")
        again = desk_of(made, tmp_path / "labels", model=False)
        again.open(tmp_path / "model")
    about = again.state()["model"]
    assert (about["number"], about["can_undo"]) == (0, False)
    assert again.collection.predictor is again.base
    assert again.model_in_use == again.model
    with pytest.raises(DataError, match="nothing to undo"):
        again.undo()
    assert sum(entry["label"] is not None for entry in again.state()["images"]) == len(made.new)
    assert LabelStore(tmp_path / "labels").model.number == 1  # where it belongs, it stays in use
    assert desk.state()["model"]["number"] == 1


def test_teaching_that_is_stopped_changes_nothing(made, tmp_path, monkeypatch):
    desk = desk_of(made, tmp_path / "labels")
    images = [desk.collection.add(path.read_bytes(), path.name) for path in made.new]
    desk.label([(image, "dog", None, None) for image in images])
    monkeypatch.setattr(desk.jobs, "_stop", _Stopped())
    desk.teach()
    desk.jobs.join()
    assert desk.jobs.progress.state == "stopped"
    assert desk.state()["model"]["number"] == 0


class _Stopped:
    """A stop that was asked for before anything began."""

    is_set = staticmethod(lambda: True)
    clear = set = staticmethod(lambda: None)


def test_a_file_that_cannot_be_written_is_said(page, made, monkeypatch):
    def refuse(*_):
        raise OSError(30, "Read-only file system", "/labels/.pictures")

    image = add(page, made.new[0].read_bytes())
    monkeypatch.setattr("bayescal.serving.page.kept_picture", refuse)
    refused(page.get(f"/page/images/{image}/picture"), 422, "/labels/.pictures: Read-only file system")


def test_a_model_with_files_of_1970_can_be_taken_home(made, tmp_path):
    model = shutil.copytree(made.model, tmp_path / "model")
    for file in model.iterdir():
        os.utime(file, (0, 0))
    desk = desk_of(made, tmp_path / "labels", model=False)
    desk.open(model)
    answer = page_of(desk).get("/page/download/model.zip")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert {name.partition("/")[2] for name in archive.namelist()} == {file.name for file in model.iterdir()}


def test_without_a_desk_the_page_says_why(made):
    page = Client(create_app(None, Settings()))
    assert "exported model" in page.get("/page/state").json()["why"]
    refused(page.get("/page/queue"), 404)


def test_text_that_a_spreadsheet_would_compute_is_quoted(page, made):
    add(page, made.new[0].read_bytes(), "=1+1.png")
    table = page.get("/page/download/answers.csv")
    assert table.text.splitlines()[1].startswith("'=1+1.png,")
    assert json.loads(page.get("/page/download/answers.json").text)[0]["image"] == "=1+1.png"


def test_the_queue_holds_what_is_not_labelled_and_is_the_models_suggestion(page, made):
    images = [add(page, path.read_bytes(), path.name) for path in made.new]
    queue = page.get("/page/queue").json()["images"]
    assert sorted(queue) == sorted(images)
    page.post("/page/labels", json={"labels": [{"image": queue[0], "class": "dog"}]})
    assert set(page.get("/page/queue").json()["images"]) == set(queue[1:])


def test_an_image_whose_file_was_damaged_is_left_out_until_it_is_added_again(made, tmp_path, caplog):
    """Nothing is computed from other content under the name of this one."""
    labels, content = tmp_path / "labels", picture()
    page = page_of(desk_of(made, labels))
    one, two = add(page, content), add(page, picture((0, 9, 9)))
    file = next(path for path in (labels / "images").iterdir() if path.name.startswith(one))
    file.write_bytes(picture((9, 9, 0)))
    shutil.rmtree(labels / "features", ignore_errors=True)
    for bank in labels.rglob("*.keys"):  # without what is known of it, it is read anew
        bank.unlink()
    again = page_of(desk_of(made, labels))
    assert [image["id"] for image in again.get("/page/state").json()["images"]] == [two]
    assert f"added images whose files are gone or damaged are left out: {file}" in caplog.text
    assert add(again, content) == one
    assert {image["id"] for image in again.get("/page/state").json()["images"]} == {one, two}
    assert file.read_bytes() == content
