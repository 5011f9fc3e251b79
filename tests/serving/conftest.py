"""The fixtures of the server's tests."""

import pytest
from browsing import context, first, made, page, running, servers, stocked

from command_line import _own_cache, _trained, model, shapes
from servers import Client, client

__all__ = [
    "_own_cache", "_trained", "context", "first", "made", "model", "page", "running", "servers", "shapes", "stocked",
]  # fmt: skip


@pytest.fixture
def server() -> Client:
    """Of a small model made of numpy, asked without a network."""
    return client()
