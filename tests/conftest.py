"""Fixtures that several test modules share."""

from pathlib import Path

import pytest

from bayescal.backbones import Backbone, load_backbone


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
