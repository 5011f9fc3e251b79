"""The training loss around the path that a run took: a plane through its final point, a grid on it, the path.

    L(a, b) = CE( θ_final + a·d1 + b·d2 ),   d1, d2 = principal directions of θ_t − θ_final over the epochs t

(Li et al., "Visualizing the Loss Landscape of Neural Nets", NeurIPS 2018.) Directions explain distances from the final
point, not from the mean of the path, because the plane has to go through the final point: so it is, of all planes that
do, the one nearest to the path, and the last point of the path is the origin.

θ are all learned parameters in one vector: of both branches, where a method has two (the training cross-entropy does
not depend on the environments', so the loss is flat along their share of a direction). Of a Bayesian method they are
the means alone, without the scales (`Method.scale_parameters`), since the loss is taken at the posterior mean. It is
the cross-entropy of the whole training set under the test transform. All grid points are runs of stacks: same config
and seed, other θ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayescal.engine import rng
from bayescal.engine.params import Params
from bayescal.errors import MethodError
from bayescal.methods import losses
from bayescal.training.problem import Problem
from bayescal.training.runs import Run, RunResult

MARGIN = 0.2  # how much farther than the path the grid reaches
NARROWEST = 0.1  # a side of the grid is at least this share of the other, however little the path moved along it
NEGLIGIBLE = 1e-13  # share of the squared distances below which a direction is rounding error
CHUNK_RUNS = 64  # grid points in one stack
CHUNK_NUMBERS = 1 << 24  # and their parameters, all together


@dataclass(frozen=True)
class Landscape:
    """Losses on a K × K grid around a run's final point, and its path; float64 on the CPU."""

    x: Tensor  # (K,): along the first direction; the middle one is 0, the final point
    y: Tensor  # (K,): along the second
    z: Tensor  # (K, K): training cross-entropy at (x of the column, y of the row)
    path: Tensor  # (epochs + 1, 2): start, end of each epoch; the last is (0, 0)
    best: Tensor  # (2,): where z is smallest
    target_loss: float  # the smallest z
    final_loss_at_end: float  # z at the final point
    explained: Tensor  # (2,): share of the squared distances from the final point that lie along each direction


def landscape(problem: Problem, result: RunResult, run: Run, grid: int = 25) -> Landscape:
    """The landscape of a run trained with `trajectory=True`; `grid`: points per side, odd, so that one is the end."""
    if grid < 3 or grid % 2 == 0:
        raise ValueError(f"a grid needs an odd number of points per side, 3 or more; got {grid}")
    names = learned_means(problem, result)
    trajectory = flat(_trajectory(result), names)  # (T, P)
    if not torch.isfinite(trajectory).all():
        name = result.method.title
        raise MethodError(f"{name}: some parameters are not finite ({result.stopped}); there is no landscape")
    directions, explained = principal_directions(trajectory)
    path = project(trajectory, directions)
    x, y = grid_axes(path, grid, fallback=float(trajectory[-1].double().norm()))
    z = loss_grid(problem, result, run, directions, x, y)
    row, column = divmod(int(z.argmin()), grid)
    return Landscape(
        x=x.cpu(),
        y=y.cpu(),
        z=z.cpu(),
        path=path.cpu(),
        best=torch.stack([x[column], y[row]]).cpu(),
        target_loss=float(z.min()),
        final_loss_at_end=float(z[grid // 2, grid // 2]),
        explained=explained.cpu(),
    )


def learned_means(problem: Problem, result: RunResult) -> list[str]:
    """Names of the parameters whose path is drawn: all that are learned, without scales."""
    scales = result.bind(problem).scale_parameters()
    names = [name for name in _trajectory(result) if name not in scales]
    if not names:
        raise MethodError(f"{result.method.title} learns nothing by gradient: it has no landscape")
    return names


def _trajectory(result: RunResult) -> Params:
    if result.trajectory is None:
        raise MethodError("a landscape needs the parameters of every epoch: train with trajectory=True")
    return result.trajectory


def principal_directions(trajectory: Tensor) -> tuple[Tensor, Tensor]:
    """Two orthonormal directions (2, P) and the share (2,) of Σ_t ‖θ_t − θ_final‖² along each: trajectory (T, P).

    The sign is such that the largest coordinate is positive. Where the path has no second direction, or did not move
    at all, a random one that is the same every time takes its part: the grid still shows a plane, and its share is 0.
    """
    steps = trajectory.double() - trajectory[-1].double()
    # T is far smaller than P: eigenvectors of (T, T) products give the directions as sums of steps.
    values, vectors = torch.linalg.eigh(steps @ steps.T)  # ascending
    total = values.clamp(min=0).sum()
    directions: list[Tensor] = []
    explained = torch.zeros(2, dtype=torch.float64, device=steps.device)
    for k in range(2):
        if k < len(values) and values[-1 - k] > NEGLIGIBLE * total:
            direction = vectors[:, -1 - k] @ steps
            explained[k] = values[-1 - k] / total
        else:
            seed = torch.zeros(1, dtype=torch.int64, device=steps.device)
            direction = rng.normal(seed, "landscape", k, (steps.shape[1],))[0].double()
        directions.append(_orthonormal(direction, directions))
    return torch.stack(directions), explained


def _orthonormal(direction: Tensor, others: Sequence[Tensor]) -> Tensor:
    """The part of a direction (P,) that is orthogonal to the others, at length 1; 0 if there is none (P = 1)."""
    length = direction.norm()
    for _ in range(2):  # the second time removes what rounding left
        for other in others:
            direction = direction - (direction @ other) * other
    if direction.norm() <= 1e-9 * length:
        return torch.zeros_like(direction)
    direction = direction / direction.norm()
    return direction * direction[direction.abs().argmax()].sign()


def project(trajectory: Tensor, directions: Tensor) -> Tensor:
    """Coordinates (T, 2) of a path (T, P) on the plane, about its final point."""
    return (trajectory.double() - trajectory[-1].double()) @ directions.T


def grid_axes(path: Tensor, grid: int, fallback: float = 1.0) -> tuple[Tensor, Tensor]:
    """Coordinates (K,) of the grid's columns and rows: as far as the path and a margin, to both sides of the end.

    A path (T, 2) that stands still gets a tenth of `fallback` (the length of θ) instead.
    """
    reach = path.abs().amax(0)  # (2,)
    widest = float(reach.max())
    reach = reach.clamp(min=NARROWEST * widest) if widest > 0 else torch.full_like(reach, 0.1 * fallback or 0.1)
    reach = (1 + MARGIN) * reach
    half = grid // 2
    steps = torch.arange(-half, half + 1, dtype=torch.float64, device=path.device) / half  # exactly 0 in the middle
    return steps * reach[0], steps * reach[1]


def loss_grid(problem: Problem, result: RunResult, run: Run, directions: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Training cross-entropy (len(y), len(x)) at θ_final + x·d1 + y·d2, in stacks of a bounded number of runs."""
    names = learned_means(problem, result)
    end = flat(result.params, names)[0].double()  # (P,)
    points = torch.stack([x.repeat(len(y)), y.repeat_interleave(len(x))], dim=1)  # (G, 2), a row of the grid at a time
    size = max(1, min(CHUNK_RUNS, CHUNK_NUMBERS // len(end)))
    losses = [
        training_losses(problem, result, run, unflat(end + part @ directions, result.params, names))
        for part in points.split(size)
    ]
    return torch.cat(losses).view(len(y), len(x))


@torch.no_grad()
def training_losses(problem: Problem, result: RunResult, run: Run, params: Params) -> Tensor:
    """Cross-entropy (G,) of the run's training set at G sets of its parameters: (G, …) each, at the posterior mean."""
    method = result.bind(problem, copies=len(next(iter(params.values()))))
    prepared = method.prepare(params, 0)
    total = torch.zeros(len(method.runs), dtype=torch.float64, device=run.train.device)
    for part in run.train.split(method.images_at_once(len(run.train))):
        logits = method.logits(prepared, problem.features[part], problem.environments[part])[:, 0]  # (G, n, C)
        total += losses.sample_cross_entropy(logits, problem.labels[part]).double().sum(-1)
    return total / len(run.train)


def flat(params: Params, names: Sequence[str]) -> Tensor:
    """The named parameters as one vector per run: (G, …) each → (G, P)."""
    return torch.cat([params[name].flatten(1) for name in names], dim=1)


def unflat(vectors: Tensor, like: Params, names: Sequence[str]) -> Params:
    """Vectors (G, P) as parameters (G, …); the others are those of `like`, (1, …) each, in every run."""
    parts = vectors.split([like[name][0].numel() for name in names], dim=1)
    shaped = {
        name: part.view(-1, *like[name].shape[1:]).to(like[name]) for name, part in zip(names, parts, strict=True)
    }
    return {name: shaped.get(name, value.expand(len(vectors), *value.shape[1:])) for name, value in like.items()}
