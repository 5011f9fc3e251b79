"""Starting without a model: choose a folder on this machine, see what is in it, learn from it.

Only for a server that nobody but this machine can reach. Folders are listed below the user's home and the folder the
server was started in; one that lies elsewhere can be typed.
"""

import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bayescal.data import Manifest, read_manifest
from bayescal.data.file_tree import IMAGE_SUFFIXES, is_visible
from bayescal.data.layout import UnclearLayout
from bayescal.errors import BayescalError, BayescalWarning, DataError
from bayescal.estimator.artifact import CONFIG, TENSORS, check_output
from bayescal.estimator.classifier import FewShotClassifier
from bayescal.estimator.training_data import choose_training_data
from bayescal.serving.problems import Problem
from bayescal.util.suggest import or_did_you_mean

Reading = tuple[str, bool]  # a layout, and whether the class is in the files' names

LISTED = 500  # folders that are shown of one folder
COUNTED = 1000  # files that are looked at to say how many images lie in a folder
EXAMPLES = 6  # images that are shown of what was found


def roots() -> list[Path]:
    """Folders below which the page may look around."""
    found = [Path.cwd().resolve()]
    try:
        home = Path.home().resolve()
    except RuntimeError:  # a user without a home
        return found
    return found if home == found[0] else [*found, home]


def list_folder(path: str | None) -> dict[str, Any]:
    """What lies in a folder below one of the roots, links followed: other folders, models, how many images."""
    with _said(path):
        folder = path_of(path).resolve() if path else roots()[0]
    if not any(folder.is_relative_to(root) for root in roots()):
        raise Problem(403, f"{folder} lies outside the folders that can be browsed here: type its path instead")
    with _said(folder):
        entries = sorted((e for e in os.scandir(folder) if is_visible(e.name)), key=lambda e: e.name.lower())
    inside = [path for path in map(Path, entries) if _holds(path.is_dir)]
    parent = folder.parent if any(folder.parent.is_relative_to(root) for root in roots()) else None
    return {
        "path": str(folder),
        "parent": str(parent) if parent and parent != folder else None,
        "roots": [str(root) for root in roots()],
        "folders": [{"name": p.name, "path": str(p), "model": is_model(p)} for p in inside[:LISTED]],
        "more": max(0, len(inside) - LISTED),
        "images": sum(Path(e.name).suffix.lower() in IMAGE_SUFFIXES for e in entries[:COUNTED]),
        "model": is_model(folder),
    }


def path_of(text: str) -> Path:
    """Where a path leads that somebody typed."""
    with _said(text):
        if "\0" in text:
            raise DataError("expected a path, and found one with a NUL character in it")
        return Path(os.path.abspath(Path(text).expanduser()))


def is_model(folder: Path) -> bool:
    return _holds((folder / CONFIG).is_file) and _holds((folder / TENSORS).is_file)


@contextmanager
def _said(path: object) -> Iterator[None]:
    """What cannot be opened is said: a link to itself, a name that is too long, a user that is not there."""
    try:
        yield
    except BayescalError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"{path}: cannot be opened ({getattr(error, 'strerror', None) or error})") from error


def _holds(question: Callable[[], bool]) -> bool:
    """What a file or folder answers; one that must not be looked at is none, and the others are listed all the same."""
    try:
        return question()
    except OSError:
        return False


def look(path: str, reading: Reading | None = None) -> dict[str, Any]:
    """What `fit` would learn from a folder or list of images: classes × environments, and what is missing.

    Of folders that can be read in several ways, these; `reading` chooses one.
    """
    data = existing(path)
    if is_model(data):
        return {"path": str(data), "model": True}
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", BayescalWarning)
            manifest = _read(data, reading)
    except UnclearLayout as unclear:
        readings = [
            {"layout": "/".join(layout.levels) or "image", "class_from_name": layout.class_from_name, "text": text}
            for layout, text in unclear.readings
        ]
        return {"path": str(data), "model": False, "unclear": unclear.problem, "readings": readings}
    counts = manifest.counts()
    empty = manifest.missing_cells()
    notes = [str(warning.message) for warning in warned if issubclass(warning.category, BayescalWarning)]
    notes += [f"{name}: no image in {environment}" for name, environment in empty[:5]]
    if len(empty) > 5:
        notes.append(f"and {len(empty) - 5} more gaps like these")
    if len(manifest.environments) == 1:
        notes.append(
            "All images come from one environment, so nothing can tell how well the model will do in another one. "
            "Put images of other places into folders of their own: PLACE/CLASS/image."
        )
    if rare := [n for n, row in zip(manifest.classes, counts, strict=True) if row.sum() < 4]:
        notes.append(f"Fewer than 4 images: {', '.join(rare[:10])}. More of them make the answers better.")
    step = max(1, len(manifest) // EXAMPLES)
    return {
        "path": str(data),
        "model": False,
        "understood": manifest.understood,
        "images": len(manifest),
        "classes": list(manifest.classes),
        "environments": list(manifest.environments),
        "counts": counts.tolist(),
        "notes": notes,
        "examples": [Path(p).name for p in manifest.paths[::step][:EXAMPLES]],
        "output": str(free_name(Path.cwd() / f"{_plain(data.stem)}-model")),
    }


def fit(path: str, output: str, reading: Reading | None = None) -> Path:
    """Learn from a folder and write the model; where it is. Progress is told to whoever watches."""
    target = path_of(output)
    with _said(target):
        check_output(target, overwrite=False)
    chosen = choose_training_data(_read(existing(path), reading), [], None, None, seed=1)
    classifier = FewShotClassifier(verbose=True)
    checkpoints = target.with_name(f".{target.name}.checkpoints")  # of `bayescal fit` too
    classifier.fit(chosen, checkpoints=checkpoints)
    classifier.save(target)
    shutil.rmtree(checkpoints, ignore_errors=True)
    return target


def _read(data: Path, reading: Reading | None) -> Manifest:
    layout, class_from_name = reading or (None, False)
    return read_manifest(data, layout=layout, class_from_name=class_from_name)


def free_name(path: Path) -> Path:
    """The path, or the first of path-2, path-3, … that nothing has."""
    number, free = 2, path
    while free.exists():
        free, number = path.with_name(f"{path.name}-{number}"), number + 1
    return free


def existing(path: str) -> Path:
    if not path.strip():
        raise DataError("expected the path of a folder with images")
    data = path_of(path.strip())
    with _said(data):
        if data.exists():
            return data
        names = [p.name for p in data.parent.iterdir() if _holds(p.is_dir)] if data.parent.is_dir() else []
    raise DataError(f"{data}: there is no such folder{or_did_you_mean(data.name, names)}")


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")[:100] or "my"
