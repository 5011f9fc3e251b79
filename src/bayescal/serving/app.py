"""The application: the API, the page, and the protection around both."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from bayescal import __version__
from bayescal.serving.api import SCHEMAS, api
from bayescal.serving.engine import Engine
from bayescal.serving.page import page
from bayescal.serving.problems import Problem
from bayescal.serving.protection import Protection
from bayescal.serving.service import Service
from bayescal.serving.settings import Settings

if TYPE_CHECKING:  # the desk needs torch, which is not there where an exported model is served
    from bayescal.serving.desk import Desk
    from bayescal.serving.later import LaterDesk


def create_app(model: Engine | None, settings: Settings, desk: "Desk | LaterDesk | None" = None) -> FastAPI:
    """The server of a model; without one, only the page's start can be used. `app.state.service` is what answers.

    `desk`: what the page works on; None: a model that only answers (one that was exported, where torch is not).
    """
    service = Service(model, settings)
    if desk is not None:
        desk.answers_by(service)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            service.close()

    app = FastAPI(
        title="bayescal",
        version=__version__,
        description="What is in images, how sure the model is, and what the images look like.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load their scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    app.include_router(api(service))
    app.include_router(page(desk, settings), include_in_schema=False)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_middleware(Protection, settings=settings, metrics=service.metrics)
    _name_schemas(app)
    return app


async def _problem(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    return problem.response()


async def _http(request: Request, error: Exception) -> Response:
    """What the routing refuses."""
    assert isinstance(error, HTTPException)
    said = {
        404: "There is nothing at this address. GET /openapi.json lists what there is.",
        405: f"This address does not know {request.method[:20]}. GET /openapi.json says what it knows.",
    }
    return Problem(error.status_code, said.get(error.status_code, str(error.detail)), error.headers).response()


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    where = ".".join(str(step) for step in fault["loc"])[:100]
    return Problem(422, f"{where}: {fault['msg']}").response()


def _name_schemas(app: FastAPI) -> None:
    """Put the schemas that the API's routes name into the OpenAPI document."""
    write = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schemas = write()["components"]["schemas"]
            for model in SCHEMAS:
                own = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schemas |= own.pop("$defs", {}) | {model.__name__: own}
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi
