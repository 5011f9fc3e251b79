"""The API against random requests made from its own OpenAPI document, and against damaged images.

A short run with a fixed seed; `BAYESCAL_FUZZ=5000` makes it that many requests of each kind.
"""

import asyncio
import base64
import os
import random

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from servers import Client, client, picture

REQUESTS = int(os.environ.get("BAYESCAL_FUZZ", "0"))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
FORMS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000")
ADDRESS = "http://127.0.0.1:8000"


def fuzz(few: int):
    """As many examples as were asked for, or these few, always the same."""
    return settings(
        max_examples=REQUESTS or few,
        derandomize=not REQUESTS,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def application():
    """Answering for as long as the module runs; it asks for no token, so that requests get inside."""
    app = client().app
    with asyncio.Runner() as runner:
        context = app.router.lifespan_context(app)
        runner.run(context.__aenter__())
        yield app
        runner.run(context.__aexit__(None, None, None))


@pytest.fixture
def document(application):
    schema = schemathesis.openapi.from_dict(application.openapi())
    schema.config.base_url = ADDRESS
    schema.app = application
    return schema


schema = schemathesis.pytest.from_fixture("document")


@schema.parametrize()
@fuzz(few=25)
def test_random_requests_are_answered_as_the_document_says(case):
    case.call_and_validate(checks=CHECKS)


def damaged(random_of: random.Random) -> bytes:
    """An image file with some bytes changed, cut, repeated or put in."""
    data = bytearray(picture(size=(9, 7), form=random_of.choice(FORMS)))
    for _ in range(random_of.randint(1, 8)):
        at = random_of.randrange(len(data))
        kind = random_of.randrange(4)
        if kind == 0:
            data[at] = random_of.randrange(256)
        elif kind == 1 and len(data) > 20:
            del data[at : at + random_of.randint(1, len(data) // 4)]
        elif kind == 2:
            data[at:at] = random_of.randbytes(random_of.randint(1, 40))
        else:
            data[at:at] = data[at : at + 30]
    return bytes(data)


def test_damaged_images_are_answered_or_refused_and_nothing_breaks():
    numbers = random.Random(0)
    files = [damaged(numbers) for _ in range(REQUESTS or 400)]
    server = client(max_queue=10**9, max_upload=10**7)
    batches = [files[at : at + 50] for at in range(0, len(files), 50)]
    requests = [
        ("POST", "/v1/predict", {"json": {"images": [base64.b64encode(f).decode() for f in batch]}})
        for batch in batches
    ]
    found = [entry["status"] for response in server.ask_all(requests) for entry in response.json()["answers"]]
    assert len(found) == len(files)
    assert set(found) == {"ok", "unreadable"}


@fuzz(few=150)
@hypothesis.given(
    body=hypothesis.strategies.binary(max_size=300),
    kind=hypothesis.strategies.sampled_from(
        ["application/json", "multipart/form-data; boundary=b", "multipart/form-data", "", "text/plain", "é"]
    ),
    shape=hypothesis.strategies.sampled_from(
        ["{}", "--b\r\n{}\r\n--b--\r\n", '{{"images": ["{}"]}}', '{{"features": {}}}']
    ),
)
def test_random_bodies_are_refused_in_words(body, kind, shape):
    text = shape.format(body.decode("latin-1")).encode("latin-1")
    response = ONE.post(content=text, headers={b"content-type": kind.encode("utf-8")})
    assert response.status_code < 500
    if response.status_code != 200:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["detail"].isprintable()


ONE: Client = client()
