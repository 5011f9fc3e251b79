"""Refusals as problem documents (RFC 9457): a status, a title, and a sentence for the person who reads it."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """A request that is not answered: why, and what to do. `more` are further members of the document."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any):
        super().__init__(detail)
        self.status, self.detail, self.headers, self.more = status, detail, dict(headers or {}), more

    def body(self) -> bytes:
        document = {"title": HTTPStatus(self.status).phrase, "status": self.status, "detail": self.detail, **self.more}
        return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, MEDIA_TYPE)


def busy(detail: str, seconds: int = 1) -> Problem:
    """Come back later."""
    return Problem(503, detail, {"Retry-After": str(seconds)})
