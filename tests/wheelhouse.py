"""Wheels made of the packages that are installed here, so that tests can install them elsewhere without a network."""

import csv
import os
import sys
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_NOT_SHIPPED = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD")  # of the folder .dist-info


def with_needs(names: Iterable[str]) -> list[Distribution]:
    """These installed distributions and all that they need, without extras."""
    found: dict[str, Distribution] = {}
    todo = list(names)
    while todo:
        name = canonicalize_name(todo.pop())
        if name in found:
            continue
        found[name] = distribution(name)
        needs = [Requirement(line) for line in found[name].requires or []]
        todo += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return list(found.values())


def write_wheels(names: Iterable[str], folder: Path) -> Path:
    """A folder of wheels: these distributions and all that they need."""
    folder.mkdir(parents=True, exist_ok=True)
    for found in with_needs(names):
        _write_wheel(found, folder)
    return folder


def _write_wheel(found: Distribution, folder: Path) -> None:
    """What was installed, as it was before; commands are made anew from the entry points."""
    lines = (found.read_text("WHEEL") or "").splitlines()
    tags = [line.partition(":")[2].strip().split("-") for line in lines if line.startswith("Tag:")]
    tag = "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
    name = canonicalize_name(found.metadata["Name"]).replace("-", "_")
    records = [row[0] for row in csv.reader((found.read_text("RECORD") or "").splitlines()) if row]
    kept = [path for path in records if not path.startswith("..") and not path.endswith(".pyc")]
    info = next(Path(path).parts[0] for path in kept if path.endswith(".dist-info/METADATA"))
    kept = [path for path in kept if path not in {f"{info}/{own}" for own in _NOT_SHIPPED}]
    with zipfile.ZipFile(folder / f"{name}-{found.version}-{tag}.whl", "w", strict_timestamps=False) as wheel:
        for path in kept:
            wheel.write(str(found.locate_file(path)), path)
        wheel.writestr(f"{info}/RECORD", "".join(f'"{path}",,\n' for path in [*kept, f"{info}/RECORD"]))


def offline(wheels: Path) -> dict[str, str]:
    """The environment in which pip installs from these wheels and asks nobody."""
    return {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_NO_COMPILE": "1",  # the tests import little of what is installed
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
    }


def here() -> str:
    """The folder of the packages that this Python imports."""
    return next(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
