"""Image files as pixels and as content hashes, and a process that makes them.

Python runs one thread at a time: threads that decode and resize keep about four cores busy however many there are, and
threads that hash small files none at all. Run as a program, this module works for another process:
`features/decode.py` starts one per core.

    python -m bayescal.features.decode_process DESCRIPTOR

Both speak in pickles, through standard input and output: first the transform, how many rows the memory behind
DESCRIPTOR holds and how many bytes images may take while they are decoded, then requests ("pixels" | "digests", list).
The answer is what `fill` or `digests` returns, or the exception it ended with.
"""

import mmap
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from bayescal.data.image_memory import NoRoom, room
from bayescal.data.images import content_hash, decoded
from bayescal.data.sources import ImageError, ImageSource, name_of_source
from bayescal.data.transforms import Transform

# An image, its content hash ("": nobody asked for it), the views wanted of it.
Wish = tuple[ImageSource, str, tuple[int, ...]]


def fill(pixels: np.ndarray, images: Sequence[Wish], transform: Transform, here: bool = True) -> dict[int, str]:
    """Write all views of all images into pixels (n, size, size, 3), one after the other.

    Returns what is wrong with the images that cannot be read, by position; nothing is written for these. Not `here`:
    another process has more room in memory, and an image too large for this one is left to it (`NoRoom`).
    """
    problems: dict[int, str] = {}
    row = 0
    for i, (source, content, views) in enumerate(images):
        try:
            # Features are found again by content: those of a file that has changed would stand under the wrong one.
            known = content if isinstance(source, str | os.PathLike) else ""
            with decoded(source, transform.enough, content=known) as picture:
                for view in views:
                    pixels[row] = transform(picture, content, view)
                    row += 1
        except ImageError as error:
            if isinstance(error, NoRoom) and not here:
                raise
            problems[i] = reason(error, source)
    return problems


def digests(sources: Sequence[ImageSource]) -> tuple[bytes, dict[int, str]]:
    """The content hashes of images, 32 bytes each; where there is none, zeros and the reason by position."""
    found, problems = [], {}
    for i, source in enumerate(sources):
        try:
            found.append(bytes.fromhex(content_hash(source)))
        except ImageError as error:
            problems[i] = reason(error, source)
            found.append(bytes(32))
    return b"".join(found), problems


def reason(error: ImageError, source: ImageSource) -> str:
    """What is wrong with an image, without its name in front."""
    return str(error).removeprefix(f"{name_of_source(source)}: ")


def main() -> None:
    warnings.simplefilter("ignore")  # of the library that decodes: what is wrong with an image is in the answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asked; this process ends with its input
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # whatever else is printed must not get between the answers
    transform, rows, share = pickle.load(asked)
    room.limit_to(share)
    side = transform.how.size
    memory = mmap.mmap(int(sys.argv[1]), rows * side * side * 3)
    pixels = np.frombuffer(memory, dtype=np.uint8).reshape(rows, side, side, 3)
    while True:
        try:
            kind, images = pickle.load(asked)
        except EOFError:
            return
        try:
            answer: Any = digests(images) if kind == "digests" else fill(pixels, images, transform, here=False)
        except Exception as error:
            answer = error
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
