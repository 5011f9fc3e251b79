"""`bayescal predict --sort-into DIR`: images into a folder of their class, or into `unsure` or `unfamiliar`.

Nothing is ever overwritten: a name that is taken by another image gets a number, and an image that is there already is
left as it is, so that a second run changes nothing. Each file appears under its name when it is complete.
"""

import contextlib
import filecmp
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bayescal.data.sources import open_source
from bayescal.errors import BayescalError
from bayescal.estimator.answers import Answer

How = Literal["copy", "move", "link"]
UNSURE, UNFAMILIAR = "unsure", "unfamiliar"
FORBIDDEN = '/\\:*?"<>|'  # in names of folders, on one system or another
DONE = {"copy": "copied", "move": "moved", "link": "linked"}


@dataclass
class Sorter:
    """Puts images where their answers say."""

    target: Path
    how: How
    placed: Counter[str] = field(default_factory=Counter)  # by folder
    there: int = 0  # images that were in their folder before
    left: list[str] = field(default_factory=list)  # in archives and behind URLs, where nothing is moved or linked

    def add(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if answer.ok:
                self._sort(answer)

    def _sort(self, answer: Answer) -> None:
        source: Path | bytes = Path(answer.image)
        if not os.path.isfile(answer.image):
            if self.how != "copy":
                self.left.append(answer.image)
                return
            source = open_source(answer.image).read()
        folder = folder_of(answer)
        try:
            (self.target / folder).mkdir(parents=True, exist_ok=True)
            new = self._place(source, self.target / folder / answer.image.rpartition("/")[2])
        except OSError as error:
            raise BayescalError(
                f"{answer.image} could not be {DONE[self.how]} into {self.target / folder}: {error.strerror or error}. "
                "What is sorted stays; the same command continues"
            ) from error
        if new:
            self.placed[folder] += 1
        else:
            self.there += 1

    def _place(self, source: Path | bytes, first: Path) -> bool:
        """Whether the image, a file or the content of one, was not there before."""
        for target in self._names(first):
            if not os.path.lexists(target):
                with contextlib.suppress(FileExistsError):  # taken in this moment: the next name
                    _put(source, target, self.how)
                    return True
            if _same(source, target):
                return False
        raise AssertionError  # names never end

    def _names(self, first: Path) -> Iterator[Path]:
        """dog.jpg, dog-2.jpg, dog-3.jpg …"""
        yield first
        number = 2
        while True:
            yield first.with_stem(f"{first.stem}-{number}")
            number += 1

    def said(self) -> str:
        """How many images went where."""
        parts = [f"{folder} {n:,}" for folder, n in sorted(self.placed.items())]
        text = f"{self.placed.total():,} images {DONE[self.how]} into {self.target}"
        text += f" ({', '.join(parts)})" if parts else ""
        text += f"; {self.there:,} were there already" if self.there else ""
        return f"{text}; {len(self.left):,} are no files of this computer and can only be copied" if self.left else text


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
        try:
            os.link(source, target)
        except FileExistsError:
            raise
        except OSError:  # another disk, or one without links
            _copy(source, target)
        os.unlink(source)
        return
    _copy(source, target)


def _copy(source: Path | bytes, target: Path) -> None:
    draft = target.with_name(f".{target.name[:200]}.{os.getpid()}.tmp")
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
