"""Visual MLP: the paper's "conventional visual model", a network d → 256 → 64 → C on frozen image features.

    L = CE(f(x), y)

The same loss and network as ERM, trained by the recipe of the prompt-learning methods (SGD with momentum, a warm-up
epoch, half a cosine) instead of DomainBed's, so that the two tables of the paper each have their own baseline.
Hidden layers are ReLUs; in the authors' code they are sigmoids (`activation=sigmoid`).
"""

from typing import ClassVar

from bayescal.engine.optim import SGD, Optimizer, cosine_with_warmup
from bayescal.methods.contract import Runs, Task
from bayescal.methods.domain_generalization.erm import ERM
from bayescal.methods.domain_generalization.network import MLP, Network
from bayescal.methods.hyperparameters import Space, number, setting


class VisualMLP(ERM):
    name = "visual-mlp"
    title = "visual MLP"
    citation = "Zhu et al., Bayesian Cross-Modal Alignment Learning for Few-Shot OoD Generalization, AAAI 2023"
    end_to_end = False  # it differs from ERM in its network and recipe, and both are other ones there
    optimizer: Optimizer = SGD()
    schedule = staticmethod(cosine_with_warmup)
    space: ClassVar[Space] = {
        "learning_rate": number(0.02),
        "weight_decay": number(5e-4),
        "epochs": setting(lambda b: b.epochs),
        "batch_size": setting(lambda b: b.batch_size),
        "activation": setting("relu"),  # or "sigmoid", as in the authors' code
    }

    def __init__(self, task: Task, runs: Runs, network: Network | None = None):
        activation = runs.settings.get("activation", "relu")  # models saved before there was a choice have ReLU
        super().__init__(task, runs, network or MLP(task.dim, task.n_classes, activation=activation))
