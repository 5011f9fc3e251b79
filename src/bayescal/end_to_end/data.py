"""From a list of images to batches: decoded, augmented, balanced over environments, prepared ahead by other processes.

Which images a step sees, and what becomes of them, is a function of the seed and the number of the step. So the number
of worker processes changes nothing, and a training that was killed continues with the very batches it would have seen.
Batches travel as bytes, (B, size, size, 3); the device turns them into numbers.
"""

import math
import os
import shutil
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bayescal.backbones.base import Preprocess
from bayescal.data.images import read_image
from bayescal.data.sources import ImageError
from bayescal.end_to_end.augment import augmented, plain
from bayescal.errors import DataError
from bayescal.features.threads import usable_cores

Problems = list[tuple[str, str]]  # images that could not be read: path, reason
MOST_WORKERS = 16
_AHEAD = 3  # batches that each worker prepares in advance
_SHARED_MEMORY = "/dev/shm"


class Loaded(NamedTuple):
    """Images with their positions in the data set's list."""

    pixels: Tensor  # (B, size, size, 3) uint8
    rows: Tensor  # (B,)
    problems: Problems


@dataclass(frozen=True)
class TrainImages(Dataset):
    """Item i is the batch of step i, without end.

    Every environment gives the same number of images to a batch. It goes through its images in a random order, each
    once, before it starts over in another order; a small environment does so more often than a large one. An image that
    cannot be read is replaced by the next one of its environment.
    """

    paths: tuple[str, ...]
    environments: np.ndarray  # (n,) counted 0 … E−1
    how: Preprocess
    batch_size: int
    seed: int
    augment: bool = True
    members: tuple[np.ndarray, ...] = field(init=False, repr=False)  # rows of each environment

    def __post_init__(self) -> None:
        count = int(self.environments.max()) + 1
        object.__setattr__(self, "members", tuple(np.flatnonzero(self.environments == e) for e in range(count)))

    @property
    def share(self) -> int:
        """Images of each environment in a batch."""
        return max(1, self.batch_size // len(self.members))

    @property
    def steps_per_epoch(self) -> int:
        """Steps that show as many images as there are."""
        return math.ceil(len(self.paths) / (self.share * len(self.members)))

    def __getitem__(self, step: int) -> Loaded:
        images, rows, problems = [], [], []
        for e in range(len(self.members)):
            for position in range(step * self.share, (step + 1) * self.share):
                row, image = self._readable(e, position, problems)
                random = np.random.default_rng((self.seed, 1, e, position))
                side, filter_name = self.how.size, self.how.interpolation
                pixels = (
                    augmented(image, side, filter_name, random) if self.augment else plain(image, side, filter_name)
                )
                images.append(np.asarray(pixels))
                rows.append(row)
        return Loaded(torch.from_numpy(np.stack(images)), torch.tensor(rows), problems)

    def _readable(self, environment: int, position: int, problems: Problems) -> tuple[int, Image.Image]:
        """The image at this position of an environment's endless list, or the first after it that can be read."""
        rows = self.members[environment]
        turn, at = divmod(position, len(rows))
        order = np.random.default_rng((self.seed, 0, environment, turn)).permutation(rows)
        for row in np.roll(order, -at):
            try:
                return int(row), read_image(self.paths[row])
            except ImageError as error:
                problems.append((self.paths[row], _reason(error, self.paths[row])))
        raise DataError(f"no image of the environment can be read; the first: {': '.join(problems[0])}")


@dataclass(frozen=True)
class PlainImages(Dataset):
    """All images in their order, as prediction sees them; item i is a chunk of up to `batch_size`."""

    paths: tuple[str, ...]
    how: Preprocess
    batch_size: int = 128

    def __len__(self) -> int:
        return math.ceil(len(self.paths) / self.batch_size)

    def __getitem__(self, chunk: int) -> Loaded:
        start = chunk * self.batch_size
        images, rows, problems = [np.empty((0, self.how.size, self.how.size, 3), np.uint8)], [], []
        for row, path in enumerate(self.paths[start : start + self.batch_size], start=start):
            try:
                image = plain(read_image(path), self.how.size, self.how.interpolation)
            except ImageError as error:
                problems.append((path, _reason(error, path)))
                continue
            images.append(np.asarray(image)[None])
            rows.append(row)
        return Loaded(torch.from_numpy(np.concatenate(images)), torch.tensor(rows, dtype=torch.int64), problems)


def default_workers(device: torch.device) -> int:
    """With a GPU to feed, all cores prepare batches; on a CPU they are better used for the model itself."""
    return 0 if device.type == "cpu" else min(usable_cores(), MOST_WORKERS)


def load(
    dataset: TrainImages | PlainImages, items: Sequence[int], workers: int, device: torch.device
) -> Generator[Loaded, None, None]:
    """These items in their order; `workers` processes work ahead, none: this one does it when asked."""
    workers = min(workers, len(items), _room(dataset.batch_size * dataset.how.size**2 * 3))
    loader = DataLoader(
        dataset,
        batch_size=None,  # an item is a batch already
        sampler=items,
        num_workers=workers,
        prefetch_factor=_AHEAD if workers else None,
        pin_memory=device.type == "cuda",
    )
    for pixels, rows, problems in loader:
        yield Loaded(pixels, rows, [tuple(problem) for problem in problems])


def _room(batch_bytes: int) -> int:
    """Workers whose batches fit into half of what is free of the shared memory that processes hand them over in.

    Containers often have 64 MB of it, and a worker that finds it full is killed without a word.
    """
    free = shutil.disk_usage(_SHARED_MEMORY).free if os.path.isdir(_SHARED_MEMORY) else math.inf
    return int(min(free / 2 / (_AHEAD * max(batch_bytes, 1)), MOST_WORKERS))


def to_inputs(pixels: Tensor, how: Preprocess, device: torch.device) -> Tensor:
    """Bytes (B, size, size, 3) → what the network takes, (B, 3, size, size) float32 on the device."""
    x = pixels.to(device, non_blocking=True).float() / 255
    mean, std = (torch.tensor(values, device=device) for values in (how.mean, how.std))
    return ((x - mean) / std).permute(0, 3, 1, 2)


def describe_problems(problems: Iterable[tuple[str, str]], total: int, shown: int = 3) -> str:
    """How many images could not be read, and the first of them with the reason."""
    found = sorted(set(problems))
    first = "; ".join(f"{path}: {reason.rstrip('.')}" for path, reason in found[:shown])
    more = f"; and {len(found) - shown} more" if len(found) > shown else ""
    return f"{len(found)} of {total} images could not be read and were left out ({first}{more})"


def _reason(error: ImageError, path: str) -> str:
    return str(error).removeprefix(f"{path}: ")
