"""What runs share: features, labels and words. Nothing in it is learned."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayescal.errors import BayescalWarning
from bayescal.methods.contract import Task
from bayescal.text.tower import TextTower, normalized

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from bayescal.backbones.base import Backbone

SAME = 0.99  # cosine between what two precisions of a tower say of a name; bfloat16 has 0.999 and more


@dataclass(frozen=True)
class Problem:
    """Features, labels and words: everything that runs share. Nothing in it is learned.

    Usually made by `Problem.of`, from a backbone and what it says of N images.

    Parameters
    ----------
    text : TextTower or LazyTower
        The backbone's text tower.
    tokenize : callable
        Its tokenizer: a text → ids without start and end.
    logit_scale : float
        The factor of its cosines.
    features : Tensor
        (N, D), under the test transform.
    labels, environments : Tensor
        (N,), indices into the words.
    class_words, environment_words : tuple of str
        What the text tower is shown for them.
    views, view_rows : Tensor, optional
        (U, V, D) augmented views of U images, and (N,) which of them an image has, −1 if none.
    precision : torch.dtype, optional
        Of the text tower's layers in training; None: as they are.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from bayescal import Problem, load_backbone
    >>> backbone = load_backbone("mini")
    >>> labels, environments = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    >>> features = torch.randn(4, backbone.dim)  # of four images; `FeatureBank` computes them
    >>> problem = Problem.of(backbone, features, labels, environments, ["dog", "house"], ["photo", "sketch"])
    >>> problem.labels
    tensor([0, 1, 0, 1])
    >>> problem.task([("photo", "sketch")]).n_environments
    2
    """

    text: TextTower
    tokenize: Callable[[str], list[int]]
    logit_scale: float
    features: Tensor  # (N, D)
    labels: Tensor  # (N,)
    environments: Tensor  # (N,): index into environment_words
    class_words: tuple[str, ...]
    environment_words: tuple[str, ...]
    views: Tensor | None = None  # (U, V, D)
    view_rows: Tensor | None = None  # (N,)
    precision: torch.dtype | None = None  # of the text tower's layers in training; None: as they are

    @cached_property
    def environments_on_cpu(self) -> Tensor:
        """`environments` on the CPU, where small questions are answered sooner."""
        return self.environments.cpu()

    @cached_property
    def training_text(self) -> TextTower:
        """The text tower that training uses. What is learned is read by `text` itself.

        A tower whose numbers `precision` cannot hold trains as it is.
        """
        if self.precision is None:
            return self.text
        lower = self.text.in_precision(self.precision)
        words = [self.tokenize(word) for word in self.class_words]
        one, two = (normalized(tower.encode(words)) for tower in (self.text, lower))
        if bool(((one * two).sum(-1) > SAME).all()):  # not so with NaN
            return lower
        warnings.warn(
            f"this text tower cannot compute in {str(self.precision).removeprefix('torch.')}: it reads the class names "
            f"differently there. It is trained in {str(self.text.dtype).removeprefix('torch.')}",
            BayescalWarning,
            stacklevel=2,
        )
        return self.text

    @classmethod
    def of(
        cls,
        backbone: "Backbone",
        features: Tensor,
        labels: "ArrayLike",
        environments: "ArrayLike",
        class_words: Sequence[str],
        environment_words: Sequence[str],
        *,
        views: Tensor | None = None,
        view_rows: Tensor | None = None,
        precision: torch.dtype | None = None,
    ) -> "Problem":
        """With a backbone's text tower; labels and environments (arrays of numbers) go where the features are."""
        return cls(
            text=backbone.text,
            tokenize=backbone.tokenize,
            logit_scale=backbone.logit_scale,
            features=features,
            labels=torch.tensor(labels, device=features.device),
            environments=torch.tensor(environments, device=features.device),
            class_words=tuple(class_words),
            environment_words=tuple(environment_words),
            views=views,
            view_rows=view_rows,
            precision=precision,
        )

    def task(self, environments: Sequence[Sequence[str]], training: bool = False) -> Task:
        """What methods are told: words, and the tower that reads them; `environments` of all runs, or of each."""
        names = tuple(tuple(words) for words in environments)
        if len(set(names)) == 1:
            names = names[:1]
        text = self.training_text if training else self.text
        return Task(text, self.tokenize, self.logit_scale, self.class_words, names, training)
