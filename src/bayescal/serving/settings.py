"""Everything that can be said about a server, with its limits; the defaults fit two cores and 4 GB."""

import ipaddress
from dataclasses import dataclass

from bayescal.errors import BayescalError
from bayescal.util.cores import usable_cpus

MB = 1024 * 1024


@dataclass(frozen=True)
class Settings:
    """How a server listens, whom it lets in, and how much it takes on."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None  # what `Authorization: Bearer …` must say; None: everybody on this machine may ask
    hosts: tuple[str, ...] = ()  # names under which it may be asked, beside its own (a proxy's, for example)

    # What one request may bring
    max_upload: int = 20 * MB  # bytes of a body
    max_images: int = 256  # images of one request
    max_rows: int = 4096  # rows of features of one request
    max_probabilities: int = 500_000  # images × classes of one answer
    max_pixels: int = 50_000_000  # width × height of an image: 150 MB once decoded

    # How much is done at once
    workers: int | None = None  # forward passes at once, each with its share of the cores; None: one per core
    max_batch: int = 32  # images of one forward pass
    wait: float = 0.003  # seconds that the first image of a batch waits for others
    max_queue: int = 512  # images on their way to an answer; beyond it a request is told to come back (503)
    max_buffered: int = 200 * MB  # bytes of all bodies that are being read or decoded
    max_connections: int = 512

    # How long anything may take, in seconds
    head_seconds: float = 10.0  # from the connection to the end of the headers
    body_seconds: float = 30.0  # to send the body
    answer_seconds: float = 60.0  # from the whole body to the answer
    drain_seconds: float = 30.0  # for what is begun, after SIGTERM

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < 16:
            raise BayescalError(f"the token has {len(self.token)} characters: expected at least 16 that nobody guesses")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise BayescalError("the token has characters that a header cannot carry: use letters, digits, - and _")
        if self.token is None and not self.on_loopback:
            raise BayescalError(
                f"--host {self.host} can be reached from other machines: expected a token that they must know. "
                "Set --token or BAYESCAL_TOKEN, or leave --host out to serve this machine alone"
            )
        if not 0 <= self.port <= 65535:
            raise BayescalError(f"--port {self.port}: expected a number from 0 to 65535")

    @property
    def passes(self) -> int:
        """Forward passes at once."""
        return self.workers or usable_cpus()

    @property
    def threads(self) -> int:
        """Cores of one forward pass."""
        return max(1, usable_cpus() // self.passes)

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False
