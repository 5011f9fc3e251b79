"""The images and labels that a user adds, in a folder of their own: appended to, never changed.

    images/<sha256>.<ending>   the files as they came
    journal.jsonl              what was done, one line each: an image added or removed, a label given, a model taught

An image's file is on the disk before its line is; a line is on the disk before anybody is told so. So whatever was
acknowledged survives a kill or a power cut. Every process appends whole lines in one write and reads what the others
have appended; no lock is needed. Each line begins with a line end of its own, so one that was cut short by a kill
does not spoil the next. Each has a checksum; those that are not as they were written are left out and counted.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

from bayescal.data.file_tree import IMAGE_SUFFIXES
from bayescal.errors import DataError
from bayescal.util.atomic import replacing, sync_folder
from bayescal.util.checksum import check_seal, sealed
from bayescal.util.jsonable import loads

JOURNAL, IMAGES = "journal.jsonl", "images"
FORMAT = 2  # 2: with a checksum in each line
ENDINGS = (*IMAGE_SUFFIXES, ".heic", ".heif", ".image")  # of files; ".image": of those that are called otherwise
_ID = re.compile("[0-9a-f]{64}")
_KINDS = {
    "what": str, "time": int | float, "image": str, "name": str, "ending": str, "class": str | NoneType,
    "environment": str | NoneType, "model": int, "about": dict,
}  # fmt: skip
_log = logging.getLogger("bayescal")
LONGEST_NAME = 300  # characters of an image's or class's name that are kept


@dataclass(frozen=True)
class Label:
    """What a user says an image shows, and where it was taken."""

    class_name: str
    environment: str


@dataclass(frozen=True)
class AddedImage:
    """An image in the folder; `id` is the SHA-256 of its content."""

    id: str
    name: str  # as the user calls it; shown, never used as a path
    ending: str
    added: float  # seconds since 1970
    change: int  # number of the last line that is about this image
    label: Label | None = None
    labelled: float = 0.0  # when it was labelled last, or its label taken back
    removed: bool = False


@dataclass(frozen=True)
class TaughtModel:
    """A model that was made from the labels: `number` 0 is the one the server was started with."""

    number: int
    time: float
    about: Mapping[str, Any]  # "previous": the number of the model that it took the place of


NONE_TAUGHT = TaughtModel(0, 0.0, {})


class LabelStore:
    """The images and labels in one folder, which several processes may use at once."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self._journal = self.folder / JOURNAL
        self._mutex = threading.RLock()
        self._images: dict[str, AddedImage] = {}
        self._models: dict[int, TaughtModel] = {}
        self._model = NONE_TAUGHT
        self._read, self._changes, self._damaged = 0, 0, 0
        try:
            (self.folder / IMAGES).mkdir(parents=True, exist_ok=True)
            with self._journal.open("ab"):
                sync_folder(self.folder)
        except OSError as error:
            raise DataError(
                f"{self.folder}: labels cannot be kept there ({error.strerror or error}). Choose a folder that can be "
                "written to with --labels FOLDER"
            ) from error
        self.refresh()
        if self._damaged:
            _log.warning(
                "%s: lines that are not as they were written: %d. They are left out", self._journal, self._damaged
            )

    # ---- what is there --------------------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """How many lines have been read; grows with whatever is done here or by another process."""
        return self._changes

    @property
    def damaged(self) -> int:
        """Lines that were cut short or have changed since, and tell nothing."""
        return self._damaged

    @property
    def model(self) -> TaughtModel:
        """The model in use."""
        return self._model

    @property
    def previous(self) -> TaughtModel:
        """The model that the one in use took the place of."""
        return self._models.get(self._model.about.get("previous", 0), NONE_TAUGHT)

    def images(self, since: int = 0) -> list[AddedImage]:
        """Images in the order they were added, removed ones included; those that lines after `since` are about."""
        with self._mutex:
            return [image for image in self._images.values() if image.change > since]

    def get(self, image: str) -> AddedImage | None:
        return self._images.get(image)

    def path(self, image: AddedImage) -> Path:
        return self.folder / IMAGES / f"{image.id}{image.ending}"

    def refresh(self) -> int:
        """Read what has been appended since the last time, by whoever; returns `changes`."""
        with self._mutex:
            try:
                with self._journal.open("rb") as stream:
                    stream.seek(self._read)
                    fresh = stream.read()
            except OSError as error:
                raise DataError(f"{self._journal}: cannot be read ({error.strerror or error})") from error
            whole = fresh.rfind(b"\n") + 1  # the rest is being written, or was cut short: it does not count yet
            self._read += whole
            for line in fresh[:whole].split(b"\n"):
                if line:
                    self._changes += 1
                    self._apply(line)
            return self._changes

    def _apply(self, line: bytes) -> None:
        try:
            event = _event(line)
            what, number = event["what"], self._changes
            if what == "image":
                known = self._images.get(event["image"])
                self._images[event["image"]] = (
                    replace(known, removed=False, change=number)
                    if known
                    else AddedImage(event["image"], event["name"], event["ending"], event["time"], number)
                )
            elif what == "label":
                given = None if event["class"] is None else Label(event["class"], event["environment"])
                self._change(event["image"], label=given, labelled=event["time"])
            elif what == "remove":
                self._change(event["image"], removed=True)
            elif what == "model":
                self._model = TaughtModel(event["model"], event["time"], event["about"])
                self._models[self._model.number] = self._model
        except (ValueError, KeyError):
            self._damaged += 1

    def _change(self, image: str, **changes: Any) -> None:
        self._images[image] = replace(self._images[image], change=self._changes, **changes)

    # ---- what is done ---------------------------------------------------------------------------------------------

    def keep_file(self, content: bytes, name: str) -> AddedImage:
        """Put an image's file into the folder; it is not among the images until `add`."""
        digest = hashlib.sha256(content).hexdigest()
        ending = Path(name).suffix.lower()
        known = self._images.get(digest)
        if known is None:
            # The ending is the user's, so that other programs open the file; from a list, because it becomes a path.
            ending = ending if ending in ENDINGS else ".image"
            known = AddedImage(digest, name[:LONGEST_NAME], ending, 0.0, 0)
        path = self.path(known)
        if not is_as_added(path, digest):
            with replacing(path) as draft:
                draft.write_bytes(content)
        return known

    def forget_file(self, image: AddedImage) -> None:
        """Take back `keep_file`, unless the image has been added by now."""
        self.refresh()
        if image.id not in self._images:
            with contextlib.suppress(OSError):
                self.path(image).unlink()

    def add(self, images: Iterable[AddedImage]) -> None:
        """Images that `keep_file` has put there are the user's from now on."""
        self._append(
            [{"what": "image", "image": image.id, "name": image.name, "ending": image.ending} for image in images]
        )

    def label(self, labels: Sequence[tuple[str, Label | None]]) -> None:
        """Say what images show, by id; None takes a label back. The last word counts."""
        self._check(image for image, _ in labels)
        self._append(
            [
                {
                    "what": "label",
                    "image": image,
                    "class": label.class_name if label else None,
                    "environment": label.environment if label else None,
                }
                for image, label in labels
            ]
        )

    def remove(self, images: Sequence[str], removed: bool = True) -> None:
        """Images that are not to be shown any more; their files stay, and they can come back."""
        self._check(images)
        events = []
        for image in images:
            known = self._images[image]
            events.append(
                {"what": "remove", "image": image}
                if removed
                else {"what": "image", "image": image, "name": known.name, "ending": known.ending}
            )
        self._append(events)

    def use_model(self, number: int, about: Mapping[str, Any]) -> None:
        """From now on the model of this number answers; 0 is the one the server was started with."""
        self._append([{"what": "model", "model": number, "about": dict(about)}])

    def _check(self, images: Iterable[str]) -> None:
        self.refresh()
        if unknown := next((image for image in images if image not in self._images), None):
            raise DataError(f"there is no image {unknown[:12]}… here: add it first")

    def _append(self, events: Sequence[dict[str, Any]]) -> None:
        if not events:
            return
        lines = [json.dumps(sealed({"v": FORMAT, "time": round(time.time(), 3), **event})) for event in events]
        blob = ("\n" + "\n".join(lines) + "\n").encode()
        try:
            handle = os.open(self._journal, os.O_WRONLY | os.O_APPEND)
            try:
                if os.write(handle, blob) != len(blob):
                    raise OSError(0, "the disk is full")
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise DataError(
                f"{self._journal}: could not be written ({error.strerror or error}). Nothing that was written before "
                "is lost; make room and do it again"
            ) from error
        self.refresh()


def is_as_added(path: Path, digest: str) -> bool:
    """Whether a file can be read and has the content of this SHA-256."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError:
        return False


def _event(line: bytes) -> dict[str, Any]:
    """What a line of the journal says; a `ValueError` where it is not as it was written, or not of our kind."""
    event = loads(line)
    if not isinstance(event, dict):
        raise ValueError("it is no object")
    check_seal(event, required=event.get("v") != 1)  # lines of format 1 have no checksum
    for name, kind in _KINDS.items():
        if name in event and not isinstance(event[name], kind):
            raise ValueError(f"{name} is of another kind")
    # Both become a path.
    if not _ID.fullmatch(event.get("image", "0" * 64)) or event.get("ending", ".png") not in ENDINGS:
        raise ValueError("it names no image of ours")
    return event
