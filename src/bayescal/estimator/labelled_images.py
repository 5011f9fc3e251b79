"""Images with what is known of each, as learning takes them: from lists in Python, or from a manifest."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from bayescal.data import ImageSource, Manifest
from bayescal.data.names import choose_words
from bayescal.data.sources import as_content
from bayescal.errors import DataError
from bayescal.features.content_index import ContentIndex

Words = Mapping[Any, str] | None  # {label: "words"} for some labels


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """N images, and the tables that their ids point into: every class and environment there has an image."""

    sources: tuple[ImageSource, ...]
    class_ids: np.ndarray  # (N,)
    environment_ids: np.ndarray  # (N,)
    classes: np.ndarray  # (C,): labels as the user gave them, sorted
    environments: np.ndarray  # (E,)
    class_words: tuple[str, ...]
    environment_words: tuple[str, ...]
    validation: np.ndarray | None = None  # (N,) bool: images to validate on; None: still to be drawn
    contents: ContentIndex | None = None  # where they have been hashed already

    @classmethod
    def from_lists(
        cls,
        images: Sequence[ImageSource],
        classes: Sequence[Any] | None,
        environments: Sequence[Any] | None = None,
        validation: Sequence[bool] | None = None,
        *,
        class_words: Words = None,
        environment_words: Words = None,
    ) -> "LabelledImages":
        """One class and environment per image; without environments, all images are from one called "all"."""
        sources = as_list(images)
        if classes is None:
            raise DataError("expected the classes of the images, one for each: fit(images, classes, environments)")
        environments = ["all"] * len(sources) if environments is None else environments
        _check_lengths(sources, classes, environments, validation)
        class_labels, class_ids = np.unique(np.asarray(classes), return_inverse=True)
        environment_labels, environment_ids = np.unique(np.asarray(environments), return_inverse=True)
        return cls(
            sources=tuple(sources),
            class_ids=class_ids,
            environment_ids=environment_ids,
            classes=class_labels,
            environments=environment_labels,
            class_words=_words(class_labels, class_words, "class"),
            environment_words=_words(environment_labels, environment_words, "environment"),
            validation=None if validation is None else np.asarray(validation, dtype=bool),
        )

    @classmethod
    def from_manifest(
        cls,
        manifest: Manifest,
        validation: np.ndarray | None = None,
        contents: ContentIndex | None = None,
        *,
        class_words: Words = None,
        environment_words: Words = None,
    ) -> "LabelledImages":
        """All images of a manifest, whatever its splits; the words given here win over the manifest's."""
        if not len(manifest):
            raise DataError("no images to learn from")
        manifest = manifest.with_words(_by_name(class_words), _by_name(environment_words))
        # A selection keeps the whole tables: names without images, such as environments left out, go.
        classes, class_ids = np.unique(manifest.class_ids, return_inverse=True)
        environments, environment_ids = np.unique(manifest.environment_ids, return_inverse=True)
        return cls(
            sources=manifest.paths,
            class_ids=class_ids,
            environment_ids=environment_ids,
            classes=np.array(manifest.classes)[classes],
            environments=np.array(manifest.environments)[environments],
            class_words=tuple(manifest.class_words[i] for i in classes),
            environment_words=tuple(manifest.environment_words[i] for i in environments),
            validation=validation,
            contents=contents,
        )

    def __len__(self) -> int:
        return len(self.sources)

    def take(self, images: np.ndarray) -> "LabelledImages":
        """Some of the images, by number (n,); the tables stay, so ids keep their meaning."""
        return replace(
            self,
            sources=tuple(self.sources[i] for i in images),
            class_ids=self.class_ids[images],
            environment_ids=self.environment_ids[images],
            validation=None if self.validation is None else self.validation[images],
            contents=None if self.contents is None else self.contents.take(images),
        )

    def missing_classes(self, images: np.ndarray | slice = slice(None)) -> list[str]:
        """Classes without an image among these, by name."""
        present = set(self.class_ids[images].tolist())
        return [str(label) for number, label in enumerate(self.classes) if number not in present]


def as_list(images: Sequence[ImageSource] | Manifest) -> list[ImageSource]:
    """Images as a list; a single one is refused, whose letters, bytes or rows would be taken for images."""
    if isinstance(images, Manifest):
        return list(images.paths)
    if (single := _single(images)) is not None:
        raise DataError(f"expected a list of images, found {single}")
    return [as_content(image) for image in images]


def _single(images: Any) -> str | None:
    """What was given in place of a list, and what to pass instead; None for what can be gone through."""
    if isinstance(images, str | os.PathLike):
        path = str(os.fspath(images))
        if os.path.isdir(path):
            return f"the folder {path!r}: pass read_manifest({path!r}), or a list of the images in it"
        return f"the single path {path!r}: pass [{path!r}]"
    if isinstance(images, bytes | bytearray | memoryview):
        return "the bytes of a single one: pass them in a list, [content]"
    if isinstance(images, Image.Image):
        return "a single Pillow image: pass it in a list, [image]"
    if isinstance(images, np.ndarray):
        colours = images.ndim == 3 and images.shape[-1] in (3, 4)
        if images.ndim in (0, 2) or colours:
            return f"an array of shape {images.shape}, which is a single one: pass it in a list, [array]"
        return None
    if hasattr(images, "read"):
        return "a single file object: pass it in a list, [file]"
    return (
        None
        if isinstance(images, Iterable)
        else f"{type(images).__name__}: pass paths, arrays, Pillow images … in a list"
    )


def _words(labels: np.ndarray, given: Words, kind: str) -> tuple[str, ...]:
    return choose_words([str(label) for label in labels.tolist()], _by_name(given), kind)


def _by_name(given: Words) -> dict[str, str]:
    return {str(label): words for label, words in (given or {}).items()}


def _check_lengths(
    images: list[ImageSource], classes: Sequence[Any], environments: Sequence[Any], validation: Sequence[bool] | None
) -> None:
    if not images:
        raise DataError("no images to learn from")
    if not len(images) == len(classes) == len(environments):
        raise DataError(
            "images, classes and environments must be equally many, found "
            f"{len(images)}, {len(classes)} and {len(environments)}"
        )
    if validation is not None and len(validation) != len(images):
        raise DataError(f"validation must mark each of the {len(images)} images, found {len(validation)} marks")
