"""What a model keeps of the images it was made from: enough to know them again, to show them, and to learn once more.

    content     SHA-256 of each file: is an image among those learned from, whatever it is called?   (`contains`)
    features    which of them look most like another image                                           (`nearest`)
    labels      with the features, all that learning needs: no old image has to exist any more       (`add`)

Images to learn from come first, those marked or drawn for validation after them.
"""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from bayescal.data.sources import ImageSource
    from bayescal.estimator.labelled_images import LabelledImages

PREFIX = "training/"  # of the tensors in an artifact
CHUNK = 4096  # images compared with all others at once


@dataclass(frozen=True, eq=False)
class TrainingImages:
    """n images on the CPU; ids are those of the model's classes and environments."""

    directions: Tensor  # (n, D) float32 features, of length 1: as the familiarity keeps them, and on disk only once
    lengths: Tensor  # (n,)
    hashes: np.ndarray  # (n, 32) uint8, SHA-256 of the content
    names: tuple[str, ...]  # absolute paths, or what stands for images that had none
    class_ids: np.ndarray  # (n,) int64
    environment_ids: np.ndarray  # (n,) int64
    n_train: int  # the first so many were learned from, the others validated on
    environment_words: tuple[str, ...]  # (E,): what the text tower was shown for the environments

    @classmethod
    def of(cls, features: Tensor, images: "LabelledImages", digests: np.ndarray, n_train: int) -> "TrainingImages":
        """Images with their features (n, D) and contents (n, 32); those to learn from come first."""
        return cls(
            directions=F.normalize(features, dim=-1).cpu(),
            lengths=features.norm(dim=-1).cpu(),
            hashes=digests,
            names=tuple(_lasting_name(source, i) for i, source in enumerate(images.sources)),
            class_ids=images.class_ids.astype(np.int64),
            environment_ids=images.environment_ids.astype(np.int64),
            n_train=n_train,
            environment_words=images.environment_words,
        )

    def __len__(self) -> int:
        return len(self.directions)

    @property
    def features(self) -> Tensor:
        """(n, D), as the backbone gave them, up to rounding."""
        return self.directions * self.lengths[:, None]

    @property
    def validation(self) -> np.ndarray:
        """(n,) bool: the images that were validated on."""
        return np.arange(len(self)) >= self.n_train

    def nearest(self, features: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k images learned from that are most like each of N: numbers (N, k) and cosines (N, k), best first."""
        images = self.directions[: self.n_train]
        parts = [
            (chunk @ images.T).topk(min(k, len(images)), dim=1)
            for chunk in F.normalize(features.cpu().float(), dim=-1).split(CHUNK)
        ]
        if not parts:
            return torch.empty(0, k, dtype=torch.int64), torch.empty(0, k)
        return torch.cat([part.indices for part in parts]), torch.cat([part.values for part in parts])

    def contains(self, digests: np.ndarray) -> np.ndarray:
        """Which contents (N, 32) are among those learned from or validated on: (N,) bool."""
        return np.isin(_as_items(digests), _as_items(self.hashes))

    # ---- on disk --------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """What an artifact's tensors hold. Names are bytes, because a file name need not be text."""
        names = np.frombuffer(b"\0".join(os.fsencode(name) for name in self.names), dtype=np.uint8)
        own = {
            "images": self.directions[: self.n_train],
            "validation_images": self.directions[self.n_train :],
            "lengths": self.lengths,
            "hashes": torch.from_numpy(self.hashes.copy()),
            "names": torch.from_numpy(names.copy()),
            "classes": torch.from_numpy(self.class_ids.copy()),
            "environments": torch.from_numpy(self.environment_ids.copy()),
        }
        return {f"{PREFIX}{name}": value for name, value in own.items()}

    def description(self) -> dict[str, Any]:
        """What an artifact's config says of them."""
        return {
            "train": self.n_train,
            "validation": len(self) - self.n_train,
            "environment_words": [*self.environment_words],
        }

    @classmethod
    def restore(cls, tensors: dict[str, Tensor], about: dict[str, Any] | None) -> "TrainingImages | None":
        """From what `tensors` and `description` say; None for a model that keeps none, as before version 0.2."""
        if about is None:
            return None
        held = {name: tensors[f"{PREFIX}{name}"] for name in ("images", "validation_images", "lengths", "hashes")}
        held |= {name: tensors[f"{PREFIX}{name}"] for name in ("names", "classes", "environments")}
        train, val = held["images"], held["validation_images"]
        return cls(
            directions=torch.cat([train, val]) if len(val) else train,
            lengths=held["lengths"],
            hashes=held["hashes"].numpy(),
            names=tuple(os.fsdecode(name) for name in held["names"].numpy().tobytes().split(b"\0")),
            class_ids=held["classes"].numpy(),
            environment_ids=held["environments"].numpy(),
            n_train=about["train"],
            environment_words=tuple(about["environment_words"]),
        )


def _lasting_name(source: "ImageSource", index: int) -> str:
    """A path that still means the same in another folder; addresses of other stores stay as they are."""
    from bayescal.features.extract import name_of  # with Pillow, which predicting from features does without

    name = name_of(source, index)
    is_path = isinstance(source, str | os.PathLike) and "://" not in name
    return os.path.abspath(name) if is_path else name


def _as_items(digests: np.ndarray) -> np.ndarray:
    """Hashes (N, 32) as N things that can be compared."""
    return np.ascontiguousarray(digests).view("V32").reshape(-1)
