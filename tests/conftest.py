"""Fixtures that several test modules share."""

import os
from pathlib import Path

# Tests run in several processes at once: threads of their own would only fight over the cores. Set before torch loads,
# and inherited by the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from bayescal.backbones import Backbone, load_backbone
from chromium import browser, heard  # noqa: F401
from small_runs import _words, make_runs  # noqa: F401


def pytest_addoption(parser) -> None:
    group = parser.getgroup("faults", "the fault campaign (tests/faults)")
    group.addoption("--faults-long", action="store_true", help="forty times as many kills and damages")
    group.addoption("--faults-seed", type=int, help="repeat a campaign; a test that fails prints its seed")


@pytest.fixture(scope="session")
def mini() -> Backbone:
    """The embedded backbone, loaded once."""
    return load_backbone("mini")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real images beside the repository; tests that need them are skipped elsewhere."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the images in {folder}, which are not part of the repository")
    return folder
