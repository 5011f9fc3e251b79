"""The fixtures of the server's tests."""

import pytest

from command_line import _own_cache, _trained, model, shapes
from servers import Client, client

__all__ = ["_own_cache", "_trained", "model", "shapes"]


@pytest.fixture
def server() -> Client:
    """Of a small model made of numpy, asked without a network."""
    return client()
