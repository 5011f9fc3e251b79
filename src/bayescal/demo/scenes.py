"""What the demo works on: two questions, the images they are asked on, and which of them are for what."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayescal.backbones.base import Backbone
from bayescal.data import Manifest, few_shot_split, make_lying_cue, make_new_place
from bayescal.data.synthetic import lying_cue, new_place
from bayescal.features import FeatureBank
from bayescal.training.problem import Problem


@dataclass(frozen=True, eq=False)
class Scene:
    """A made data set with its features, and the images that are tested on, by what they are."""

    manifest: Manifest
    problem: Problem
    learned: tuple[str, ...]  # environments
    shots: int
    tests: dict[str, np.ndarray]  # name → rows
    _splits: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, repr=False)

    def split(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows to train and to validate on, the same for every method."""
        if seed not in self._splits:
            manifest = self.manifest
            split = few_shot_split(
                manifest.class_ids,
                manifest.environment_ids,
                train_environments=[manifest.environments.index(name) for name in self.learned],
                shots=self.shots,
                val_shots=self.shots,
                seed=seed,
                pool=manifest.splits == "train",
                class_names=manifest.classes,
                environment_names=manifest.environments,
            )
            self._splits[seed] = split.train, split.val
        return self._splits[seed]

    def features(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Features (N, D) and labels (N,)."""
        at = torch.from_numpy(rows)
        return self.problem.features[at], self.problem.labels[at]


@dataclass(frozen=True, eq=False)
class Question:
    """One half of the demo. Where it has two scenes, seeds take them in turn."""

    key: str
    title: str
    scenes: tuple[Scene, ...]
    methods: tuple[str, ...]
    headline: str  # the test that counts

    def scene(self, seed: int) -> Scene:
        return self.scenes[seed % len(self.scenes)]

    @property
    def tests(self) -> tuple[str, ...]:
        return tuple(self.scenes[0].tests)

    @property
    def labelled(self) -> int:
        """Labelled images of each class: half to train on, half to choose by; `fit` learns from all."""
        return 2 * self.scenes[0].shots

    @property
    def chance(self) -> float:
        return 1 / len(self.scenes[0].manifest.classes)


NEW_PLACE, LYING_CUE = "a-new-place", "a-cue-that-lies"
FIT = "fit"  # what `bayescal fit` does when nothing is said
AS_TRAINED, REVERSED = "colours as in training", "colours reversed"
SYMBOL_SHOTS, WALL_SHOTS = 12, 8  # labelled images of each class; as many again validate


def prepare(folder: Path, backbone: Backbone, held_out: str = new_place.HELD_OUT, seed: int = 0) -> list[Question]:
    """Draw the images and encode them, once: both are kept for the next time."""
    styles = make_new_place(folder / NEW_PLACE, held_out, seed)
    name = f"{held_out.replace('_', ' ')}, never seen"
    tested = np.flatnonzero(styles.splits == "test")
    walls = [make_lying_cue(folder / f"{LYING_CUE}-{n}", bool(n), seed) for n in (0, 1)]
    shown = _encoded(backbone, [styles, *walls])
    symbols = Scene(styles, shown[0], new_place.LEARNED, SYMBOL_SHOTS, {name: tested})
    painted = [
        Scene(wall, problem, lying_cue.LEARNED, WALL_SHOTS, _by_colour(wall))
        for wall, problem in zip(walls, shown[1:], strict=True)
    ]
    return [
        Question(NEW_PLACE, "A new place", (symbols,), ("clip", "coop", "cal", "bayes-cal", FIT), name),
        Question(
            LYING_CUE, "A cue that lies", tuple(painted), ("clip", "erm", "coop", "cal", "bayes-cal", FIT), REVERSED
        ),
    ]


def _by_colour(wall: Manifest) -> dict[str, np.ndarray]:
    tested = wall.splits == "test"
    third = wall.environment_ids == wall.environments.index(lying_cue.REVERSED)
    return {AS_TRAINED: np.flatnonzero(tested & ~third), REVERSED: np.flatnonzero(tested & third)}


def _encoded(backbone: Backbone, manifests: Sequence[Manifest]) -> list[Problem]:
    """All images in one go, under one bar."""
    paths = [path for manifest in manifests for path in manifest.paths]
    features = FeatureBank(backbone).encode(paths, progress=True).features
    parts = features.split([len(manifest) for manifest in manifests])
    return [
        Problem.of(backbone, part, m.class_ids, m.environment_ids, m.class_words, m.environment_words)
        for part, m in zip(parts, manifests, strict=True)
    ]
