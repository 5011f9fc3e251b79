"""`bayescal-predict DIR IMAGES...`: the answers of an exported model as JSON."""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence

from bayescal_runtime._bayescal.data.file_tree import find_images, is_tree
from bayescal_runtime._bayescal.errors import BayescalError, DataError
from bayescal_runtime.classifier import load

USER_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="bayescal-predict", description=__doc__)
    parser.add_argument("model", metavar="DIR", help="a folder that `bayescal export` wrote")
    parser.add_argument(
        "images", nargs="+", metavar="IMAGES", help="image files and folders; - reads a list from stdin"
    )
    parser.add_argument("--threads", type=int, help="cores of a forward pass; by default all")
    given = parser.parse_args(arguments)
    try:
        unreadable = _answer(given.model, given.images, given.threads)
    except BayescalError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(USER_ERROR) from error
    except BrokenPipeError:  # the reader (`| head`) has enough; Python would complain once more when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    if unreadable:
        raise SystemExit(USER_ERROR)


def _answer(model: str, arguments: Sequence[str], threads: int | None) -> bool:
    """Print the answers; whether none of the images could be read."""
    images = list(_expanded(arguments))
    if not images:
        raise DataError(f"no images found in {', '.join(arguments)}")
    answers = load(model, threads).answers(images)
    lines = [json.dumps(answer, ensure_ascii=False) for answer in answers]
    print("[\n" + ",\n".join(lines) + "\n]")
    return all(answer["status"] != "ok" for answer in answers)


def _expanded(arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        if argument == "-":
            yield from (line for line in sys.stdin.read().splitlines() if line.strip())
        elif is_tree(argument):
            yield from map(str, find_images(argument))
        else:
            yield argument
