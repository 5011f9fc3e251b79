"""A server of a small model made of numpy, asked without a network."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
from PIL import Image

from bayescal.estimator.prediction import Prediction
from bayescal.serving.app import create_app
from bayescal.serving.settings import Settings

CLASSES, ENVIRONMENTS = ["red", "green", "blue"], ["day", "night"]
SIDE = 4


class Colours:
    """An engine that says which colour an image has most of; a feature is the share of each."""

    name, classes, environments, width = "torch", CLASSES, ENVIRONMENTS, 3
    answers_depend_on_batch = False

    def __init__(self, during: Callable[[np.ndarray], None] = lambda rows: None):
        self.during, self.passes = during, []

    def about(self) -> dict[str, Any]:
        return {"method": "colours"}

    def pixels(self, image: Image.Image) -> np.ndarray:
        return np.asarray(image.resize((SIDE, SIDE)))

    def predict_pixels(self, pixels: np.ndarray) -> Prediction:
        return self.predict_features(pixels.mean((1, 2)).astype(np.float32) + 1)

    def predict_features(self, features: np.ndarray) -> Prediction:
        self.passes.append(len(features))
        self.during(features)
        probs = np.abs(features) + 1e-6
        probs = probs / probs.sum(1, keepdims=True)
        sure, n = probs.max(1), np.zeros(len(probs))
        return Prediction(
            labels=np.array(CLASSES)[probs.argmax(1)], probabilities=probs, confidence=sure, unsure=sure < 0.5,
            entropy=-(probs * np.log(probs)).sum(1), mutual_information=n, disagreement=n,
            environment=np.array(ENVIRONMENTS)[(features.sum(1) < 400).astype(int)],
            familiarity=np.full(len(probs), np.nan), unfamiliar=n > 0,
        )  # fmt: skip


def picture(colour: tuple[int, int, int] = (250, 5, 5), size: tuple[int, int] = (6, 5), form: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, form)
    return stream.getvalue()


class Client:
    """Requests to an application that runs in this process, as a synchronous test writes them."""

    def __init__(self, app: Any, headers: dict[str, str] | None = None, host: str = "127.0.0.1:8000"):
        self.app = app
        self.http = lambda: httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url=f"http://{host}", headers=headers
        )

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self.ask_all([(method, path, more)])[0]

    def ask_all(self, requests: list[tuple[str, str, dict[str, Any]]]) -> list[httpx.Response]:
        """All at the same time; the application lives for as long."""

        async def run() -> list[httpx.Response]:
            async with self.app.router.lifespan_context(self.app), self.http() as http:
                return list(await asyncio.gather(*(http.request(m, p, **more) for m, p, more in requests)))

        return asyncio.run(run())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.ask("GET", path, **more)

    def post(self, path: str = "/v1/predict", **more: Any) -> httpx.Response:
        return self.ask("POST", path, **more)


def client(engine: Any = None, headers: dict[str, str] | None = None, **settings: Any) -> Client:
    return Client(create_app(engine or Colours(), Settings(**settings)), headers)


def refused(response: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    """A problem document with this status and a sentence that has these words in it."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json"), (
        response.text
    )
    document = response.json()
    assert document["status"] == status
    assert document["title"]
    for word in words:
        assert word in document["detail"]
    return document
