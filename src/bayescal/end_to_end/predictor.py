"""A model trained end to end, in use and on disk: the trained image model is its own backbone.

Images become features by the trained body, features become answers by the head: so everything that works with a
backbone and a method on top (the feature cache, prediction, evaluation, artifacts) works here too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayescal.backbones.base import Frozen, Preprocess, encode_pixels, usable_device
from bayescal.backbones.fingerprint import fingerprint
from bayescal.end_to_end.algorithms import ImageTask, get_algorithm, space_of
from bayescal.end_to_end.data import PlainImages, Problems, load, to_inputs
from bayescal.end_to_end.network import BODY, HeadNetwork
from bayescal.end_to_end.vision import Vision, rebuild
from bayescal.engine.params import Params
from bayescal.errors import ArtifactError
from bayescal.estimator.artifact import END_TO_END
from bayescal.estimator.checking import check_method, restoring
from bayescal.estimator.predictor import MethodPredictor
from bayescal.methods.contract import Method, Runs


@dataclass(frozen=True, eq=False)
class TrainedBody:
    """The image model after training, an `ImageEncoder`."""

    vision: Vision
    visual: nn.Module
    device: torch.device
    fingerprint: str

    @classmethod
    def of(cls, vision: Vision, tensors: Params, device: torch.device) -> "TrainedBody":
        """A timm model with these weights and statistics, by timm's names."""
        # Not strict: buffers that follow from the shape are not in a state dict.
        vision.module.load_state_dict(tensors, strict=False)
        vision.module.to(device)
        mark = fingerprint(vision.description(), vision.preprocess, vision.module.state_dict())
        return cls(vision, Frozen(vision.module), device, mark)

    @property
    def name(self) -> str:
        return self.vision.name

    @property
    def label(self) -> str:
        return self.vision.name

    @property
    def dim(self) -> int:
        return self.vision.n_features

    @property
    def preprocess(self) -> Preprocess:
        return self.vision.preprocess

    def encode_images(self, pixels: Tensor) -> Tensor:
        """Features (B, D) float32 of pixels (B, 3, size, size), in full precision."""
        return encode_pixels(self.visual, pixels, self.preprocess.size, self.device)

    def encode(self, paths: Sequence[str], workers: int = 0) -> tuple[Tensor, Tensor, Problems]:
        """Features (n, D) of the images that can be read, their positions (n,), and what is wrong with the others."""
        images = PlainImages(tuple(paths), self.preprocess)
        features, rows, problems = [torch.empty(0, self.dim)], [torch.empty(0, dtype=torch.int64)], []
        for loaded in load(images, range(len(images)), workers, self.device):
            problems += loaded.problems
            if len(loaded.rows):
                features.append(self.encode_images(to_inputs(loaded.pixels, self.preprocess, self.device)).cpu())
                rows.append(loaded.rows)
        return torch.cat(features), torch.cat(rows), problems


class EndToEndPredictor(MethodPredictor):
    """What training learned, on the features of the model's own body."""

    backbone: TrainedBody

    @classmethod
    def of(cls, vision: Vision, params: Params, device: torch.device, **fields: Any) -> "EndToEndPredictor":
        """From trained parameters: what belongs to the body goes there, heads and the rest stay here."""
        body = {name.removeprefix(BODY): value[0] for name, value in params.items() if name.startswith(BODY)}
        rest = {name: value for name, value in params.items() if not name.startswith(BODY)}
        return cls(backbone=TrainedBody.of(vision, body, device), params=rest, **fields)

    def bind(self, class_words: Sequence[str] | None = None) -> Method:
        if class_words is not None and len(class_words) != len(self.class_words):
            raise ArtifactError("a model that was trained end to end knows the classes it learned, and no others")
        algorithm = get_algorithm(self.method)
        task = ImageTask(self.class_words, (self.trained_environments,), self.backbone.device, self.backbone.dim)
        runs = Runs.stack(space_of(algorithm), [self.config], self.seeds, self.backbone.device)
        return algorithm(task, runs, HeadNetwork(self.backbone.dim, len(self.class_words)))

    def tensors(self) -> dict[str, Tensor]:
        body = self.backbone.vision.module.state_dict()
        return super().tensors() | {f"{BODY}{name}": value for name, value in body.items()}

    def description(self) -> dict[str, Any]:
        return {"kind": END_TO_END, **super().description(), "vision": self.backbone.vision.description()}

    @classmethod
    def restore(
        cls, tensors: dict[str, Tensor], config: dict[str, Any], path: str | Path, backbone: str | None, device: str
    ) -> "EndToEndPredictor":
        """From what an artifact holds; `load` calls this for models of this kind."""
        if backbone is not None:
            raise ArtifactError(f"{path} was trained end to end and holds its own image model: leave --backbone out")
        body = {name.removeprefix(BODY): value for name, value in tensors.items() if name.startswith(BODY)}
        with restoring(path, "the image model"):
            vision = rebuild(config["vision"])
        try:
            trained = TrainedBody.of(vision, body, usable_device(device))
        except RuntimeError as error:  # the architecture has changed between versions of timm
            raise ArtifactError(f"{path} does not fit this version of timm's {vision.name!r}: {error}") from error
        if trained.fingerprint != config["backbone"]["fingerprint"]:
            raise ArtifactError(
                f"{path} does not fit this version of timm's {vision.name!r}: use the one it was made with"
            )
        with restoring(path, str(config["method"])):
            fields = cls.saved_fields(tensors, config)
            space = space_of(get_algorithm(fields["method"]))
            check_method(space, fields["config"], fields["params"], len(fields["seeds"]), None)
            return cls(backbone=trained, **fields)
