"""torch's AdamW on a dict of parameters, with a state that is a dict of tensors too.

The same update as `bayescal.optim.AdamW`, but fused into a few kernels on a GPU, where an image model has hundreds of
parameters. Each parameter counts its own steps: a player of IRM-Games that waits for its turn does not age.
"""

import torch
from torch import Tensor

from bayescal.optim import Params

_SLOTS = ("step", "exp_avg", "exp_avg_sq")


class DictAdamW:
    def __init__(self, params: Params, decayed: set[str], weight_decay: float):
        """`params` are updated in place; weight decay applies to the names in `decayed`."""
        self.params = params
        groups = [
            {
                "params": [v for n, v in params.items() if (n in decayed) == decays],
                "weight_decay": weight_decay * decays,
            }
            for decays in (True, False)
        ]
        fused = next(iter(params.values())).device.type == "cuda"
        self.inner = torch.optim.AdamW([group for group in groups if group["params"]], fused=fused)

    def step(self, grads: Params, rate: float) -> None:
        """Move the parameters that have a gradient."""
        for name, value in self.params.items():
            value.grad = grads.get(name)
        for group in self.inner.param_groups:
            group["lr"] = rate
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
