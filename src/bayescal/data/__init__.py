"""From images on disk to a manifest and few-shot splits of it. Knows nothing of models."""

from bayescal.data.colored_digits import (
    ColoredDigitsParts,
    colored_digits_parts,
    make_colored_digits,
)
from bayescal.data.coloring import ColoredImages, color_images
from bayescal.data.images import (
    IMAGE_SUFFIXES,
    MAX_PIXELS,
    ImageError,
    ImageSource,
    content_hash,
    find_images,
    read_image,
)
from bayescal.data.manifest import Manifest, ManifestRow, read_manifest
from bayescal.data.names import check_names, to_words
from bayescal.data.splits import Split, check_leaks, few_shot_split, split_from_manifest

__all__ = [
    "IMAGE_SUFFIXES",
    "MAX_PIXELS",
    "ColoredDigitsParts",
    "ColoredImages",
    "ImageError",
    "ImageSource",
    "Manifest",
    "ManifestRow",
    "Split",
    "check_leaks",
    "check_names",
    "color_images",
    "colored_digits_parts",
    "content_hash",
    "few_shot_split",
    "find_images",
    "make_colored_digits",
    "read_image",
    "read_manifest",
    "split_from_manifest",
    "to_words",
]
