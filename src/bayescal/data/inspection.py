"""Looking at every image of a manifest before it is used: can it be read, and is it there twice?"""

import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bayescal.data.images import content_hash, decoded
from bayescal.data.manifest import Manifest
from bayescal.data.sources import ImageError, is_local_file, open_source
from bayescal.util.progress import progress_bar

_THREADS = 4  # decoding releases Python's lock; more threads would only wait for the disk
_ENOUGH = 1024  # pixels of the shorter side: what a large image is at least left with, as in extraction


@dataclass(frozen=True)
class ContentIndex:
    """What was found in N files: a hash each, None where the file cannot be read, and why it cannot."""

    hashes: tuple[str | None, ...]
    unreadable: tuple[str, ...]  # one message per file


@dataclass(frozen=True)
class Copies:
    """Images that occur more than once, by what the copies disagree in; each group is rows of the manifest."""

    across_classes: list[list[int]]  # labelled as two things: one label is wrong
    across_splits: list[list[int]]  # trained or chosen on, and tested on
    across_environments: list[list[int]]  # leaks when one of the environments is held out
    within: list[list[int]]  # harmless: used once


def read_contents(manifest: Manifest, progress: bool = False) -> ContentIndex:
    """Open and decode each image, and hash its file."""

    def look(path: str) -> tuple[str | None, str | None]:
        try:
            content = path if is_local_file(path) else open_source(path).read()  # fetched once
            with decoded(content, _ENOUGH, name=path):
                return content_hash(content), None
        except ImageError as error:
            return None, str(error)

    hashes, messages = [], []
    workers = min(_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool, progress_bar("images" if progress else None, len(manifest)) as bar:
        for digest, message in pool.map(look, manifest.paths):
            hashes.append(digest)
            if message is not None:
                messages.append(message)
            bar.advance()
    return ContentIndex(tuple(hashes), tuple(messages))


def find_copies(manifest: Manifest, hashes: Sequence[str | None]) -> Copies:
    """Group images with the same content; a group is listed once, under the worst it does."""
    groups: dict[str, list[int]] = defaultdict(list)
    for row, digest in enumerate(hashes):
        if digest is not None:
            groups[digest].append(row)
    copies = Copies([], [], [], [])
    for rows in groups.values():
        if len(rows) < 2:
            continue
        if len(set(manifest.class_ids[rows])) > 1:
            copies.across_classes.append(rows)
        elif len(set(manifest.splits[rows]) - {""}) > 1:
            copies.across_splits.append(rows)
        elif len(set(manifest.environment_ids[rows])) > 1:
            copies.across_environments.append(rows)
        else:
            copies.within.append(rows)
    return copies
