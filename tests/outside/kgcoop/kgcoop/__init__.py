"""KgCoOp: CoOp whose class features stay near those of a hand-written prompt.

    L = CE(Ŷ_C, y) + λ · 1/C Σ_k ‖ w_k − w_k^clip ‖²

w_k is the text feature of class k under the learned prompt, w_k^clip that of its name in a template, both of length 1.
What the pre-trained model knows about classes that training does not show is kept where it was. λ = 8, as in the paper.
(The authors' code weighs 1 − cos, which is half of this distance.)
"""

from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from bayescal.methods import losses
from bayescal.methods.contract import Batch, Params, Runs, Task, Terms
from bayescal.methods.hyperparameters import Space, log10_uniform, number
from bayescal.methods.text.coop import CoOp
from bayescal.methods.text.zero_shot import ZeroShot


class KgCoOp(CoOp):
    name = "kgcoop"
    title = "KgCoOp"
    learns = "context vectors of a class prompt, held near a hand-written one"
    cost = "one prompt tree"
    citation = "Yao et al., Visual-Language Prompt Tuning with Knowledge-guided Context Optimization, CVPR 2023"
    space: ClassVar[Space] = {**CoOp.space, **ZeroShot.space, "lambda_kg": number(8.0, log10_uniform(-1, 2))}

    def __init__(self, task: Task, runs: Runs):
        super().__init__(task, runs)
        self.hand_written = F.normalize(ZeroShot(task, runs).prepare({}, 0), dim=-1)  # (R, 1, C, D)

    def loss(self, params: Params, batch: Batch) -> Terms:
        text = self.prepare(params, 0)  # (R, 1, C, D)
        ce = losses.cross_entropy(self.logits(text, batch.features)[:, 0], batch.labels)
        kg = self.distance(text)
        return {"ce": ce, "kg": kg, "total": ce + self.runs["lambda_kg"] * kg}

    def distance(self, text: Tensor) -> Tensor:
        """Squared distance to the hand-written prompt, mean over the classes: (R, 1, C, D) → (R,)."""
        return (F.normalize(text, dim=-1) - self.hand_written).square().sum(-1).mean((1, 2))
