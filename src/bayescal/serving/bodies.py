"""The body of a request: read within limits of bytes and time, then files, base64 or features; never on disk."""

import asyncio
import base64
import binascii
import json
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request

from bayescal.serving.problems import Problem, busy
from bayescal.serving.service import Upload
from bayescal.serving.settings import Settings

_LINGER = 1.0  # seconds in which what is left of a refused body is thrown away, so that the refusal is read
T = TypeVar("T", bound=BaseModel)
_MOST_NAME = 255  # characters of a file's name that are repeated in an answer
_FAULTS = {  # pydantic's name of a fault → what it is, for who sent it
    "extra_forbidden": "is not a name that is understood here; GET /openapi.json says which are",
    "missing": "is missing",
    "too_short": "is empty; expected at least one",
    "model_type": "is not an object with data; expected one, or base64 alone",
}


class NamedImage(BaseModel):
    """An image in JSON."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field("", max_length=_MOST_NAME, description="What the answer calls it.")
    data: str = Field(description="The content of an image file in base64; a data: URL is understood too.")


class AnswerRequest(BaseModel):
    """What a JSON body asks for: images or features."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, json_schema_extra={"minProperties": 1})
    images: list[NamedImage | str] | None = Field(
        None, min_length=1, fail_fast=True, description="Image files in base64, with or without names."
    )
    features: list[Annotated[list[float], Field(fail_fast=True)]] | None = Field(
        None, min_length=1, fail_fast=True, description="Rows of image features, as wide as `GET /v1/model` says."
    )


@dataclass(frozen=True)
class Content:
    """What a request brought: one of the two."""

    uploads: tuple[Upload, ...] = ()
    features: np.ndarray | None = None  # (N, D) float32


class Buffered:
    """How many bytes all bodies take together that are being read or answered."""

    def __init__(self, most: int):
        self.most, self.now = most, 0

    def take(self, size: int) -> None:
        if self.now + size > self.most:
            raise busy("Too much is being uploaded at once. Try again in a moment.")
        self.now += size

    def give_back(self, size: int) -> None:
        self.now -= size


async def read_body(request: Request, settings: Settings, buffered: Buffered, most: int | None = None) -> bytes:
    """The whole body. Its bytes are taken from `buffered`; the caller gives `len(body)` back when it is answered.

    `most`: a smaller limit than that of the settings.
    """
    most, taken = min(most or settings.max_upload, settings.max_upload), 0
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "The body is compressed; expected it as it is, without Content-Encoding.")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > most:
        raise await _too_large(request, most)
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for part in request.stream():
                if taken + len(part) > most:
                    raise await _too_large(request, most)
                buffered.take(len(part))
                taken += len(part)
                parts.append(part)
        return b"".join(parts)
    except BaseException as error:
        buffered.give_back(taken)
        if isinstance(error, TimeoutError):
            raise Problem(
                408, f"The body did not arrive within {settings.body_seconds:g} seconds.", {"Connection": "close"}
            ) from error
        if isinstance(error, ClientDisconnect):
            raise Problem(400, "The connection ended before the body did.", {"Connection": "close"}) from error
        raise


async def _too_large(request: Request, most: int) -> Problem:
    """The refusal; a little more is read and thrown away, since a client that is still writing would not see it."""
    try:
        async with asyncio.timeout(_LINGER):
            async for _ in request.stream():
                pass
    except (TimeoutError, ClientDisconnect, RuntimeError):
        pass
    return Problem(
        413, f"The body is too large: at most {most:,} bytes are read. Send less at once.",
        {"Connection": "close"},
    )  # fmt: skip


def content_of(media_type: str, body: bytes, settings: Settings, width: int | None) -> Content:
    """What a body holds; `width` is that of the features that the model takes."""
    kind = media_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return Content(uploads=_checked(files_of(media_type, body, settings.max_images), settings))
    if kind == "application/json":
        return _from_json(body, settings, width)
    raise Problem(
        415,
        f"A body of the type {kind[:80] or 'unknown'!r} is not understood: expected multipart/form-data with files, "
        "or application/json with images (base64) or features.",
    )


def files_of(media_type: str, body: bytes, most: int) -> list[Upload]:
    """The files of a multipart body, in memory alone; fields that are not files are passed over."""
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    _, options = parse_options_header(media_type)
    reader = _Files(most)
    try:
        parser = MultipartParser(options.get(b"boundary", b""), reader.callbacks())
        parser.write(body)
    except FormParserError as error:
        raise Problem(400, f"The multipart body is damaged: {str(error)[:200]}.") from error
    if not reader.ended:
        raise Problem(400, "The multipart body is damaged: it ends before its last boundary.")
    return reader.files


class _Files:
    """What the multipart parser tells, gathered into files."""

    def __init__(self, most: int):
        self.files: list[Upload] = []
        self.ended = False
        self._most, self._parts = most, 0

    def callbacks(self) -> Any:
        names = ("part_begin", "part_data", "part_end", "header_field", "header_value", "header_end", "end")
        return {f"on_{name}": getattr(self, f"_{name}") for name in names}

    def _part_begin(self) -> None:
        self._parts += 1
        if self._parts > self._most:
            raise Problem(413, f"The body has too many parts: at most {self._most} images are answered at once.")
        self._name, self._field, self._value, self._data = None, b"", b"", []

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        from python_multipart.multipart import parse_options_header

        if self._field.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            if b"filename" in options:
                self._name = options[b"filename"].decode("utf-8", "replace")
        self._field, self._value = b"", b""

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name is not None:
            self._data.append(data[start:end])

    def _part_end(self) -> None:
        if self._name is not None:
            self.files.append((self._name, b"".join(self._data)))

    def _end(self) -> None:
        self.ended = True


def _from_json(body: bytes, settings: Settings, width: int | None) -> Content:
    """Pydantic reads and checks in one pass: no depth, number or repetition can make it fail otherwise."""
    texts = 16 * settings.max_images + 64
    values = settings.max_rows * ((width or 1) + 2) + texts
    most = f"at most {settings.max_images} images or {settings.max_rows} rows of features are answered at once"
    wanted = json_of(AnswerRequest, body, values, texts, most)
    if (wanted.images is None) == (wanted.features is None):
        raise Problem(422, "Expected either images or features in the JSON object, and one of them.")
    if wanted.images is not None:
        return Content(uploads=_checked([_decoded(i, image) for i, image in enumerate(wanted.images)], settings))
    return Content(features=_matrix(wanted.features or [], settings, width))


def json_of(kind: type[T], body: bytes, values: int, texts: int, most: str) -> T:
    """A JSON body as what it should be; `most` says in words how much it may hold.

    Counted before it is read: values, since a list of nothings takes 30 times its text; texts and names of fields,
    since each that is not expected is a fault, and a fault takes a kilobyte. The lists of `kind` end at their first.
    """
    too_many = body.count(b",") + body.count(b"[") > values
    if too_many or max(body.count(mark) for mark in (b'"', b":", b"{")) > texts:
        raise Problem(413, f"The JSON holds too many values: {most}.")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise Problem(422, f"The JSON is not what was expected: {_first(error)}.") from error


def _first(error: ValidationError) -> str:
    """Where the first fault lies, and what it is."""
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    steps = [str(step) for step in fault["loc"] if step not in (NamedImage.__name__, "str")]
    what = _FAULTS.get(fault["type"], fault["msg"])
    return f"{'.'.join(steps)[:100]}: {what}" if steps else what


def _decoded(index: int, image: NamedImage | str) -> Upload:
    if isinstance(image, str):
        image = NamedImage.model_construct(name="", data=image)
    name = image.name or f"image {index}"
    text = image.data.partition(",")[2] if image.data.startswith("data:") else image.data
    try:
        return name, base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Problem(422, f"images.{index}: is not base64 ({error}).") from error


def _checked(uploads: list[Upload], settings: Settings) -> tuple[Upload, ...]:
    """At least one file and not too many, with names that can be repeated."""
    if not uploads:
        raise Problem(422, "Expected at least one image file in the body, and found none.")
    if len(uploads) > settings.max_images:
        raise Problem(413, f"Found {len(uploads)} images; at most {settings.max_images} are answered at once.")
    return tuple((plain_name(name) or f"image {i}", data) for i, (name, data) in enumerate(uploads))


def plain_name(name: str) -> str:
    """A name that a client gave, as text that does nothing: one line, no control characters, not endless."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name[:_MOST_NAME])


def _matrix(rows: list[list[float]], settings: Settings, width: int | None) -> np.ndarray:
    if width is None:
        raise Problem(422, "This model takes no features: send images.")
    if len(rows) > settings.max_rows:
        raise Problem(413, f"Found {len(rows)} rows of features; at most {settings.max_rows} are answered at once.")
    for i, row in enumerate(rows):
        if len(row) != width:
            raise Problem(422, f"features.{i}: has {len(row)} numbers; expected {width}, the width of the model.")
    with np.errstate(over="ignore"):
        features = np.asarray(rows, dtype=np.float32)
    if not np.isfinite(features).all() or np.abs(features).max() > 1e15:
        raise Problem(422, "features: some numbers are too large; expected features of the model's backbone.")
    return features


def json_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
