"""From images on disk to a manifest and few-shot splits of it. Knows nothing of models."""

from typing import TYPE_CHECKING

from bayescal.util.lazy import lazy_names

if TYPE_CHECKING:
    from bayescal.data.file_tree import IMAGE_SUFFIXES, find_images
    from bayescal.data.images import MAX_PIXELS, content_hash, read_image
    from bayescal.data.manifest import Manifest, ManifestRow, Reading, read_manifest
    from bayescal.data.names import check_names, to_words
    from bayescal.data.sources import ImageError, ImageSource
    from bayescal.data.splits import Split, check_leaks, few_shot_split, split_from_manifest
    from bayescal.data.synthetic.coloring import ColoredImages, color_images
    from bayescal.data.synthetic.lying_cue import make_lying_cue
    from bayescal.data.synthetic.new_place import make_new_place

__all__ = [
    "IMAGE_SUFFIXES",
    "MAX_PIXELS",
    "ColoredImages",
    "ImageError",
    "ImageSource",
    "Manifest",
    "ManifestRow",
    "Reading",
    "Split",
    "check_leaks",
    "check_names",
    "color_images",
    "content_hash",
    "few_shot_split",
    "find_images",
    "make_lying_cue",
    "make_new_place",
    "read_image",
    "read_manifest",
    "split_from_manifest",
    "to_words",
]

# On first use: what a name needs is not loaded for the others.
_HOMES = {
    "IMAGE_SUFFIXES": "bayescal.data.file_tree",
    "MAX_PIXELS": "bayescal.data.images",
    "ImageError": "bayescal.data.sources",
    "ImageSource": "bayescal.data.sources",
    "content_hash": "bayescal.data.images",
    "find_images": "bayescal.data.file_tree",
    "read_image": "bayescal.data.images",
    "Manifest": "bayescal.data.manifest",
    "ManifestRow": "bayescal.data.manifest",
    "Reading": "bayescal.data.manifest",
    "read_manifest": "bayescal.data.manifest",
    "check_names": "bayescal.data.names",
    "to_words": "bayescal.data.names",
    "Split": "bayescal.data.splits",
    "check_leaks": "bayescal.data.splits",
    "few_shot_split": "bayescal.data.splits",
    "split_from_manifest": "bayescal.data.splits",
    "ColoredImages": "bayescal.data.synthetic.coloring",
    "color_images": "bayescal.data.synthetic.coloring",
    "make_lying_cue": "bayescal.data.synthetic.lying_cue",
    "make_new_place": "bayescal.data.synthetic.new_place",
}
__getattr__ = lazy_names(__name__, _HOMES)
