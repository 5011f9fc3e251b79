"""What a user takes home: answers with labels as a table or as JSON, and the model as one file."""

import csv
import io
import json
import zipfile
from pathlib import Path
from typing import Any

from bayescal.estimator.answers import FIELDS, Answer, answers_of
from bayescal.serving.collection import Collection
from bayescal.serving.labels import AddedImage, Label

_LABEL = ("label", "label_environment", "sha256")


def answers(collection: Collection) -> tuple[list[AddedImage], list[Answer]]:
    """All images with what is said of each, in the order they were added."""
    images = collection.present()
    if not images:
        return [], []
    said = collection.predictor.details(collection.features(images))
    return images, answers_of([image.name for image in images], said)


def as_json(collection: Collection) -> str:
    """The array of `bayescal predict --json`, with the user's label of each image."""
    classes = [str(name) for name in collection.predictor.classes]
    entries = [{**answer.entry(classes), **_label(image)} for image, answer in zip(*answers(collection), strict=True)]
    return "[\n" + ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in entries) + "\n]\n"


def as_csv(collection: Collection) -> str:
    """The table of `bayescal predict --csv --probabilities`, with the user's label of each image."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*FIELDS, *_LABEL, *(f"probability_{name}" for name in collection.predictor.classes)])
    for image, answer in zip(*answers(collection), strict=True):
        cells = [*answer.fields().values(), *_label(image).values()]
        writer.writerow([*map(_cell, cells), *(f"{p:.6f}" for p in answer.probabilities)])
    return stream.getvalue()


def as_zip(folder: Path, name: str) -> bytes:
    """A model's folder as one file; its numbers are not compressed, because that gains nothing."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", strict_timestamps=False) as archive:  # of 1970 too: a ZIP's time begins in 1980
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(file, f"{name}/{file.relative_to(folder).as_posix()}")
    return stream.getvalue()


def _label(image: AddedImage) -> dict[str, Any]:
    label = image.label or Label("", "")
    return dict(zip(_LABEL, (label.class_name or None, label.environment or None, image.id), strict=True))


def _cell(value: Any) -> Any:
    """As in `bayescal predict --csv`; text that a spreadsheet would take for a formula is quoted."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6f}"
    text = "" if value is None else str(value)
    return f"'{text}" if text[:1] in "=+-@\t\r" and text else text
