"""How hard each term of an objective pulls at the parameters in question, while they are trained.

    g_t = ‖∇_{φ_C} L_t‖₂        for every unweighted term t: CE, L_E, L_IRM, L_orth, KL

A term can only shape what its gradient reaches. L_E, for one, has no gradient on φ_C at all; it acts on the class
branch through L_orth alone. Multiply a norm by the term's weight (λ, or β/N for KL) for its share in the step.
"""

import torch
from torch import Tensor

from bayescal.engine.params import Params
from bayescal.methods.contract import Batch, Method, Terms


def term_gradient_norms(method: Method, params: Params, batch: Batch) -> Terms:
    """Norm (R,) of every term's gradient with respect to `method.measured_parameters`; none if it names none.

    One pass forward, one backward per term. Neither parameters nor random numbers change: the pass uses the numbers
    of its step, as training itself does.
    """
    leaves = {name: params[name].detach().requires_grad_() for name in method.measured_parameters(params)}
    if not leaves:
        return {}
    terms = method.loss({**params, **leaves}, batch)
    return {name: _gradient_norm(term, list(leaves.values())) for name, term in terms.items() if name != "total"}


def _gradient_norm(term: Tensor, leaves: list[Tensor]) -> Tensor:
    """Norm (R,) of a term's (R,) gradient over all leaves (R, …); exactly zero where the term does not reach them."""
    if not term.requires_grad:
        return torch.zeros_like(term)
    # Runs are independent, so the gradient of the sum is each run's own gradient.
    grads = torch.autograd.grad(term.sum(), leaves, retain_graph=True, allow_unused=True)
    reached = [grad.flatten(1) for grad in grads if grad is not None]
    return torch.linalg.vector_norm(torch.cat(reached, dim=1), dim=1)
