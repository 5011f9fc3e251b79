"""Who may ask: the Host check, the token, and what a browser may do on behalf of other sites. Around every route.

Three attacks are refused here. Another site makes a visitor's browser send a request to this machine (its `Origin` is
not ours); its name is made to point to 127.0.0.1 after the visit (DNS rebinding: the `Host` is not ours); somebody on
the network asks without knowing the token.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from urllib.parse import unquote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bayescal.serving.metrics import Metrics
from bayescal.serving.problems import Problem, busy
from bayescal.serving.settings import Settings

OPEN = ("/healthz", "/readyz")  # without a token: they say nothing but that there is a server
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HARMLESS = ("GET", "HEAD", "OPTIONS")
_OURS = ("same-origin", "none")  # of Sec-Fetch-Site; none: somebody typed the address
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "media-src 'self' blob:; connect-src 'self'; worker-src 'self'; font-src 'self'; manifest-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_log = logging.getLogger("bayescal.serving")


class Protection:
    """ASGI middleware: refuses, adds the headers that browsers heed, counts, and lets no traceback out."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics):
        self.app, self.settings, self.metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500
        answering = False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, answering
            if message["type"] == "http.response.start":
                status, answering = message["status"], True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await (self._admitted(scope) or self.app)(scope, receive, send_with_headers)
        except Problem as problem:
            await problem.response()(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # the time to finish after SIGTERM is over
            if answering:
                raise
            await busy("The server is stopping.").response()(scope, receive, send_with_headers)
        except Exception:
            _log.exception("a request failed: %s %r", scope["method"], scope["path"][:200])
            if answering:
                raise
            wrong = Problem(500, "The server failed, and its log says how. This is a bug: please report it.")
            await wrong.response()(scope, receive, send_with_headers)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.request(route, status, time.perf_counter() - started)

    def _admitted(self, scope: Scope) -> Response | None:
        """Nothing when the request may go on; raises a `Problem` when not; a response that logs a browser in."""
        headers = Headers(scope=scope)
        self._check_host(headers.getlist("host"))
        if scope["path"] in OPEN:
            return None
        self._check_origin(scope["method"], scope["path"], headers)
        if self.settings.token is None:
            return None
        if scope["method"] == "GET" and scope["path"] == "/" and b"token=" in scope["query_string"]:
            return self._log_in(scope)
        self._check_token(headers)
        return None

    def _check_host(self, hosts: list[str]) -> None:
        """The name by which it was asked must be one of its own."""
        name = _without_port(hosts[0]) if len(hosts) == 1 else ""
        allowed = {*_LOOPBACK, self.settings.host.lower(), *(host.lower() for host in self.settings.hosts)}
        anything = not self.settings.on_loopback and not self.settings.hosts  # whoever asks has to know the token
        if not name or not (anything or name in allowed):
            raise Problem(
                421,
                "The server was asked under a name that is not its own. Use the address that it printed; for another "
                "name, start it with --allow-host NAME.",
            )

    def _check_origin(self, method: str, path: str, headers: Headers) -> None:
        """What changes something, and every read of data, must not come from another site."""
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        foreign = (site is not None and site not in _OURS) or (
            origin is not None and _place(origin) != headers.get("host", "").lower()
        )
        if foreign and (method not in _HARMLESS or path.startswith(("/v1/", "/page/"))):
            raise Problem(403, "The request comes from a page of another site, which may not use this server.")
        by_browser = site is not None or origin is not None
        if method not in _HARMLESS and not by_browser and "cookie" in headers and "authorization" not in headers:
            raise Problem(403, "A cookie without an Origin: programs send the token as Authorization: Bearer.")

    def _check_token(self, headers: Headers) -> None:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _equal(_digest(given.strip()), self._digest):
            return
        for cookie in headers.get("cookie", "").split(";"):
            name, _, value = cookie.strip().partition("=")
            if name == self._cookie and _equal(value, self._digest):
                return
        raise Problem(
            401,
            "The token is missing or wrong. Programs send it as Authorization: Bearer TOKEN; in a browser, open the "
            "address with /?token=TOKEN at its end.",
            {"WWW-Authenticate": 'Bearer realm="bayescal"'},
        )

    def _log_in(self, scope: Scope) -> Response:
        """A browser that knows the token gets a cookie, and an address without the token in it."""
        given = _token_of(scope["query_string"].decode("latin-1"))
        if not _equal(_digest(given), self._digest):
            raise Problem(401, "The token in the address is wrong.", {"WWW-Authenticate": 'Bearer realm="bayescal"'})
        response = RedirectResponse("/", 303)
        # Lax, so that a link in a message or a bookmark opens the page. What changes or reads something on behalf of
        # another site is refused by `_check_origin`; a browser that tells nothing sends the cookie with no POST of its.
        response.set_cookie(self._cookie, self._digest, httponly=True, samesite="lax", path="/")
        return response

    @property
    def _digest(self) -> str:
        return _digest(self.settings.token or "")

    @property
    def _cookie(self) -> str:
        return f"bayescal-{self.settings.port}"  # browsers do not keep the cookies of two ports apart


def _token_of(query: str) -> str:
    """As it was typed: a form's "+" would be a blank, a token's is a letter of it."""
    fields = (part.partition("=") for part in query.split("&"))
    return next((unquote(value) for name, _, value in fields if name == "token"), "")


def _place(origin: str) -> str | None:
    """The host and port of an `Origin`; None for what is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _without_port(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() else host.lower()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _equal(one: str, other: str) -> bool:
    """In a time that does not tell how much of it is right."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())
