"""The process that listens: uvicorn, with limits on slow and on many connections."""

import asyncio
import logging
import socket
from collections.abc import Callable

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from bayescal.errors import BayescalError
from bayescal.serving.problems import MEDIA_TYPE, Problem, busy
from bayescal.serving.settings import Settings

_BACKLOG = 1024  # connections that wait to be accepted
_LOG = "bayescal-serve"  # name of the handler that writes the log
_IDLE = 5  # seconds that a connection may rest between two requests


def serve(app: FastAPI, settings: Settings, listening: socket.socket, started: Callable[[str], None]) -> None:
    """Answer until SIGTERM or Ctrl-C, then finish what is begun. `started` is told the address."""
    with_log()
    port = listening.getsockname()[1]
    config = uvicorn.Config(
        app,
        http=type("Bounded", (Bounded,), {"settings": settings}),
        ws="none",
        lifespan="on",
        log_level=logging.ERROR,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=int(settings.drain_seconds),
        h11_max_incomplete_event_size=32 * 1024,
    )
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    started(f"http://{host}:{port}/")
    uvicorn.Server(config).run(sockets=[listening])


def with_log() -> None:
    """Warnings and failures go to stderr, as answers and messages say; of a library, nothing is heard otherwise."""
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # a damaged body is the client's, who is told
    log = logging.getLogger("bayescal")
    for handler in [handler for handler in log.handlers if handler.get_name() == _LOG]:
        log.removeHandler(handler)  # stderr may be another one by now
    handler = logging.StreamHandler()
    handler.set_name(_LOG)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)


def listen(settings: Settings) -> socket.socket:
    """The listening socket; opened before the model is read, so that a port in use is said at once."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        # With the protocol named, asyncio switches Nagle's algorithm off: else every answer waits 40 ms for an ACK.
        listening = socket.socket(family[0], socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(family[4])
        listening.listen(_BACKLOG)
        return listening
    except OSError as error:
        raise BayescalError(
            f"--host {settings.host} --port {settings.port}: cannot listen there ({error.strerror or error}). "
            "Choose another --port"
        ) from error


class Bounded(H11Protocol):
    """Uvicorn's HTTP/1.1 with a time for the headers and for reading the answer, and a number of connections."""

    settings: Settings
    _patience: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.settings.max_connections:
            self._refuse(busy("There are too many connections. Try again in a moment."))
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._patience, self._reading):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._head_came()
        elif self._patience is None:
            self._await_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self.loop.call_later(self.settings.body_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(400, "This is not HTTP as it is written: the request could not be understood."))

    def _await_head(self) -> None:
        """A request must have begun within this time, however slowly its headers come in."""
        self._patience = self.loop.call_later(self.settings.head_seconds, self.transport.abort)

    def _head_came(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _refuse(self, problem: Problem) -> None:
        """An answer without a request that could be read, and the end of the connection."""
        body = problem.body()
        fields = {
            "content-type": MEDIA_TYPE, "content-length": str(len(body)), "connection": "close", **problem.headers
        }  # fmt: skip
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = [(name.encode(), value.encode()) for name, value in fields.items()]
            self.transport.write(self.conn.send(h11.Response(status_code=problem.status, headers=head)) or b"")
            self.transport.write(self.conn.send(h11.Data(data=body)) or b"")
        self.transport.close()
