"""Finding photos of cats and dogs with their foreground masks, in two layouts.

| files                                      | from                                | animal in a mask              |
|--------------------------------------------|-------------------------------------|-------------------------------|
| images/cat/*.jpg, masks/cat/*.png; and dog | anybody's photos                    | what is lighter than grey     |
| images/*.jpg, annotations/trimaps/*.png    | Oxford-IIIT Pet as it is downloaded | 1 (animal) and 3 (its edge);  |
|                                            |                                     | 2 is background               |

In Oxford-IIIT Pet the names of cat breeds begin with a capital letter.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from bayescal.data.file_tree import find_images
from bayescal.data.images import content_hash, read_image
from bayescal.errors import BayescalWarning, DataError

ANIMALS = ("cat", "dog")  # by label: 0, 1
SOURCE = (
    "Download images.tar.gz and annotations.tar.gz of Oxford-IIIT Pet from "
    "https://www.robots.ox.ac.uk/~vgg/data/pets/ and unpack both into one folder, or use photos of your own."
)
LAYOUT = """
    pets/
        images/
            cat/
                1.jpg
            dog/
                2.jpg
        masks/
            cat/
                1.png           white: animal, black: background; as large as the photo
            dog/
                2.png
    or Oxford-IIIT Pet as it is downloaded:
    pets/
        images/
            Abyssinian_1.jpg
        annotations/
            trimaps/
                Abyssinian_1.png"""
_BACKGROUND = 2  # in a trimap


class Photo(NamedTuple):
    """A photo and the file that says where the animal is."""

    animal: str
    image: Path
    mask: Path
    is_trimap: bool


def find_photos(folder: Path) -> list[Photo]:
    """Photos that have a mask, each content once, in the order of their names; notes say what was left out."""
    folder = Path(folder).expanduser()
    if not (folder / "images").is_dir():
        raise DataError(f"{folder}: there is no folder {folder / 'images'}. Expected:\n{LAYOUT}\n{SOURCE}")
    by_class = (folder / "masks").is_dir()
    candidates = _by_class(folder) if by_class else _oxford(folder)
    photos = [photo for photo in candidates if photo.mask.is_file()]
    if missing := len(candidates) - len(photos):
        first = next(photo for photo in candidates if not photo.mask.is_file())
        _warn(f"{folder}: {missing} photos have no mask and are not used (for {first.image.name}: {first.mask})")
    for animal in ANIMALS:
        if not any(photo.animal == animal for photo in photos):
            raise DataError(f"{folder}: there is no photo of a {animal} with a mask. Expected:\n{LAYOUT}\n{SOURCE}")
    return _without_copies(photos, folder)


def read_animal(photo: Photo) -> tuple[np.ndarray, np.ndarray]:
    """The photo (H, W, 3) uint8 and the mask of the animal (H, W) bool."""
    pixels = np.asarray(read_image(photo.image))
    if photo.is_trimap:
        try:
            with Image.open(photo.mask) as trimap:
                mask = np.asarray(trimap) != _BACKGROUND
        except OSError as error:
            raise DataError(f"{photo.mask}: cannot be read ({error}).") from error
    else:
        mask = np.asarray(read_image(photo.mask).convert("L")) > 127
    if mask.shape != pixels.shape[:2]:
        raise DataError(
            f"{photo.mask}: is {mask.shape[1]} × {mask.shape[0]} pixels, but its photo {photo.image} is "
            f"{pixels.shape[1]} × {pixels.shape[0]}. A mask must be as large as its photo."
        )
    return pixels, mask


def _by_class(folder: Path) -> list[Photo]:
    photos = []
    for animal in ANIMALS:
        images = folder / "images" / animal
        if not images.is_dir():
            raise DataError(f"{folder}: there is no folder {images}. Expected:\n{LAYOUT}\n{SOURCE}")
        for image in find_images(images):
            mask = (folder / "masks" / animal / image.relative_to(images)).with_suffix(".png")
            photos.append(Photo(animal, image, mask, is_trimap=False))
    return photos


def _oxford(folder: Path) -> list[Photo]:
    trimaps = folder / "annotations" / "trimaps"
    if not trimaps.is_dir():
        raise DataError(f"{folder}: there is neither {folder / 'masks'} nor {trimaps}. Expected:\n{LAYOUT}\n{SOURCE}")
    return [
        Photo("cat" if image.name[0].isupper() else "dog", image, trimaps / f"{image.stem}.png", is_trimap=True)
        for image in find_images(folder / "images")
    ]


def _without_copies(photos: Sequence[Photo], folder: Path) -> list[Photo]:
    """Each content once: on another background, with other noise, nobody would see that two images are the same."""
    first: dict[str, Photo] = {}
    for photo in photos:
        first.setdefault(content_hash(photo.image), photo)
    if copies := len(photos) - len(first):
        _warn(f"{folder}: {copies} photos are copies of another one and are used once")
    return list(first.values())


def _warn(message: str) -> None:
    warnings.warn(message, BayescalWarning, stacklevel=4)
