"""The loss landscape: the plane of the path, the grid on it, and losses that are those of the run's own method."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import tiny
from bayescal.errors import MethodError
from bayescal.methods import get_method
from bayescal.methods.contract import Method, predict
from bayescal.methods.hyperparameters import default_config
from bayescal.training import loss_landscape as landscapes
from bayescal.training.loss_landscape import (
    grid_axes,
    landscape,
    learned_means,
    loss_grid,
    principal_directions,
    project,
)
from bayescal.training.problem import Problem
from bayescal.training.runs import Checkpoint, Run, RunResult
from bayescal.training.stack import train_runs

F64 = torch.float64


def planar_path(t: int = 12, p: int = 40) -> tuple[Tensor, Tensor]:
    """A spiral (T, P) inside a known plane, and the plane's two directions (2, P)."""
    g = torch.Generator().manual_seed(0)
    plane = torch.linalg.qr(torch.randn(p, 2, generator=g, dtype=F64)).Q.T
    turn = torch.linspace(0, 4, t, dtype=F64)
    inside = torch.stack([3 * torch.exp(-turn) * torch.cos(turn), torch.exp(-turn) * torch.sin(turn)], dim=1)
    return inside @ plane + torch.randn(p, generator=g, dtype=F64), plane


def test_directions_of_a_path_in_a_plane_span_the_plane():
    path, plane = planar_path()
    directions, explained = principal_directions(path)
    assert torch.allclose(directions @ directions.T, torch.eye(2, dtype=F64), atol=1e-12)
    assert torch.allclose(directions @ plane.T @ plane, directions, atol=1e-9)  # inside the plane
    assert float(explained.sum()) == pytest.approx(1.0, abs=1e-12)
    assert explained[0] > explained[1] > 0
    flat = project(path, directions)
    assert torch.equal(flat[-1], torch.zeros(2, dtype=F64))
    assert torch.allclose(path[-1] + flat @ directions, path, atol=1e-9)  # nothing is lost


def test_directions_are_the_singular_vectors_about_the_final_point():
    path = torch.randn(7, 30, generator=torch.Generator().manual_seed(1), dtype=F64).cumsum(0)
    directions, explained = principal_directions(path)
    _, s, v = torch.linalg.svd(path - path[-1], full_matrices=False)
    assert torch.allclose((directions * v[:2]).sum(1).abs(), torch.ones(2, dtype=F64), atol=1e-10)
    assert torch.allclose(explained, s[:2] ** 2 / (s**2).sum(), atol=1e-12)
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    assert bool((largest > 0).all())
    mirrored, _ = principal_directions(2 * path[-1] - path)  # the same line in both directions
    assert torch.allclose(mirrored, directions, atol=1e-9)


@pytest.mark.parametrize("moved", [0, 1])
def test_a_path_without_a_second_direction_gets_one(moved):
    """No movement, or movement along a line (one epoch): still two orthonormal directions, always the same."""
    path = torch.zeros(5, 20, dtype=F64)
    path[:, 3] = moved * torch.arange(5)
    directions, explained = principal_directions(path)
    assert torch.allclose(directions @ directions.T, torch.eye(2, dtype=F64), atol=1e-12)
    assert explained.tolist() == pytest.approx([float(moved), 0.0], abs=1e-12)
    assert torch.equal(principal_directions(path)[0], directions)
    if moved:
        assert torch.equal(directions[0], torch.eye(20, dtype=F64)[3])


def test_one_parameter_has_no_second_direction():
    directions, _ = principal_directions(torch.tensor([[1.0], [3.0]]))
    assert directions.tolist() == [[1.0], [0.0]]


def test_grid_covers_the_path_and_as_much_on_the_other_side():
    path = torch.tensor([[4.0, -1.0], [2.0, 0.5], [0.0, 0.0]], dtype=F64)
    x, y = grid_axes(path, 5)
    assert x.tolist() == pytest.approx([-4.8, -2.4, 0, 2.4, 4.8])
    assert y.tolist() == pytest.approx([-1.2, -0.6, 0, 0.6, 1.2])
    assert x[2] == y[2] == 0  # the final point is on the grid
    x, y = grid_axes(path * torch.tensor([1.0, 1e-9]), 5)
    assert float(y[-1]) == pytest.approx(float(x[-1]) / 10)  # a flat path is not drawn on a line
    x, y = grid_axes(torch.zeros(3, 2, dtype=F64), 5, fallback=7.0)
    assert float(x[-1]) == float(y[-1]) == pytest.approx(0.84)


CENTRE = torch.tensor([1.0, -2.0, 0.5], dtype=F64)
CURVATURE = torch.tensor([0.3, 1.0, 2.0], dtype=F64)


class Bowl(Method):
    """A method whose cross-entropy is a quadratic function of its three parameters, for every image of class 0."""

    name, title, space = "bowl", "Bowl", {}

    def init(self, train):
        raise NotImplementedError

    loss = init

    def prepare(self, params, samples):
        return params

    def logits(self, prepared, features, groups=None):
        wanted = bowl(prepared["theta"])[:, None, None, None]  # CE of class 0 = log(1 + exp(z1)) for logits (0, z1)
        return torch.cat([torch.zeros_like(wanted), wanted.expm1().log()], dim=-1).expand(-1, 1, features.shape[-2], 2)


def bowl(theta: Tensor) -> Tensor:
    """(G, 3) → (G,): 0.5 at the centre."""
    return 0.5 + 0.5 * (CURVATURE * (theta - CENTRE).square()).sum(-1)


def test_landscape_of_a_bowl_is_the_bowl():
    problem = tiny.tiny_problem(dtype=F64)
    images = (problem.labels == 0).nonzero()[:6, 0]
    t = torch.linspace(0, 3, 9, dtype=F64)
    path = (
        CENTRE
        + torch.tensor([0.3, 0.05, 0.0], dtype=F64)
        + torch.stack([torch.exp(-t), torch.exp(-2 * t), torch.exp(-3 * t)], dim=1)
    )
    params = {"theta": path[-1:].clone()}
    result = RunResult(
        Bowl, {}, 1, ("photo",), params, {"val": Checkpoint(params, 8)}, {}, None, 0.0, trajectory={"theta": path}
    )
    scape = landscape(problem, result, Run({}, 1, images), grid=21)
    directions, _ = principal_directions(path)
    for j, y in enumerate(scape.y):
        for i, x in enumerate(scape.x):
            theta = path[-1] + x * directions[0] + y * directions[1]
            assert float(scape.z[j, i]) == pytest.approx(float(bowl(theta)), rel=1e-12)
    assert scape.final_loss_at_end == pytest.approx(float(bowl(path[-1])), rel=1e-12)
    # The smallest loss on the plane solves a 2 × 2 system; the best grid point is the one next to it.
    hessian = directions @ torch.diag(CURVATURE) @ directions.T
    lowest = torch.linalg.solve(hessian, -directions @ (CURVATURE * (path[-1] - CENTRE)))
    assert abs(float(lowest[0] - scape.best[0])) < float(scape.x[1] - scape.x[0])
    assert abs(float(lowest[1] - scape.best[1])) < float(scape.y[1] - scape.y[0]) * 2
    assert scape.target_loss == float(scape.z.min()) < scape.final_loss_at_end
    assert scape.target_loss == pytest.approx(float(bowl(path[-1] + scape.best @ directions)), rel=1e-12)
    assert bool((scape.path[:, 0].abs() < scape.x[-1]).all())
    assert bool((scape.path[:, 1].abs() < scape.y[-1]).all())


@pytest.fixture(scope="module")
def word_vectors(tmp_path_factory) -> str:
    return tiny.tiny_word_vectors(tmp_path_factory.mktemp("words"))


def trained(name: str, problem: Problem, **options) -> tuple[RunResult, Run]:
    space = get_method(name).space
    config = default_config(space, tiny.Defaults, **{k: v for k, v in options.items() if k in space})
    run = tiny.tiny_run(config, 2)
    (result,) = train_runs(name, problem, [run], trajectory=True)
    return result, run


def cross_entropy(result: RunResult, params: dict, problem: Problem, run: Run) -> float:
    """Of the run's training images at the posterior mean, from predicted probabilities."""
    groups = problem.environments[run.train]
    probs = predict(result.bind(problem), params, problem.features[run.train], 0, groups).probs[0]
    return float(F.nll_loss(probs.log(), problem.labels[run.train]))


METHODS = ("coop", "bayes-cal", "bayes-cal-lv", "bayes-cal-w2v", "visual-mlp", "groupdro", "tip-adapter-f", "dplclip")


@pytest.mark.parametrize("name", METHODS)
def test_losses_are_those_of_the_method(name, word_vectors):
    problem = tiny.tiny_problem()
    result, run = trained(name, problem, epochs=4, word_vectors=word_vectors)
    scape = landscape(problem, result, run, grid=5)
    assert scape.z.shape == (5, 5)
    assert scape.path.shape == (5, 2)
    assert 0.5 < float(scape.explained.sum()) <= 1 + 1e-9
    at_end = cross_entropy(result, result.params, problem, run)
    assert scape.final_loss_at_end == pytest.approx(at_end, rel=1e-4)
    assert scape.final_loss_at_end == float(scape.z[2, 2])
    assert scape.target_loss <= scape.final_loss_at_end
    assert torch.isfinite(scape.z).all()
    # Another point of the grid, made by hand: the first column of the last row.
    names = learned_means(problem, result)
    directions, _ = principal_directions(torch.cat([result.trajectory[n].flatten(1) for n in names], dim=1))
    shift = (scape.x[0] * directions[0] + scape.y[-1] * directions[1]).float()
    moved, at = dict(result.params), 0
    for n in names:
        size = result.params[n].numel()
        moved[n] = result.params[n] + shift[at : at + size].view_as(result.params[n])
        at += size
    assert at == directions.shape[1]
    assert float(scape.z[-1, 0]) == pytest.approx(cross_entropy(result, moved, problem, run), rel=1e-3)


def test_scales_are_not_part_of_the_landscape():
    """Directions, path and losses are those of the means: other scales, same picture."""
    problem = tiny.tiny_problem()
    result, run = trained("bayes-cal-lv", problem, epochs=3)
    assert learned_means(problem, result) == ["class.vectors", "environment.vectors"]
    other = {n: v + 1.0 if n.endswith(".rho") else v for n, v in result.params.items()}
    paths = {n: v * 2.0 if n.endswith(".rho") else v for n, v in result.trajectory.items()}
    wide = landscape(problem, replace(result, params=other, trajectory=paths), run, grid=3)
    plain = landscape(problem, result, run, grid=3)
    assert torch.equal(wide.z, plain.z)
    assert torch.equal(wide.path, plain.path)


def test_rows_of_the_stack_are_bounded_and_do_not_mix(monkeypatch):
    problem = tiny.tiny_problem(dtype=F64)
    result, run = trained("bayes-cal", problem, epochs=3)
    whole = landscape(problem, result, run, grid=5)
    seen = []
    losses = landscapes.training_losses

    def counted(problem, result, run, params):
        seen.append(len(params["class.context"]))
        return losses(problem, result, run, params)

    monkeypatch.setattr(landscapes, "training_losses", counted)
    monkeypatch.setattr(landscapes, "CHUNK_RUNS", 7)
    pieces = landscape(problem, result, run, grid=5)
    assert seen == [7, 7, 7, 4]
    assert torch.allclose(pieces.z, whole.z, rtol=0, atol=1e-12)
    monkeypatch.setattr(landscapes, "CHUNK_NUMBERS", 1)
    seen.clear()
    one_by_one = loss_grid(problem, result, run, torch.zeros(2, 2 * 4 * 16, dtype=F64), whole.x[:2], whole.y[:1])
    assert seen == [1, 1]
    assert torch.allclose(one_by_one, whole.z[2:3, 2].expand(1, 2), rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", [{"epochs": 1}, {"epochs": 2, "learning_rate": 0.0, "weight_decay": 0.0}], ids=str)
def test_paths_that_hardly_move_have_a_landscape(options):
    problem = tiny.tiny_problem()
    result, run = trained("coop", problem, **options)
    scape = landscape(problem, result, run, grid=3)
    assert torch.isfinite(scape.z).all()
    assert scape.explained[1] == 0
    assert float(scape.x[-1]) > 0
    assert float(scape.y[-1]) > 0


def test_what_has_no_landscape_says_why():
    problem = tiny.tiny_problem()
    config = default_config(get_method("coop").space, tiny.Defaults)
    run = tiny.tiny_run(config, 1)
    (plain,) = train_runs("coop", problem, [run])
    with pytest.raises(MethodError, match="trajectory=True"):
        landscape(problem, plain, run)
    nothing, run = trained("clip", problem)
    with pytest.raises(MethodError, match="learns nothing by gradient"):
        landscape(problem, nothing, run)
    failed, run = trained("coop", problem, learning_rate=float("inf"))
    with pytest.raises(MethodError, match="not finite"):
        landscape(problem, failed, run)
    with pytest.raises(ValueError, match="odd"):
        landscape(problem, plain, run, grid=10)
