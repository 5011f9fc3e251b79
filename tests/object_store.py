"""A store that speaks as much of S3 as reading needs, on loopback: ListObjectsV2, HEAD, and GET with ranges."""

import hashlib
import re
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

WHEN = "2024-05-01T10:00:00.000Z"
PAGE = 5  # names in one answer to a listing: the next ones have to be asked for


def etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


class Store(ThreadingHTTPServer):
    """One bucket of objects by name; `asked` has what was asked for: "GET photos/1.png"."""

    def __init__(self, bucket: str, objects: Mapping[str, bytes]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bucket, self.objects, self.asked = bucket, dict(objects), []
        self.daemon_threads = True
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def fetched(self) -> list[str]:
        """The objects whose content was asked for, in order of their names."""
        return sorted(name.removeprefix("GET ") for name in self.asked if name.startswith("GET "))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store  # type: ignore[assignment]

    def do_HEAD(self) -> None:
        self._object(head=True)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path.strip("/") == self.server.bucket:
            self._list({name: values[0] for name, values in parse_qs(parts.query).items()})
        else:
            self._object(head=False)

    def _object(self, head: bool) -> None:
        bucket, _, name = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        self.server.asked.append(f"{self.command} {name}")
        content = self.server.objects.get(name) if bucket == self.server.bucket else None
        if content is None:
            self._answer(404, b"" if head else b"<Error><Code>NoSuchKey</Code></Error>", "application/xml")
            return
        headers = {"ETag": etag(content), "Last-Modified": "Wed, 01 May 2024 10:00:00 GMT"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(asked[1]), int(asked[2] or len(content) - 1)) if asked else (0, len(content) - 1)
        part = content[first : last + 1]
        if asked:
            headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        self._answer(206 if asked else 200, part, "image/png", headers, head)

    def _list(self, query: dict[str, str]) -> None:
        self.server.asked.append(f"LIST {query.get('prefix', '')}")
        prefix, delimiter, after = (query.get(key, "") for key in ("prefix", "delimiter", "continuation-token"))
        rest = [name for name in sorted(self.server.objects) if name.startswith(prefix) and name > after]
        folders = {name[: name.index(delimiter, len(prefix)) + 1] for name in rest if delimiter in name[len(prefix) :]}
        folders = folders if delimiter else set()
        names = [name for name in rest if not any(name.startswith(folder) for folder in folders)]
        page, more = names[:PAGE], len(names) > PAGE
        contents = "".join(
            f"<Contents><Key>{quote(name)}</Key><Size>{len(self.server.objects[name])}</Size>"
            f"<ETag>{escape(etag(self.server.objects[name]))}</ETag><LastModified>{WHEN}</LastModified></Contents>"
            for name in page
        )
        below = "".join(f"<CommonPrefixes><Prefix>{quote(f)}</Prefix></CommonPrefixes>" for f in sorted(folders))
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        text = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{self.server.bucket}</Name><KeyCount>{len(page)}</KeyCount><EncodingType>url</EncodingType>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}{below}</ListBucketResult>"
        )
        self._answer(200, text.encode(), "application/xml")

    def _answer(
        self, status: int, body: bytes, kind: str, headers: Mapping[str, str] | None = None, head: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if not head:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tests read `asked`."""
