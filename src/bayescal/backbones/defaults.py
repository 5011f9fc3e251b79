"""Training defaults that belong to a backbone: what suits CLIP does not suit a small tower."""

from dataclasses import dataclass


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
    # Words whose embeddings start the context ("a photo of a"); "" draws it from N(0, 0.02²).
    # A random start is what the paper uses with CLIP; it needs a tower strong enough to recover from it.
    context_init: str = ""
    # Standard deviation of the prior around the initial context: the scale at which CLIP initialises embeddings.
    prior_scale: float = 0.02
    # Posterior standard deviation at the start, as a fraction of the prior's: wide enough to matter, narrow enough to
    # let the first steps see the data.
    initial_scale: float = 0.3
    # Weight of the KL term; 1 is the true evidence lower bound. Not tuned on CLIP, whose weights are not part of this
    # package: with a prior this narrow, the embedded backbone learned nothing at 1 and as much as without at 0.01.
    beta: float = 0.01
    # Augmented views cached per training image. 30 views for 30 epochs is fresh augmentation in every epoch;
    # 0 trains on the test transform alone, which costs one encoding per image.
    views: int = 30
    # Sentence for zero-shot classification; {} is the name.
    template: str = "a photo of a {}."


CLIP = TrainingDefaults()

# Found on validation images of PACS (benchmarks/tune_defaults.py, results in benchmarks/results/defaults-mini.json,
# discussed in docs/backbones.md). A weak text tower does not find its way back from random vectors, so it starts from
# words and takes larger steps; with a prior wide enough for those steps, β = 1 gives the best cross-entropy.
# No augmented views, so that a first fit on a laptop takes seconds.
MINI = TrainingDefaults(
    learning_rate=0.02,
    n_context=4,
    context_init="a photo of a",
    prior_scale=0.2,
    initial_scale=0.3,
    beta=1.0,
    views=0,
)
