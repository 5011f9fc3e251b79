"""Visual MLP: the paper's "conventional visual model", a network d → 256 → 64 → C on frozen image features.

    L = CE(f(x), y)

The same loss and network as ERM, trained by the recipe of the prompt-learning methods (SGD with momentum, a warm-up
epoch, half a cosine) instead of DomainBed's, so that the two tables of the paper each have their own baseline.
"""

from typing import ClassVar

from bayescal.methods.base import Schedule
from bayescal.methods.visual.erm import ERM
from bayescal.optim import SGD, Optimizer, cosine_with_warmup
from bayescal.space import Space, number, setting


class VisualMLP(ERM):
    name = "visual-mlp"
    title = "visual MLP"
    citation = "Zhu et al., Bayesian Cross-Modal Alignment Learning for Few-Shot OoD Generalization, AAAI 2023"
    optimizer: ClassVar[Optimizer] = SGD()
    schedule: ClassVar[Schedule] = staticmethod(cosine_with_warmup)
    space: ClassVar[Space] = {
        "learning_rate": number(0.02),
        "weight_decay": number(5e-4),
        "epochs": setting(lambda b: b.epochs),
        "batch_size": setting(lambda b: b.batch_size),
    }
