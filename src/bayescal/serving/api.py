"""The public addresses: what a program asks of a model."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from bayescal import __version__
from bayescal.estimator.answers import Answer
from bayescal.serving import problems
from bayescal.serving.bodies import AnswerRequest, Buffered, Content, content_of, json_bytes, read_body
from bayescal.serving.engine import Engine
from bayescal.serving.problems import Problem, busy
from bayescal.serving.service import Service

_SMALL = 64 * 1024  # bytes that are parsed at once, between other requests


class Entry(BaseModel):
    """The answer for one image, as `bayescal predict --json` writes it."""

    image: str
    status: str = Field(description="ok or unreadable")
    label: Any = Field(None, alias="class")
    unsure: bool | None
    confidence: float | None
    environment: Any = Field(None, description="The training environment that it looks most like")
    entropy: float | None
    mutual_information: float | None
    disagreement: float | None
    familiarity: float | None
    unfamiliar: bool | None
    probabilities: dict[str, float] | None = None
    reason: str | None = Field(None, description="Why the image could not be read")


class Answers(BaseModel):
    answers: list[Entry]


class ProblemDocument(BaseModel):
    """Why a request was refused (RFC 9457)."""

    model_config = ConfigDict(extra="allow")
    title: str
    status: int
    detail: str


class Status(BaseModel):
    status: str


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    return {s: {"description": "Refused", "content": {problems.MEDIA_TYPE: {"schema": schema}}} for s in statuses}


_FILES = {
    "type": "object",
    "properties": {"images": {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}},
    "required": ["images"],
}
_BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {"schema": _FILES},
        "application/json": {"schema": {"$ref": "#/components/schemas/AnswerRequest"}},
    },
}
SCHEMAS = (AnswerRequest, ProblemDocument)  # named above, and not by any route of FastAPI's own


def api(service: Service) -> APIRouter:
    """Routes that answer from this service."""
    router = APIRouter()
    settings, buffered = service.settings, Buffered(service.settings.max_buffered)

    @router.post(
        "/v1/predict",
        summary="What is in images",
        response_model=None,
        responses={200: {"model": Answers}, **_refusals(400, 401, 403, 408, 413, 415, 421, 422, 503)},
        openapi_extra={"requestBody": _BODY},
    )
    async def predict(request: Request) -> Response:
        """Files as multipart/form-data, or JSON with images in base64 or with rows of features.

        Images that cannot be read are listed with the reason and do not stop the others.
        """
        engine = service.known_engine()
        body = await read_body(request, settings, buffered)
        try:
            parse = (request.headers.get("content-type", ""), body, settings, engine.width)
            content = content_of(*parse) if len(body) <= _SMALL else await run_in_threadpool(content_of, *parse)
            async with asyncio.timeout(settings.answer_seconds):
                answers = await _answered(service, engine, content)
        except TimeoutError as error:
            raise busy(
                f"There was no answer within {settings.answer_seconds:g} seconds. Come back later.", 5
            ) from error
        finally:
            buffered.give_back(len(body))
        return await _response(answers, [str(name) for name in engine.classes])

    @router.get("/v1/model", summary="What the model knows, and the limits", responses=_refusals(401, 403, 421, 503))
    async def model() -> dict[str, Any]:
        engine = service.known_engine()
        limits = ("max_upload", "max_images", "max_rows", "max_pixels", "max_queue")
        return {
            "engine": engine.name,
            "classes": list(engine.classes),
            "environments": list(engine.environments),
            "feature_width": engine.width,
            **engine.about(),
            "limits": {name: getattr(settings, name) for name in limits},
            "bayescal": __version__,
        }

    _add_status(router, service)
    return router


def _add_status(router: APIRouter, service: Service) -> None:
    """What whoever runs the server asks."""

    @router.get("/healthz", summary="Is there a server?", response_model=Status, responses=_refusals(421))
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/readyz", summary="Can it answer?", response_model=Status, responses=_refusals(421, 503))
    async def ready() -> dict[str, str]:
        if not service.ready:
            raise busy("There is no model yet, or the server is starting or stopping.")
        return {"status": "ready"}

    @router.get(
        "/metrics",
        summary="Numbers for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, **_refusals(401, 403, 421)},
    )
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _answered(service: Service, engine: Engine, content: Content) -> list[Answer]:
    count = len(content.uploads) if content.features is None else len(content.features)
    numbers, most = count * len(engine.classes), service.settings.max_probabilities
    if numbers > most:
        raise Problem(413, f"The answer would have {numbers:,} probabilities; at most {most:,}. Ask for fewer at once.")
    if content.features is not None:
        return await service.answer_features(engine, content.features)
    return await service.answer_images(engine, content.uploads)


async def _response(answers: list[Answer], classes: list[str]) -> Response:
    """200 as soon as one image was answered; 422 when none could be read."""

    def written() -> bytes:
        return json_bytes({"answers": [answer.entry(classes) for answer in answers]})

    if not any(answer.ok for answer in answers):
        first = answers[0].reason if len(answers) == 1 else f"{answers[0].reason} (the first of {len(answers)})"
        raise Problem(422, f"No image could be read: {first}", answers=[answer.entry(classes) for answer in answers])
    small = len(answers) * len(classes) <= 10_000
    return Response(written() if small else await run_in_threadpool(written), media_type=JSONResponse.media_type)
