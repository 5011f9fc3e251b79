"""The page as a program asks it: what the tests of its addresses share."""

from pages import Made

from bayescal.estimator.base_predictor import BasePredictor
from bayescal.serving.app import create_app
from bayescal.serving.desk import Desk
from bayescal.serving.settings import Settings
from bayescal.serving.torch_engine import TorchEngine
from servers import Client

BYTES = {"Content-Type": "application/octet-stream"}


def desk_of(made: Made, labels, model: bool = True, local: bool = True) -> Desk:
    backbone = made.classifier.predictor_.backbone.name
    desk = Desk(lambda folder: BasePredictor.load(folder, backbone), local=local, labels=labels)
    if model:
        desk.open(made.model, made.classifier.predictor_)
    return desk


def page_of(desk: Desk, **headers: str) -> Client:
    engine = None if desk.base is None else TorchEngine(desk.base)
    return Client(create_app(engine, Settings(), desk), headers)


def add(page: Client, content: bytes, name: str = "x.png") -> str:
    answer = page.post("/page/images", params={"name": name}, content=content, headers=BYTES)
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]
