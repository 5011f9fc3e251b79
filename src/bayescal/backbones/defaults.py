"""Training defaults that belong to a backbone: what suits CLIP does not suit a small tower."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class PosteriorDefaults:
    """How a posterior over prompts is trained. The values here are the paper's, which trains it like CAL."""

    optimizer: str = "sgd"
    learning_rate: float = 0.002
    epochs: int = 30
    batch_size: int = 32
    # Whether every class has a context of its own.
    class_specific: bool = False
    # Standard deviation of the prior around the initial context: the scale at which CLIP initialises embeddings.
    prior_scale: float = 0.02
    # Posterior standard deviation at the start, as a fraction of the prior's: wide enough to matter, narrow enough to
    # let the first steps see the data.
    initial_scale: float = 0.3
    # Weight of the KL term; 1 is the true evidence lower bound. Not tuned on CLIP, whose weights are not part of this
    # package: with a prior this narrow, the first mini learned nothing at 1 and as much as without a prior at 0.01.
    beta: float = 0.01


@dataclass(frozen=True)
class TrainingDefaults:
    """What a method uses where the user says nothing. The values here are the spec's, meant for CLIP."""

    # SGD step size, with the cosine schedule below: the value of the paper.
    learning_rate: float = 0.002
    # Passes over the few training images; the cosine schedule ends here, so it is part of the recipe.
    epochs: int = 30
    # Rows per step. Large enough to hold several images of every environment, which the IRM term compares.
    batch_size: int = 32
    # M, the number of context vectors in front of a name.
    n_context: int = 16
    # Whether every class has a context of its own.
    class_specific: bool = False
    # Words whose embeddings start the context ("a photo of a"); "" draws it from N(0, 0.02²).
    # A random start is what the paper uses with CLIP; it needs a tower strong enough to recover from it.
    context_init: str = ""
    # Methods with a posterior over prompts.
    posterior: PosteriorDefaults = PosteriorDefaults()
    # Augmented views cached per training image. 30 views for 30 epochs is fresh augmentation in every epoch;
    # 0 trains on the test transform alone, which costs one encoding per image.
    views: int = 30
    # Sentence for zero-shot classification; {} is the name.
    template: str = "a photo of a {}."
    # CLIP-Adapter's α, the share of the adapted features: the value of its paper.
    adapter_ratio: float = 0.2
    # Tip-Adapter-F's α and β while its keys are trained, and how far α is searched afterwards: those of its code.
    cache_alpha: float = 1.0
    cache_beta: float = 5.0
    cache_alpha_max: float = 20.0
    # Adam's weight decay of the networks on features (ERM and its kin): DomainBed's default.
    network_weight_decay: float = 0.0

    @classmethod
    def restore(cls, saved: Mapping[str, Any]) -> "TrainingDefaults":
        """From `dataclasses.asdict`, of this version or of 0.1, where a posterior was trained like everything else."""
        own = {field.name for field in fields(PosteriorDefaults)}
        posterior = saved.get("posterior") or {name: value for name, value in saved.items() if name in own}
        kept = {field.name for field in fields(cls)} - {"posterior"}
        rest = {name: value for name, value in saved.items() if name in kept}
        return cls(**rest, posterior=PosteriorDefaults(**posterior))


CLIP = TrainingDefaults()

# Chosen by environments left out of training on six data sets, never on test (speed/tune_defaults.py, numbers in
# speed/results/defaults-mini2.json and docs/backbones.md), method by method. A small text tower does not find its way
# back from random vectors, so prompts start from words and take larger steps.
#   CLIP zero-shot   "a photo of a {}." stays: no other template, and no ensemble, is better by more than 0.03 nats.
#   CoOp, CAL        rate 0.02 stays; a context of its own for every class instead of one for all: 0.07 nats and 3
#                    points better on average, 0.4 nats and 15 points on waste, whose names say little.
#   Bayes-CAL        a context of its own for every class, trained like CoOp's: thousands of numbers for a few hundred
#                    images, so that Adam, with all images in every step, goes too far from the zero-shot prompt where
#                    that is strong. Of 36 settings, β = 0.3 from a narrow start loses least likelihood among
#                    those that are on no set two points less accurate than CoOp.
#   CLIP-Adapter     ratio 0.5 instead of 0.2: no set loses more than 0.001 nats; rate, epochs and batches stay.
#   Tip-Adapter-F    α = 3, β = 2, searched up to α = 5: with a search up to 20, environments left out lose 0.2 nats.
#   networks         weight decay 0.01, better than none on five of six sets; rate and epochs stay.
#   logistic regr.   C = 10 around the text stays (methods/adapters/logistic_regression.py).
# No augmented views, so that a first fit on a laptop takes seconds.
MINI = TrainingDefaults(
    learning_rate=0.02,
    n_context=4,
    context_init="a photo of a",
    class_specific=True,
    posterior=PosteriorDefaults(
        optimizer="sgd",
        learning_rate=0.02,
        epochs=30,
        batch_size=32,
        class_specific=True,
        prior_scale=0.2,
        initial_scale=0.05,
        beta=0.3,
    ),
    views=0,
    adapter_ratio=0.5,
    cache_alpha=3.0,
    cache_beta=2.0,
    cache_alpha_max=5.0,
    network_weight_decay=0.01,
)
