"""What the API answers: files, base64, features; the same JSON as the command line; shared forward passes."""

import asyncio
import base64
import json
import threading

import numpy as np
import pytest

from bayescal.serving.batches import Batches
from bayescal.serving.engine import open_engine
from command_line import run
from servers import CLASSES, Client, Colours, client, picture, refused

RED, GREEN = picture((250, 5, 5)), picture((5, 250, 5), form="JPEG")


def test_files_are_answered_in_their_order(server):
    files = [("images", ("a.png", RED)), ("images", ("b.jpg", GREEN))]
    response = server.post(files=files)
    assert response.status_code == 200
    assert [(a["image"], a["status"], a["class"]) for a in response.json()["answers"]] == [
        ("a.png", "ok", "red"), ("b.jpg", "ok", "green"),
    ]  # fmt: skip


def test_base64_with_and_without_names_and_as_a_data_url(server):
    text = base64.b64encode(RED).decode()
    images = [text, {"name": "mine", "data": text}, {"data": f"data:image/png;base64,{text}"}]
    answers = server.post(json={"images": images}).json()["answers"]
    assert [a["image"] for a in answers] == ["image 0", "mine", "image 2"]
    assert {a["class"] for a in answers} == {"red"}


def test_rows_of_features_are_answered(server):
    answers = server.post(json={"features": [[1, 2, 9], [9, 0, 0.5]]}).json()["answers"]
    assert [a["class"] for a in answers] == ["blue", "red"]
    assert answers[0]["probabilities"] == pytest.approx({"red": 1 / 12, "green": 2 / 12, "blue": 9 / 12}, rel=1e-4)
    assert answers[0]["familiarity"] is None  # NaN, which JSON does not have


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ([[1, 2]], "features.0: has 2 numbers; expected 3"),
        ([[1, 2, "x"]], "features.0.2"),
        ([[1, 2, 1e300]], "too large"),
        ([], "features"),
        (7, "features"),
        ([[1, 2, None]], "features.0.2"),
    ],
)
def test_features_of_another_shape_are_refused(server, features, words):
    refused(server.post(json={"features": features}), 422, words)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"image": []}, "image: is not a name that is understood here; GET /openapi.json says which are."),
        ({"images": []}, "images: is empty; expected at least one."),
        ({"images": [{"name": "a"}]}, "images.0.data: is missing."),
        ({"images": [5]}, "images.0: is not an object with data; expected one, or base64 alone."),
    ],
)
def test_what_is_wrong_with_a_body_is_said_in_plain_words(server, content, words):
    problem = refused(server.post(json=content), 422, words)
    assert "NamedImage" not in problem["detail"]


def test_a_damaged_image_does_not_stop_the_others(server):
    files = [("images", ("bad.png", RED[:40])), ("images", ("good.png", RED)), ("images", ("no.txt", b"words"))]
    answers = server.post(files=files).json()["answers"]
    assert [a["status"] for a in answers] == ["unreadable", "ok", "unreadable"]
    assert "bad.png: begins like a PNG image but its header is damaged" in answers[0]["reason"]
    assert "class" in answers[0]  # null, as in the command line's JSON


def test_no_readable_image_is_a_refusal_that_lists_each(server):
    problem = refused(server.post(files=[("images", ("bad.png", b"?"))]), 422, "bad.png", "is not an image")
    assert [a["status"] for a in problem["answers"]] == ["unreadable"]


def test_the_answer_is_that_of_the_command_line(model, shapes):
    """Image by image and as one batch, from files and from features."""
    paths = [str(shapes / "photo" / "dog" / "0.png"), str(shapes / "sketch" / "house" / "1.png")]
    expected = run("predict", model, *paths, "--json").json
    engine = open_engine(model)
    files = [("images", (path, open(path, "rb").read())) for path in paths]  # noqa: SIM115
    answers = client(engine).post(files=files).json()["answers"]
    assert [list(a) for a in answers] == [list(e) for e in expected]  # names, in this order
    for answer, entry in zip(answers, expected, strict=True):
        assert answer["probabilities"] == pytest.approx(entry["probabilities"], abs=1e-5)
        same = ("image", "status", "class", "unsure", "environment", "unfamiliar")
        assert {k: answer[k] for k in same} == {k: entry[k] for k in same}
        for number in ("confidence", "entropy", "mutual_information", "disagreement", "familiarity"):
            assert answer[number] == pytest.approx(entry[number], abs=1e-4)
    from PIL import Image

    pixels = np.stack([engine.pixels(Image.open(path).convert("RGB")) for path in paths])
    rows = engine.features(pixels).tolist()
    by_features = client(engine).post(json={"features": rows}).json()["answers"]
    assert [a["class"] for a in by_features] == [e["class"] for e in expected]
    about = client(engine).get("/v1/model").json()
    assert about["classes"] == ["dog", "house"]
    assert about["feature_width"] == len(rows[0])


def test_concurrent_requests_share_a_forward_pass():
    engine = Colours()
    server = client(engine, workers=1, max_batch=8, wait=0.2)
    requests = [("POST", "/v1/predict", {"files": {"images": (f"{i}.png", RED)}}) for i in range(8)]
    answers = server.ask_all(requests)
    assert [r.json()["answers"][0]["image"] for r in answers] == [f"{i}.png" for i in range(8)]
    assert engine.passes == [8]


def test_requests_share_no_pass_where_an_answer_depends_on_the_images_beside_it():
    engine = Colours()
    engine.answers_depend_on_batch = True
    server = client(engine, workers=1, max_batch=8, wait=0.2)
    files = [("images", (f"{i}.png", RED)) for i in range(2)]
    features = {"features": [[9, 1, 1]] * 3}
    requests = [("POST", "/v1/predict", more) for more in [{"files": files}] * 3 + [{"json": features}] * 2]
    assert [response.status_code for response in server.ask_all(requests)] == [200] * 5
    assert sorted(engine.passes) == [2, 2, 2, 3, 3]


def test_a_request_larger_than_a_pass_is_answered_whole():
    engine = Colours()
    colours = [(250, 5, 5), (5, 250, 5), (5, 5, 250)]
    files = [("images", (f"{i}.png", picture(colours[i % 3]))) for i in range(10)]
    answers = client(engine, max_batch=4, workers=1).post(files=files).json()["answers"]
    assert [a["class"] for a in answers] == [CLASSES[i % 3] for i in range(10)]
    assert sorted(engine.passes) == [2, 4, 4]


def test_a_request_is_answered_by_the_model_that_it_met():
    """Another one takes its place in the middle, with other classes: none answers under the names of the other."""
    begun, go_on = threading.Event(), threading.Event()

    def slowly(_: np.ndarray) -> None:
        begun.set()
        go_on.wait(10)

    old, new = Colours(slowly), Colours()
    new.classes = ["blue", "green", "red"]
    server = client(old, workers=1, max_batch=2, wait=0.0)

    def exchange() -> None:
        begun.wait(10)
        server.app.state.service.engine = new
        go_on.set()

    threading.Thread(target=exchange).start()
    files = [("images", (f"{i}.png", RED)) for i in range(6)]
    requests = [("POST", "/v1/predict", {"files": files}), ("POST", "/v1/predict", {"json": {"features": [[9, 1, 1]]}})]
    for response in server.ask_all(requests):
        for answer in response.json()["answers"]:
            assert max(answer["probabilities"], key=answer["probabilities"].get) == answer["class"] == "red"
    assert (len(old.passes), new.passes) == (4, [])


def test_requests_that_met_different_models_share_no_pass():
    old, new = Colours(), Colours()

    async def ask() -> None:
        batches = Batches(threads=1, most=8, wait=0.2)
        row = np.ones((1, 3), np.float32)
        try:
            said = await asyncio.gather(*(batches(engine.predict_features, row) for engine in (old, old, new, old)))
            assert all(len(one.labels) == 1 for one in said)
        finally:
            batches.close()

    asyncio.run(ask())
    assert (old.passes, new.passes) == ([2, 1], [1])


def test_beyond_the_queue_a_request_is_told_to_come_back():
    """And those that were let in are answered all the same."""
    begun, go_on = threading.Event(), threading.Event()

    def slowly(_: np.ndarray) -> None:
        begun.set()
        go_on.wait(10)

    server = client(Colours(slowly), workers=1, max_queue=2, max_batch=1)
    threading.Thread(target=lambda: (begun.wait(10), threading.Timer(0.3, go_on.set).start())).start()
    requests = [("POST", "/v1/predict", {"files": {"images": ("a.png", RED)}}) for _ in range(5)]
    responses = server.ask_all(requests)
    assert sorted(r.status_code for r in responses) == [200, 200, 503, 503, 503]
    for response in responses:
        if response.status_code == 503:
            refused(response, 503, "images are waiting already")
            assert int(response.headers["retry-after"]) >= 1


def test_a_failure_in_the_engine_is_a_problem_and_the_next_request_is_answered():
    faults = iter([True])

    def once(_: np.ndarray) -> None:
        if next(faults, False):
            raise RuntimeError("secret inside")

    server = client(Colours(once))
    first, second = (server.post(json={"features": [[1, 2, 3]]}) for _ in range(2))
    refused(first, 500, "bug")
    assert "secret" not in first.text
    assert second.status_code == 200


def test_a_pass_that_takes_too_long_is_given_up():
    go_on = threading.Event()
    server = client(Colours(lambda _: go_on.wait(0.5)), answer_seconds=0.05)
    response = server.post(files={"images": ("a.png", RED)})
    go_on.set()
    refused(response, 503, "no answer within")
    assert "retry-after" in response.headers


def test_without_a_model_only_questions_to_it_are_refused():
    from bayescal.serving.app import create_app
    from bayescal.serving.settings import Settings

    server = Client(create_app(None, Settings()))
    response = server.post(json={"features": [[1.0]]})
    refused(response, 503, "no model yet")
    assert int(response.headers["retry-after"]) > 0
    refused(server.get("/v1/model"), 503, "no model yet")
    refused(server.get("/readyz"), 503, "no model yet")
    assert server.get("/healthz").json() == {"status": "ok"}


def test_metrics_count_what_was_answered(server):
    async_requests = [
        ("POST", "/v1/predict", {"files": [("images", ("a.png", RED)), ("images", ("b.png", b"no"))]}),
        ("POST", "/v1/predict", {"json": {"features": [[1, 1, 1.1]]}}),
        ("GET", "/nothing/here", {}),
    ]
    server.ask_all(async_requests)
    text = server.get("/metrics").text
    for line in (
        'bayescal_requests_total{route="/v1/predict",status="200"} 2.0',
        'bayescal_requests_total{route="other",status="404"} 1.0',
        'bayescal_answers_total{status="ok"} 2.0',
        'bayescal_answers_total{status="unreadable"} 1.0',
        'bayescal_predicted_classes_total{label="red"} 1.0',
        "bayescal_unsure_answers_total 1.0",
        "bayescal_batch_rows_count 2.0",
        "bayescal_waiting_images 0.0",
    ):
        assert line in text


def test_the_document_of_the_api_names_every_body_and_answer(server):
    document = server.get("/openapi.json").json()
    predict = document["paths"]["/v1/predict"]["post"]
    assert set(predict["requestBody"]["content"]) == {"multipart/form-data", "application/json"}
    assert {"200", "413", "415", "422", "503"} <= set(predict["responses"])
    text = json.dumps(document)
    for reference in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert reference in document["components"]["schemas"]
    assert not any(path.startswith("/page") for path in document["paths"])
