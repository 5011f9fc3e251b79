"""From a list of runs to stacks: group what can be trained together, and train each group as one program."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from bayescal.engine.memory import activation_budget
from bayescal.engine.params import Params
from bayescal.engine.threads import threads_for
from bayescal.methods import get_method, method_identity
from bayescal.methods.contract import Method, Runs
from bayescal.methods.hyperparameters import first_names, settings_of
from bayescal.training.loop import StackData, train, training_samples
from bayescal.training.problem import Problem
from bayescal.training.runs import Run, RunResult, StackCheckpoint, StackResult
from bayescal.training.state import Trained
from bayescal.util.progress import progress_bar

Advance = Callable[[float], None]  # is told how many runs × epochs were just finished; parts of long ones, too


def train_runs(
    method: str | type[Method],
    problem: Problem,
    runs: Sequence[Run],
    *,
    max_runs: int = 256,
    checkpoints: Path | None = None,
    progress: str | Advance | None = None,
    trajectory: bool = False,
    gradient_norms_every: int = 0,
) -> list[RunResult]:
    """Train every run, in as few stacks as their settings and the memory allow.

    Parameters
    ----------
    method, problem : str or subclass of Method, and Problem
        A name, a class, or "module:Class" (`bayescal.get_method`); features, labels and words that all runs share.
    runs, max_runs : sequence of Run, and int
        What to train, which may differ in everything; the most runs that one stack may have.
    checkpoints : path, optional
        A folder; with it, a call that was killed continues where it was.
    progress : str or callable, optional
        Title of a progress bar, or a function that is told how many runs × epochs were just finished.
    trajectory, gradient_norms_every : bool and int
        Keep every epoch's parameters, without checkpoints; epochs between measurements of gradient norms (0: none).

    Returns
    -------
    list of RunResult
        In the order of the runs: views of the stacks that they were trained in.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from bayescal import Problem, Run, get_method, load_backbone, train_runs
    >>> from bayescal.methods.hyperparameters import default_config
    >>> backbone = load_backbone("mini")
    >>> labels, environments = np.arange(24) % 2, np.arange(24) // 2 % 2
    >>> features = torch.eye(2, backbone.dim)[labels]  # they tell the two classes apart
    >>> problem = Problem.of(backbone, features, labels, environments, ["dog", "house"], ["photo", "sketch"])
    >>> config = default_config(get_method("coop").space, backbone.defaults, epochs=2)
    >>> runs = [Run(config, seed, torch.arange(16), {"val": torch.arange(16, 24)}) for seed in (1, 2)]  # one stack
    >>> results = train_runs("coop", problem, runs)
    >>> [(result.seed, len(result.curves["val"])) for result in results]
    [(1, 2), (2, 2)]
    >>> results[0].predict(problem, problem.features, samples=0).probs.shape
    torch.Size([1, 24, 2])
    """
    method = get_method(method)
    results: dict[int, RunResult] = {}
    title = progress if isinstance(progress, str) else None
    with progress_bar(title, sum(method.epochs_of(run.config) for run in runs), amount="percent") as bar:
        advance = progress if callable(progress) else bar.advance
        for group in group_runs(method, problem, runs, max_runs):
            stack = train_stack(
                method, problem, [runs[i] for i in group], checkpoints=checkpoints, progress=advance,
                trajectory=trajectory, gradient_norms_every=gradient_norms_every,
            )  # fmt: skip
            results.update(zip(group, stack, strict=True))
    return [results[i] for i in range(len(runs))]


def train_stack(
    method: str | type[Method],
    problem: Problem,
    runs: Sequence[Run],
    *,
    checkpoints: Path | None = None,
    progress: Advance | None = None,
    trajectory: bool = False,
    gradient_norms_every: int = 0,
) -> StackResult:
    """Train runs that share a stack, one of `group_runs`, as one program; options as in `train_runs`."""
    method = get_method(method)
    bound, data, words = bind_stack(method, problem, runs)
    kept = None if trajectory else checkpoints
    # The identity hashes every feature, which takes longer than some trainings: only where it is needed.
    identity = stack_identity(method, problem, runs) if kept is not None else ""
    observed: list[Params] = []
    with threads_for(step_operations(bound, data), problem.features.device):
        trained = train(
            bound,
            data,
            checkpoint=kept / f"{identity[:24]}.safetensors" if kept is not None else None,
            identity=identity,
            on_progress=None if progress is None else lambda epochs: progress(len(runs) * epochs),
            observe=(lambda _, params: observed.append(copies(params, bound.frozen))) if trajectory else None,
            gradient_norms_every=gradient_norms_every,
        )
    path = {name: torch.stack([params[name] for params in observed]) for name in observed[0]} if trajectory else None
    return _result(method, runs, words, trained, path)


def step_operations(bound: Method, data: StackData) -> float:
    """Floating-point operations of a step of the whole stack, roughly; of all there is, where there are no steps."""
    samples = training_samples(data)
    steps = bound.steps(samples) if bound.trained_by_gradient else 1
    return len(bound.runs) * bound.training_operations(samples) / max(1, steps)


def _result(
    method: type[Method],
    runs: Sequence[Run],
    words: Sequence[tuple[str, ...]],
    trained: Trained,
    trajectory: Params | None,
) -> StackResult:
    # Numbers go to the CPU together: asking a GPU for each by itself would take longer than some trainings.
    curves, gradient_norms = (
        {name: values.cpu() for name, values in group.items()} for group in (trained.curves, trained.gradient_norms)
    )
    return StackResult(
        method=method,
        configs=tuple(run.config for run in runs),
        seeds=tuple(run.seed for run in runs),
        environments=tuple(words),
        params=trained.params,
        best={name: StackCheckpoint(best.params, tuple(best.epoch.tolist())) for name, best in trained.best.items()},
        curves=curves,
        stopped=tuple(trained.stopped.get(r) for r in range(len(runs))),
        seconds=trained.seconds / len(runs),
        gradient_norms=gradient_norms,
        gradient_norm_epochs=tuple(trained.gradient_norm_epochs),
        trajectory=trajectory,
    )


def group_runs(method: type[Method], problem: Problem, runs: Sequence[Run], max_runs: int) -> Iterator[list[int]]:
    """Indices of runs that can share a stack: same settings and evaluation sets, as many images and environments.

    A stack has at most `max_runs` runs, and no more than fit into memory (`Method.run_bytes`, `memory.py`).
    """
    groups: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        numbers = [len(run.train), len(_train_environments(problem, run))]
        key = [settings_of(method.space, run.config), *numbers, sorted(run.eval_sets)]
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(i)
    for group in groups.values():
        size = min(max_runs, len(group))
        if size > 1:
            size = min(size, _runs_that_fit(method, problem, runs[group[0]], size))
        for at in range(0, len(group), size):
            yield group[at : at + size]


def _runs_that_fit(method: type[Method], problem: Problem, run: Run, wanted: int) -> int:
    """How many runs like this one a stack may have, up to `wanted`; else a power of two.

    A checkpoint is found again only when stacks are cut as before: a little less free memory must not change the cut.
    """
    bound, data, _ = bind_stack(method, problem, [run])
    fit = activation_budget(problem.features.device) // max(1, bound.run_bytes(training_samples(data)))
    return wanted if fit >= wanted else 1 << max(fit, 1).bit_length() - 1


def _train_environments(problem: Problem, run: Run) -> list[int]:
    return problem.environments_on_cpu[run.train.cpu()].unique().tolist()


def bind_stack(
    method: type[Method], problem: Problem, runs: Sequence[Run]
) -> tuple[Method, StackData, list[tuple[str, ...]]]:
    """The method of a stack of runs, what it is trained on, and the words of each run's training environments."""
    seen = [_train_environments(problem, run) for run in runs]
    words = [tuple(problem.environment_words[e] for e in own) for own in seen]
    numbers = Runs.stack(
        method.space, [run.config for run in runs], [run.seed for run in runs], problem.features.device
    )
    return method(problem.task(words, training=True), numbers), stack_data(problem, runs, seen), words


def copies(params: Params, leave_out: Sequence[str]) -> Params:
    """The parameters as they are now, without those named."""
    return {name: value.clone() for name, value in params.items() if name not in leave_out}


def stack_data(problem: Problem, runs: Sequence[Run], seen: Sequence[Sequence[int]]) -> StackData:
    """Index tensors of a stack; `seen` are the training environments of each run."""
    device = problem.features.device
    local = torch.full((len(runs), len(problem.environment_words)), -1, device=device)
    for r, environments in enumerate(seen):
        local[r, environments] = torch.arange(len(environments), device=device)
    names = list(runs[0].eval_sets)
    eval_sets = {name: torch.zeros(len(runs), len(problem.labels), dtype=torch.bool, device=device) for name in names}
    for r, run in enumerate(runs):
        for name in names:
            eval_sets[name][r, run.eval_sets[name]] = True
    return StackData(
        features=problem.features,
        labels=problem.labels,
        environments=problem.environments,
        local=local,
        train=torch.stack([run.train for run in runs]),
        eval_sets=eval_sets,
        views=problem.views,
        view_rows=problem.view_rows,
    )


def stack_identity(method: str | type[Method], problem: Problem, runs: Sequence[Run]) -> str:
    """Hash of everything that decides a stack's outcome, so that a checkpoint of something else is never continued."""
    method, digest = get_method(method), hashlib.sha256()
    words = [problem.class_words, problem.environment_words]
    # Evaluated images count too: they choose the best epoch, and their curves are part of the outcome.
    eval_sets = [{name: rows.tolist() for name, rows in run.eval_sets.items()} for run in runs]
    # By the names that hyper-parameters had first, so that a training begun before they were renamed is continued.
    configs = [
        [first_names(method.name, run.config), run.seed, run.train.tolist(), sets]
        for run, sets in zip(runs, eval_sets, strict=True)
    ]
    about = [method_identity(method), words, configs, str(problem.precision)]
    digest.update(json.dumps(about, sort_keys=True).encode())
    for tensor in (
        problem.features,
        problem.labels,
        problem.environments,
        problem.views,
        problem.text.positions,
    ):
        if tensor is not None:
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
