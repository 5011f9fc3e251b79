"""Small drawn pictures of three things in two kinds of light, for tests that need images and not realism."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

CLASSES, ENVIRONMENTS = ("ball", "tent", "box"), ("night", "snow")  # not in alphabetical order, on purpose
SIZE = 32


@dataclass(frozen=True)
class Pictures:
    """Images with their labels, as `fit` takes them."""

    images: list[Image.Image]
    classes: list[str]
    environments: list[str]

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows) -> "Pictures":
        pick = lambda values: [values[i] for i in rows]  # noqa: E731
        return Pictures(pick(self.images), pick(self.classes), pick(self.environments))

    def every(self, n: int) -> np.ndarray:
        """A mask with every n-th picture of each class and environment, to validate on."""
        cells = list(zip(self.classes, self.environments, strict=True))
        return np.array([cells[:i].count(cell) % n == n - 1 for i, cell in enumerate(cells)])


def picture(name: str, light: str, number: int) -> Image.Image:
    """The shape says what it is, the background where it is; position and colour are random."""
    random = np.random.default_rng([CLASSES.index(name), ENVIRONMENTS.index(light), number])
    ground = {"night": 30, "snow": 225}[light]
    image = Image.fromarray((ground + random.integers(-25, 25, (SIZE, SIZE, 3))).astype(np.uint8))
    x, y = random.integers(2, 9, 2).tolist()
    colour = tuple(random.integers(60, 200, 3).tolist())
    draw = ImageDraw.Draw(image)
    if name == "ball":
        draw.ellipse((x, y, x + 20, y + 20), fill=colour)
    elif name == "box":
        draw.rectangle((x, y, x + 20, y + 20), fill=colour)
    else:
        draw.polygon([(x, y + 20), (x + 10, y), (x + 20, y + 20)], fill=colour)
    return image


def make_pictures(n: int, first: int = 0) -> Pictures:
    """n pictures of each class in each environment, numbered from `first`."""
    cells = [(c, e, i) for i in range(first, first + n) for c in CLASSES for e in ENVIRONMENTS]
    return Pictures([picture(*cell) for cell in cells], [c for c, _, _ in cells], [e for _, e, _ in cells])


def save_pictures(images: list[Image.Image], folder: Path) -> list[Path]:
    """The same pictures as PNG files: nothing is lost."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:03}.png" for i in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        image.save(path)
    return paths
