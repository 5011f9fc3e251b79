"""`bayescal predict --sort-into DIR`: images into a folder of their class, or into `unsure` or `unfamiliar`.

Nothing is ever overwritten: a name that is taken by another image gets a number, and an image that is there already is
left as it is, so that a second run changes nothing. Each file appears under its name when it is complete; what a killed
process left unfinished is cleared away.
"""

import contextlib
import filecmp
import itertools
import os
import secrets
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bayescal.data.archives import split_member
from bayescal.data.remote import is_url
from bayescal.data.sources import ImageError, open_source
from bayescal.estimator.answers import Answer
from bayescal.util.atomic import beside, clear_drafts
from bayescal.util.harmless import one_line
from bayescal.util.process import process_mark

How = Literal["copy", "move", "link"]
UNSURE, UNFAMILIAR = "unsure", "unfamiliar"
FORBIDDEN = '/\\:*?"<>|'  # in names of folders, on one system or another
LONGEST_NAME = 255  # bytes, on nearly all file systems
DONE = {"copy": "copied", "move": "moved", "link": "linked"}


@dataclass
class Sorter:
    """Puts images where their answers say; one that cannot be put there is named, and does not stop the others."""

    target: Path
    how: How
    late: bool = False  # only when `finish` is called: what is moved while answers are lost cannot be answered again
    placed: Counter[str] = field(default_factory=Counter)  # by folder
    there: int = 0  # images that were in their folder before
    left: list[str] = field(default_factory=list)  # in archives and behind URLs, where nothing is moved or linked
    failed: list[tuple[str, str]] = field(default_factory=list)  # image and reason
    _waiting: list[tuple[str, str]] = field(default_factory=list)  # image and folder
    _moved: set[str] = field(default_factory=set)  # given twice, an image is there already
    _cleared: set[Path] = field(default_factory=set)  # folders without drafts of the dead

    def add(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if not answer.ok:
                continue
            if self.late:
                self._waiting.append((answer.image, sys.intern(folder_of(answer))))
            else:
                self._sort(answer.image, folder_of(answer))

    def finish(self) -> None:
        """Sort what waited for all answers."""
        for image, folder in self._waiting:
            self._sort(image, folder)
        self._waiting.clear()

    def _sort(self, image: str, folder: str) -> None:
        here = os.path.isfile(image)
        if not here and self.how != "copy" and (is_url(image) or split_member(image)):
            self.left.append(image)
            return
        if not here and os.path.abspath(image) in self._moved:
            self.there += 1
            return
        try:
            source = Path(image) if here else open_source(image).read()
            self._make(self.target / folder)
            new = self._place(source, self.target / folder / image.rpartition("/")[2])
        except (OSError, ImageError) as error:
            why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            self.failed.append((image, why))
            return
        if self.how == "move":
            self._moved.add(os.path.abspath(image))
        if new:
            self.placed[folder] += 1
        else:
            self.there += 1

    def _make(self, folder: Path) -> None:
        if folder not in self._cleared:
            folder.mkdir(parents=True, exist_ok=True)
            clear_drafts(folder)
            self._cleared.add(folder)

    def _place(self, source: Path | bytes, first: Path) -> bool:
        """Whether the image, a file or the content of one, was not there before."""
        for target in _names(first):
            if not os.path.lexists(target):
                with contextlib.suppress(FileExistsError):  # taken in this moment: the next name
                    _put(source, target, self.how)
                    return True
            if _same(source, target):
                return False
        raise AssertionError  # names never end

    def said(self) -> str:
        """How many images went where."""
        parts = [f"{folder} {n:,}" for folder, n in sorted(self.placed.items())]
        text = f"{self.placed.total():,} images {DONE[self.how]} into {self.target}"
        text += f" ({', '.join(parts)})" if parts else ""
        text += f"; {self.there:,} were there already" if self.there else ""
        return f"{text}; {len(self.left):,} are no files of this computer and can only be copied" if self.left else text

    def problem(self, shown: int = 3) -> str:
        """What could not be sorted, with the first reasons; "" where everything was."""
        if not self.failed:
            return ""
        first = "; ".join(f"{one_line(image)}: {why.rstrip('.')}" for image, why in self.failed[:shown])
        more = f"; and {len(self.failed) - shown:,} more" if len(self.failed) > shown else ""
        images = "1 image" if len(self.failed) == 1 else f"{len(self.failed):,} images"
        return (
            f"{images} could not be {DONE[self.how]} into {self.target}: {first}{more}. What is sorted stays; the same "
            "command continues"
        )


def _names(first: Path) -> Iterator[Path]:
    """dog.jpg, dog-2.jpg, dog-3.jpg …, cut where file systems would refuse them as too long."""
    yield first.with_name(_fitting(first.stem, first.suffix))
    for number in itertools.count(2):
        yield first.with_name(_fitting(first.stem, f"-{number}{first.suffix}"))


def _fitting(stem: str, end: str) -> str:
    """Names are as long as their bytes, of which a letter may have four."""
    own = os.fsencode(stem)
    room = max(1, LONGEST_NAME - len(os.fsencode(end)))
    return (stem if len(own) <= room else own[:room].decode(errors="ignore")) + end


def folder_of(answer: Answer) -> str:
    """The name of the folder that an answer belongs into."""
    if answer.unfamiliar:
        return UNFAMILIAR
    if answer.unsure:
        return UNSURE
    name = "".join("_" if letter in FORBIDDEN or ord(letter) < 32 else letter for letter in str(answer.label)).strip()
    if name.strip(".") == "":
        name = f"_{name}"
    return f"{name} (class)" if name in (UNSURE, UNFAMILIAR) else name


def _put(source: Path | bytes, target: Path, how: How) -> None:
    """Under its name at once, and never over another file."""
    if isinstance(source, bytes):
        _copy(source, target)
        return
    if how == "link":
        os.symlink(os.path.abspath(source), target)
        return
    if how == "move":
        _move(source, target)
        return
    _copy(source, target)


def _move(source: Path, target: Path) -> None:
    """A link becomes one to the same file, which from another folder its own text need not lead to."""
    try:
        if source.is_symlink():
            os.symlink(os.path.realpath(source), target)
        else:
            os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # another disk, or one without links
        _copy(source, target)
    os.unlink(source)


def _copy(source: Path | bytes, target: Path) -> None:
    draft = beside(target, f"{process_mark()}.{secrets.token_hex(4)}.tmp")  # as `clear_drafts` knows them
    try:
        if isinstance(source, bytes):
            draft.write_bytes(source)
        else:
            shutil.copy2(source, draft)
        try:
            os.link(draft, target)
        except FileExistsError:
            raise
        except OSError:  # a disk without links
            if os.path.lexists(target):
                raise FileExistsError(target) from None
            os.rename(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def _same(source: Path | bytes, target: Path) -> bool:
    """Whether what is there is this image: the same file, a link to it, or the same content."""
    if not target.exists():  # a link to what is gone
        return False
    if isinstance(source, bytes):
        return target.stat().st_size == len(source) and target.read_bytes() == source
    return os.path.samefile(source, target) or filecmp.cmp(source, target, shallow=False)
