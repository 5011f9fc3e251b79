"""Files that version 0.1.0 wrote (tests/fixtures/v0.1), the tiny backbone they were made with, and what 0.1.0 said."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

OLD = Path(__file__).parent / "fixtures" / "v0.1"


def expected() -> dict[str, Any]:
    return json.loads((OLD / "expected.json").read_text())


def makers() -> ModuleType:
    """The functions that make its backbone and images; not `import tiny`, which is another file here."""
    spec = importlib.util.spec_from_file_location("tiny_of_version_0_1", OLD / "tiny.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
