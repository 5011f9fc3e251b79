"""The page for people: files from `static/`, and what they ask for below /page/.

    GET  /page/state?since=N          what there is, or what has changed after the change N
    POST /page/images?name=N          one file as it is → its id; unreadable ones are refused and leave nothing behind
    GET  /page/images/ID              everything about one image
    GET  /page/images/ID/picture      as a JPEG (size=160, 320, 1280)
    GET  /page/training/N/picture     a training image, by its number in the model
    POST /page/labels, /page/removed  what images show; which are not to be shown any more
    GET  /page/queue                  what to label next
    POST /page/teach, /stop, /undo    learn from the labels in the background; stop; back to the model before
    GET  /page/quality                how good it is
    GET  /page/download/…             answers.csv, answers.json, model.zip
    GET  /page/folders, POST /page/look, /page/fit     starting without a model, on this machine alone

`Protection` stands before all of it: the Host check, the token, requests of other sites.
"""

import os
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bayescal.errors import BayescalError
from bayescal.serving.bodies import Buffered, json_of, read_body
from bayescal.serving.labels import LONGEST_NAME
from bayescal.serving.pictures import PICTURES, SIZES, kept_picture, picture
from bayescal.serving.problems import Problem
from bayescal.serving.settings import Settings
from bayescal.util.jsonable import jsonable

if TYPE_CHECKING:  # the desk needs torch, which is not there where an exported model is served
    from bayescal.serving.desk import Desk
    from bayescal.serving.later import LaterDesk

_KINDS = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOR_EVER = {"Cache-Control": "private, max-age=31536000, immutable"}  # content by its hash
_ID = r"^[0-9a-f]{64}$"
_NOTHING = {
    "session": "none", "model": None, "local": False, "job": None, "max_upload": 0,
    "why": "This server answers programs from an exported model: POST /v1/predict. To look at images here and label "
    "them, torch has to be installed beside it: pip install 'bayescal[serve,export]'. Without a server, index.html in "
    "the exported folder answers in the browser.",
}  # fmt: skip
MOST = 5000  # images or labels of one request
_MOST_BYTES = 1024 * 1024  # of its JSON
_MOST_VALUES = 5 * MOST  # of a label: its fields, and commas in names
_MOST_TEXTS = 15 * MOST  # quotation marks: two for each field's name and for each text
T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)
Reader = Callable[[type[BaseModel]], Any]  # what a route depends on to have a body of this kind


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class GivenLabel(_Body):
    image: str = Field(pattern=_ID)
    class_name: str | None = Field(None, alias="class", min_length=1, max_length=LONGEST_NAME)
    environment: str | None = Field(None, min_length=1, max_length=LONGEST_NAME)
    made: float | None = None  # when it was given, if that was not just now: what was said since counts more


class GivenLabels(_Body):
    labels: list[GivenLabel] = Field(max_length=MOST, fail_fast=True)
    folder: str | None = Field(None, max_length=4096)  # for which they were given; None: for the one that is here


class Removed(_Body):
    images: list[Annotated[str, Field(pattern=_ID)]] = Field(max_length=MOST, fail_fast=True)
    removed: bool = True


class Folder(_Body):
    path: str = Field(max_length=4096)
    layout: str | None = Field(None, max_length=200)  # of folders that can be read in several ways
    class_from_name: bool = False

    @property
    def reading(self) -> tuple[str, bool] | None:
        return None if self.layout is None else (self.layout, self.class_from_name)


class Fit(Folder):
    output: str = Field(min_length=1, max_length=4096)


def page(desk: "Desk | LaterDesk | None", settings: Settings) -> APIRouter:
    """Routes of the page; without a desk, it says why there is nothing to see."""
    router = APIRouter()
    buffered = Buffered(settings.max_buffered)
    _add_files(router)
    if desk is None:
        router.add_api_route("/page/state", lambda: _json(_NOTHING))
        return router
    read = partial(_read, settings, buffered)
    _add_images(router, desk, settings, buffered)
    _add_labels(router, desk, read)
    _add_downloads(router, desk)
    _add_start(router, desk, read)
    return router


def _add_files(router: APIRouter) -> None:
    static = _static_files()

    @router.get("/")
    async def index() -> Response:
        return Response(static["index.html"], media_type=_KINDS[".html"])

    @router.get("/static/{name}")
    async def own_file(name: str) -> Response:
        if name not in static:
            raise Problem(404, "There is no such file.")
        return Response(
            static[name], media_type=_KINDS[os.path.splitext(name)[1]], headers={"Cache-Control": "no-cache"}
        )


def _read(settings: Settings, buffered: Buffered, kind: type[B]) -> Any:
    """For a route: its JSON body, read within limits of bytes, time and faults, and not where requests are answered.

    FastAPI itself would read a body of any length for as long as it takes.
    """

    async def body_of(request: Request) -> B:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Problem(415, "Expected JSON, as application/json.")
        body = await read_body(request, settings, buffered, _MOST_BYTES)
        try:
            most = f"at most {MOST} labels or images are understood at once"
            return await run_in_threadpool(json_of, kind, body, _MOST_VALUES, _MOST_TEXTS, most)
        finally:
            buffered.give_back(len(body))

    return Depends(body_of)


def _add_images(router: APIRouter, desk: "Desk | LaterDesk", settings: Settings, buffered: Buffered) -> None:
    @router.get("/page/state")
    def state(since: Annotated[int, Query(ge=0, le=2**53)] = 0) -> Response:
        return _json(_done(lambda: desk.state(since)) | {"max_upload": settings.max_upload})

    @router.post("/page/images")
    async def add(request: Request, name: Annotated[str, Query(min_length=1, max_length=1000)]) -> Response:
        content = await read_body(request, settings, buffered)
        try:
            image = await run_in_threadpool(_done, lambda: desk.collection.add(content, name[-LONGEST_NAME:]))
        finally:
            buffered.give_back(len(content))
        return _json({"id": image})

    @router.get("/page/images/{image}")
    def about(image: str) -> Response:
        return _json(_done(lambda: desk.collection.details(desk.image(image))))

    @router.get("/page/images/{image}/picture")
    def added_picture(image: str, size: int = SIZES[0]) -> Response:
        def made() -> bytes:
            found, store = desk.image(image), desk.collection.store
            return kept_picture(store.folder / PICTURES, found.id, store.path(found), size)

        return _jpeg(made, size)

    @router.get("/page/training/{number}/picture")
    def training_picture(number: int, size: int = SIZES[0]) -> Response:
        return _jpeg(lambda: picture(desk.training_image(number), size), size)


def _add_labels(router: APIRouter, desk: "Desk | LaterDesk", read: Reader) -> None:
    @router.post("/page/labels")
    def label(given: Annotated[GivenLabels, read(GivenLabels)]) -> Response:
        store = _done(lambda: desk.collection.store)
        if given.folder not in (None, str(store.folder)):
            raise Problem(
                409, f"The labels were given for {given.folder}, and this server keeps those of {store.folder}."
            )
        _done(lambda: desk.label([(one.image, one.class_name, one.environment, one.made) for one in given.labels]))
        return _json({"changes": store.changes})

    @router.post("/page/removed")
    def remove(given: Annotated[Removed, read(Removed)]) -> Response:
        store = _done(lambda: desk.collection.store)
        _done(lambda: store.remove(given.images, given.removed))
        return _json({"changes": store.changes})

    @router.get("/page/queue")
    def queue() -> Response:
        return _json({"images": _done(desk.queue)})

    @router.get("/page/quality")
    def quality() -> Response:
        return _json(_done(desk.quality))

    # Looked up when they are asked for: until then a `LaterDesk` has nothing.
    actions = {"teach": lambda: desk.teach(), "stop": lambda: desk.jobs.stop(), "undo": lambda: desk.undo()}
    for name, action in actions.items():
        router.add_api_route(f"/page/{name}", _action(desk, action), methods=["POST"])


def _add_downloads(router: APIRouter, desk: "Desk | LaterDesk") -> None:
    # Imported when they are asked for, as the desk is made: until then an exported model needs no torch.
    @router.get("/page/download/answers.csv")
    def answers_csv() -> Response:
        from bayescal.serving.downloads import as_csv

        return _file(_done(lambda: as_csv(desk.collection)).encode(), "text/csv; charset=utf-8", "answers.csv")

    @router.get("/page/download/answers.json")
    def answers_json() -> Response:
        from bayescal.serving.downloads import as_json

        return _file(_done(lambda: as_json(desk.collection)).encode(), "application/json", "answers.json")

    @router.get("/page/download/model.zip")
    def model_zip() -> Response:
        from bayescal.serving.downloads import as_zip

        return _file(_done(lambda: as_zip(desk.model_in_use, "model")), "application/zip", "model.zip")


def _add_start(router: APIRouter, desk: "Desk | LaterDesk", read: Reader) -> None:
    """What looks at folders of this machine: for those who sit at it."""

    @router.get("/page/folders")
    def folders(request: Request, path: Annotated[str | None, Query(max_length=4096)] = None) -> Response:
        from bayescal.serving.start import list_folder

        _at_this_machine(desk, request)
        return _json(_done(lambda: list_folder(path)))

    @router.post("/page/look")
    def look(request: Request, folder: Annotated[Folder, read(Folder)]) -> Response:
        from bayescal.serving.start import look

        _at_this_machine(desk, request)
        return _json(_done(lambda: look(folder.path, folder.reading)))

    @router.post("/page/open")
    def open_model(request: Request, folder: Annotated[Folder, read(Folder)]) -> Response:
        from bayescal.serving.start import existing

        _at_this_machine(desk, request)
        _done(lambda: desk.open(existing(folder.path)))
        return _json(_done(desk.state))

    @router.post("/page/fit")
    def fit(request: Request, wanted: Annotated[Fit, read(Fit)]) -> Response:
        _at_this_machine(desk, request)
        _done(lambda: desk.fit(wanted.path, wanted.output, wanted.reading))
        return _json(_done(desk.state))


def _at_this_machine(desk: "Desk | LaterDesk", request: Request) -> None:
    at = request.client.host if request.client else ""
    if not desk.local or at not in ("127.0.0.1", "::1", "testclient"):
        raise Problem(403, "Folders can be chosen on the machine itself alone. Fit there: bayescal fit FOLDER -o MODEL")
    if desk.ready:
        raise Problem(409, "There is a model already. To start with another folder: bayescal serve, without a model.")


def _action(desk: "Desk | LaterDesk", action: Callable[[], None]) -> Callable[[], Response]:
    def act() -> Response:
        _done(action)
        return _json(_done(lambda: desk.state(since=2**53)))

    return act


def _done(work: Callable[..., T], *arguments: Any) -> T:
    """What it returns; what the user can put right becomes a problem document."""
    try:
        return work(*arguments)
    except BayescalError as error:
        raise Problem(422, str(error)) from error
    except OSError as error:  # a file that cannot be read or written
        where = f"{error.filename}: " if error.filename else ""
        raise Problem(422, f"{where}{error.strerror or error}") from error


def _jpeg(make: Callable[[], bytes], size: int) -> Response:
    if size not in SIZES:
        raise Problem(422, f"size: expected one of {', '.join(map(str, SIZES))}")
    return Response(_done(make), media_type="image/jpeg", headers=_FOR_EVER)


def _json(content: Any) -> Response:
    return JSONResponse(jsonable(content))


def _file(content: bytes, kind: str, name: str) -> Response:
    return Response(content, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


def _static_files() -> dict[str, bytes]:
    """What may be asked for below /static/, read once: nothing else of the disk can be."""
    folder = files("bayescal.serving") / "static"
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if os.path.splitext(entry.name)[1] in _KINDS}
