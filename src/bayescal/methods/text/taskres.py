"""TaskRes and Bayes-TaskRes: the zero-shot classifier plus what the images add to it.

    w_k = t_k + x_k,   z_k(f) = s · cos(f, w_k)                      TaskRes:        L = CE(z, y)
    x_k ~ N(μ_k, σ_k²),   prior N(0, width²)                         Bayes-TaskRes:  L = E_q CE(z, y) + β/N · KL(q‖p)

t_k is the text feature of class k in a sentence, of length 1, and stays as it is; x_k is learned. (The published code
has t_k + α·x_k with α = 0.5; α scales the learning rate and nothing else.) The text tower is asked once, at the start,
so a step costs a few products. The Bayesian form is that of Bayes-CAL: a mean-field Gaussian, here over the class
features themselves, tempered by β. CAL's terms are options of both, off by default: λ > 0 adds vectors for the training
environments and switches them on.
"""

from typing import ClassVar

from bayescal.engine.optim import Adam, Optimizer
from bayescal.methods.contract import COMMON
from bayescal.methods.hyperparameters import Space, number, setting
from bayescal.methods.text.cal import CAL_TERMS
from bayescal.methods.text.lv import CALLV, BayesCALLV, VectorNetwork

STARTS_FROM_TEXT: Space = {
    **VectorNetwork.space,
    "vector_init": setting(lambda b: b.template),
    **{name: number(0.0) for name in CAL_TERMS},
}


class TaskRes(CALLV):
    name = "taskres"
    title = "TaskRes"
    version = 1
    learns = "a change of each class's text feature"
    cost = "no text tower"
    citation = "Yu et al., Task Residual for Tuning Vision-Language Models, CVPR 2023"
    uses_text = True
    alignment_terms = False  # they are off unless asked for: the ranges of a data set do not apply
    optimizer: Optimizer = Adam()
    space: ClassVar[Space] = {
        **COMMON,
        "learning_rate": number(1e-3),
        "weight_decay": number(0.0),  # it would pull the text feature, not the change, towards zero
        "epochs": setting(100),
        "batch_size": setting(256),
        **STARTS_FROM_TEXT,
    }


class BayesTaskRes(BayesCALLV):
    name = "bayes-taskres"
    title = "Bayes-TaskRes"
    version = 1
    learns = "mean and scale of a change of each class's text feature"
    cost = "no text tower"
    citation = "Zhu et al., AAAI 2023; Yu et al., Task Residual for Tuning Vision-Language Models, CVPR 2023"
    uses_text = True
    alignment_terms = False
    space: ClassVar[Space] = {
        **TaskRes.space,
        "learning_rate": number(0.01),
        "epochs": setting(200),
        "batch_size": setting(4096),  # all images in every step
        "optimizer": setting("adam"),
        "beta": number(0.1),
        "prior_scale": number(0.05),
        "initial_scale": number(0.1),
        "train_samples": setting(1),
    }
