"""The page for people: files from `static/`, and what they ask for below /page/."""

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from bayescal.serving.service import Service


def page(service: Service) -> APIRouter:
    """Routes of the page, which answers through the same service as the API."""
    router = APIRouter()

    @router.get("/")
    async def index() -> HTMLResponse:
        return HTMLResponse((files("bayescal.serving") / "static" / "index.html").read_text(encoding="utf-8"))

    return router
