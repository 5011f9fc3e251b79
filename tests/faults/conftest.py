"""How long the campaign is, and the seed that repeats it."""

import random

import pytest

from benches import _made, bundle, pictures, prepared  # noqa: F401
from command_line import _own_cache, _trained, data, model, shapes  # noqa: F401


@pytest.fixture
def rounds(request) -> int:
    """By how much the short campaign is multiplied."""
    return 40 if request.config.getoption("--faults-long") else 1


@pytest.fixture
def r(request) -> random.Random:
    """Random choices of one test. The seed is printed where the test fails."""
    seed = request.config.getoption("--faults-seed")
    seed = random.randrange(10**6) if seed is None else seed
    print(f"repeat with: pytest {request.node.nodeid} --faults-seed {seed}")
    return random.Random(f"{seed}/{request.node.name}")
