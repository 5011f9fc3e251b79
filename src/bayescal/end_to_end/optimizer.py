"""torch's Adam on a dict of parameters, with a state that is a dict of tensors too.

The same update as `bayescal.engine.optim.Adam`, fused into few kernels on a GPU, where an image model has hundreds of
parameters. Each parameter counts its own steps, and a player of IRM-Games none while it waits for its turn.
"""

import torch
from torch import Tensor

from bayescal.engine.optim import Factors
from bayescal.engine.params import Params

_SLOTS = ("step", "exp_avg", "exp_avg_sq")


class DictAdam:
    def __init__(self, params: Params, decayed: set[str], weight_decay: float, factors: Factors):
        """`params` are updated in place; weight decay applies to the names in `decayed`, `factors` to their rates."""
        self.params = params
        kinds: dict[tuple[bool, float], list[Tensor]] = {}
        for name, value in params.items():
            kinds.setdefault((name in decayed, factors.get(name, 1.0)), []).append(value)
        groups = [
            {"params": values, "weight_decay": weight_decay * decays, "factor": factor}
            for (decays, factor), values in kinds.items()
        ]
        fused = next(iter(params.values())).device.type == "cuda"
        self.inner = torch.optim.Adam(groups, fused=fused)

    def step(self, grads: Params, rate: float) -> None:
        """Move the parameters that have a gradient."""
        for name, value in self.params.items():
            value.grad = grads.get(name)
        for group in self.inner.param_groups:
            group["lr"] = rate * group["factor"]
        self.inner.step()
        self.inner.zero_grad(set_to_none=True)

    def reset(self) -> None:
        """Forget the running averages."""
        self.inner.state.clear()

    def state(self) -> Params:
        return {
            f"{name}/{slot}": self.inner.state[value][slot]
            for name, value in self.params.items()
            for slot in _SLOTS
            if value in self.inner.state
        }

    def load(self, state: Params) -> None:
        self.reset()
        for key, tensor in state.items():
            name, slot = key.rsplit("/", 1)
            value = self.params[name]
            where = value.device if slot != "step" or self.inner.defaults["fused"] else torch.device("cpu")
            self.inner.state[value][slot] = _copy(tensor, where)


def _copy(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.detach().to(device, copy=True)
