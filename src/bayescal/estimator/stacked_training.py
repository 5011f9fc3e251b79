"""Training a stacked model: every member without each environment in turn and once on all images, then the weights.

    images (n) ──┬─ folds: one per training environment ──> every member trained on the rest ──> p_k(· | x_i), left out
                 │                                             (K, n, C) ──> weights (K,), temperature, what to expect
                 └─ all images ──> every member trained on all of them ──> the members that answer

All runs of a method are stacks. Images of the training environments cannot tell how much should be learned: a model
that learns freely is right there and may be wrong elsewhere. So every decision is made on images of an environment that
the deciding models have not seen. Where there is one environment, ordinary folds take the place of environments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from bayescal.backbones.defaults import TrainingDefaults
from bayescal.estimator.members import MEMBERS, Choice, Member, affordable
from bayescal.evaluation.calibration import at_temperature, fit_temperature
from bayescal.evaluation.expected import ExpectedAccuracy, expected_accuracy
from bayescal.evaluation.stacking import mixture, stacking_weights, true_class_densities
from bayescal.methods import get_method
from bayescal.training.forecast import time_said
from bayescal.training.problem import Problem
from bayescal.training.runs import Run, RunResult
from bayescal.training.stack import Advance, train_runs
from bayescal.util.console import messages
from bayescal.util.progress import progress_bar

PRIOR_PER_IMAGE = 0.3  # strength of the Dirichlet prior on the weights: as many images as these, for each left-out one
ORDINARY_FOLDS = 5
# Probabilities (members × images × classes) that are held to decide by: 2 GB. Beyond, drawn images decide.
ANSWERS = 1 << 29
SEEN_SHARE = 4  # one in so many images is left out to measure how good it is where it has been


@dataclass(frozen=True)
class Folds:
    """Which images are left out together: fold numbers (n,) into `names`; −1: the image tells nothing."""

    by_environment: bool
    numbers: Tensor
    parts: Tensor  # (n,) the fold that an image goes with, also one that tells nothing; −1: it is never left out
    names: tuple[str, ...]
    alone: tuple[int, ...]  # classes that one environment alone has, where there are several environments
    asked: Tensor  # (n,) bool: whether the answer to an image left out counts; not all of very many are asked for

    @property
    def used(self) -> Tensor:
        return (self.numbers >= 0) & self.asked

    @property
    def present(self) -> list[int]:
        """The folds that are left out in turn."""
        return self.numbers[self.used].unique().tolist()


@dataclass(frozen=True)
class Case:
    """Images to learn from (n,), as indices into a problem, and the seed of what is random."""

    train: Tensor
    seed: int


@dataclass(frozen=True)
class Stacked:
    """What was learned of a case."""

    case: Case
    folds: Folds
    members: dict[str, RunResult]  # trained on all images
    titles: tuple[str, ...]  # of the members
    left_out: Tensor  # (K, m, C): what each member says of an image that counts, trained without its fold
    labels: Tensor  # (m,)
    weights: Tensor  # (K,)
    temperature: float
    seen: float | None  # accuracy on left-out images of seen environments; None: not measured
    operations: float = 0.0  # of the training, roughly
    notes: tuple[str, ...] = ()  # which members were left out, and why

    @property
    def mixed(self) -> Tensor:
        """The mixture's answers (m, C) to the images left out, before the temperature; `folds.used` says which."""
        return mixture(self.weights, self.left_out)

    def elsewhere(self) -> tuple[Tensor, Tensor, Tensor]:
        """Answers (m, C), labels (m,) and folds (m,) as in a new environment, at the model's temperature.

        Each environment is answered with weights found on the others alone.
        """
        numbers = self.folds.numbers[self.folds.used]
        if not self.folds.by_environment:
            return at_temperature(self.mixed, self.temperature), self.labels, numbers
        probs = self.left_out.new_zeros(self.left_out.shape[1:])
        densities = true_class_densities(self.left_out, self.labels)
        for fold in self.folds.present:
            own = numbers == fold
            probs[own] = mixture(mixture_weights(densities[~own]), self.left_out[:, own]).to(probs)
        return at_temperature(probs, self.temperature), self.labels, numbers

    def expected(self, classes: Sequence[str]) -> ExpectedAccuracy:
        """What to expect elsewhere; `classes` are all names (C,)."""
        alone = tuple(str(classes[i]) for i in self.folds.alone)
        if not self.folds.by_environment:
            return expected_accuracy([], [], [], self.seen, alone)
        probs, labels, numbers = self.elsewhere()
        right = probs.argmax(1) == labels
        present = numbers.unique().tolist()
        hits = [int(right[numbers == fold].sum()) for fold in present]
        images = [int((numbers == fold).sum()) for fold in present]
        return expected_accuracy(hits, images, [self.folds.names[fold] for fold in present], self.seen, alone)

    def table(self) -> list[dict[str, float | str]]:
        """Why this model: every member's weight, and how it did on the images left out."""
        nll = -true_class_densities(self.left_out, self.labels).clamp(min=1e-12).log().mean(0)
        accuracy = (self.left_out.argmax(-1) == self.labels).float().mean(1)
        return [
            {
                "member": name,
                "title": title,
                "weight": float(self.weights[k]),
                "left_out_accuracy": float(accuracy[k]),
                "left_out_nll": float(nll[k]),
            }
            for k, (name, title) in enumerate(zip(self.members, self.titles, strict=True))
        ]


def train_stacked(
    problem: Problem,
    defaults: TrainingDefaults,
    cases: Sequence[Case],
    samples: int,
    checkpoints: Path | None = None,
    progress: str | None = None,
    members: Sequence[Member] = MEMBERS,
) -> list[Stacked]:
    """Learn every case; all their runs of a method are trained as stacks. `samples` of a posterior to predict with.

    Of the members, those that the largest case can afford.
    """
    return train_mixtures(problem, defaults, cases, samples, {"": members}, checkpoints, progress)[""]


def train_mixtures(
    problem: Problem,
    defaults: TrainingDefaults,
    cases: Sequence[Case],
    samples: int,
    mixtures: Mapping[str, Sequence[Member]],
    checkpoints: Path | None = None,
    progress: str | None = None,
) -> dict[str, list[Stacked]]:
    """Several mixtures, by name: a member that several have is trained once."""
    every = list({member.name: member for members in mixtures.values() for member in members}.values())
    folds = [left_out_folds(problem, case) for case in cases]
    parts = [training_sets(case, own) for case, own in zip(cases, folds, strict=True)]  # per case: all, then the rests
    choice = affordable(problem, defaults, max(parts, key=lambda own: sum(map(len, own))), every)
    if progress is not None and (said := time_said(choice.operations * len(cases), problem)):
        messages().print(said, soft_wrap=True)
    trained = train_on(problem, defaults, choice.members, cases, parts, checkpoints, progress)
    found: dict[str, list[Stacked]] = {}
    for name, members in mixtures.items():
        own = replace(choice, members=tuple(member for member in choice.members if member in members))
        found[name] = [
            _stack(
                problem, case, folds[i], {member.name: trained[member.name][i] for member in own.members}, own, samples
            )
            for i, case in enumerate(cases)
        ]
    return found


def train_on(
    problem: Problem,
    defaults: TrainingDefaults,
    members: Sequence[Member],
    cases: Sequence[Case],
    parts: Sequence[Sequence[Tensor]],
    checkpoints: Path | None = None,
    progress: str | None = None,
) -> dict[str, list[list[RunResult]]]:
    """Every one of these members on every set of every case: name → per case, per set."""
    trained: dict[str, list[list[RunResult]]] = {}
    total = sum(
        get_method(member.method).epochs_of(member.config(defaults, len(part)))
        for member in members for own in parts for part in own
    )  # fmt: skip
    with progress_bar(progress, total, amount="percent") as bar:
        for method, group in groupby(members, lambda member: member.method):
            trained |= _train(method, list(group), problem, defaults, cases, parts, checkpoints, bar.advance)
    return trained


def _train(
    method: str,
    members: Sequence[Member],
    problem: Problem,
    defaults: TrainingDefaults,
    cases: Sequence[Case],
    parts: Sequence[Sequence[Tensor]],
    checkpoints: Path | None,
    advance: Advance,
) -> dict[str, list[list[RunResult]]]:
    """One method's members on every set of every case: name → per case, per set."""
    runs = [
        Run(member.config(defaults, len(part)), case.seed, part)
        for member in members
        for case, own in zip(cases, parts, strict=True)
        for part in own
    ]
    results = iter(train_runs(method, problem, runs, checkpoints=checkpoints, progress=advance))
    return {member.name: [[next(results) for _ in own] for own in parts] for member in members}


def left_out_folds(problem: Problem, case: Case) -> Folds:
    """One fold per environment; where there is nothing to compare environments by, ordinary folds.

    An image whose class no other environment has is left out of the reckoning: nobody could have learned it there. It
    goes with its environment all the same, so that what is trained without that has seen nothing of it.
    """
    environments, labels = problem.environments[case.train], problem.labels[case.train]
    seen, parts = environments.unique(return_inverse=True)
    cells = torch.zeros(len(problem.class_words), len(seen), dtype=torch.int64, device=labels.device)
    cells.index_put_((labels, parts), torch.ones_like(labels), accumulate=True)
    numbers = torch.where(cells.sum(1)[labels] > cells[labels, parts], parts, -1)
    alone = tuple(labels[numbers < 0].unique().tolist()) if len(seen) > 1 else ()
    asked = _asked(numbers, len(problem.class_words), case.seed)
    if len(numbers[numbers >= 0].unique()) > 1:
        return Folds(True, numbers, parts, tuple(problem.environment_words[e] for e in seen.tolist()), alone, asked)
    folds = stratified_folds(labels * len(problem.environment_words) + environments, ORDINARY_FOLDS, case.seed)
    rare = labels.bincount()[labels] < 2  # the only image of its class
    numbers = torch.where(rare, -1, folds)
    return Folds(False, numbers, numbers, tuple(f"fold {i + 1}" for i in range(ORDINARY_FOLDS)), alone, asked)


def _asked(images: Tensor, classes: int, seed: int) -> Tensor:
    """Images (n,) bool whose answers count: all, or as many drawn ones as ANSWERS allows for so many classes."""
    n, most = len(images), max(1, ANSWERS // (len(MEMBERS) * classes))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)) if n > most else torch.arange(n)
    asked = torch.zeros(n, dtype=torch.bool)
    asked[order[:most]] = True
    return asked.to(images.device)


def stratified_folds(cells: Tensor, folds: int, seed: int) -> Tensor:
    """Fold numbers (n,), so that every cell (n,) is spread over the folds as evenly as it can be."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(cells), generator=generator)
    order = shuffled[cells.cpu()[shuffled].argsort(stable=True)]  # cell after cell
    numbers = torch.empty_like(order)
    numbers[order] = torch.arange(len(order)) % folds
    return numbers.to(cells.device)


def training_sets(case: Case, folds: Folds) -> list[Tensor]:
    """What the runs of a case are trained on: all images; without each fold; and, beside environments, without some."""
    sets = [case.train, *(case.train[folds.parts != fold] for fold in folds.present)]
    return [*sets, case.train[~_seen_sample(case, folds)]] if folds.by_environment else sets


def _seen_sample(case: Case, folds: Folds) -> Tensor:
    """Images (n,) to measure on how good a model is in environments that it has seen."""
    return stratified_folds(folds.parts, SEEN_SHARE, case.seed) == 0


@torch.no_grad()
def _stack(
    problem: Problem, case: Case, folds: Folds, results: dict[str, list[RunResult]], choice: Choice, samples: int
) -> Stacked:
    used = case.train[folds.used]
    features, labels, numbers = problem.features[used], problem.labels[used], folds.numbers[folds.used]
    left_out = features.new_zeros(len(results), len(used), len(problem.class_words))
    for k, runs in enumerate(results.values()):
        for fold, run in zip(folds.present, runs[1:], strict=False):
            own = numbers == fold
            left_out[k, own] = run.predict(problem, features[own], samples=samples).probs[0]
    weights = mixture_weights(true_class_densities(left_out, labels))
    mixed = mixture(weights, left_out)
    right = mixed.argmax(1) == labels
    if folds.by_environment:
        seen = case.train[_seen_sample(case, folds) & folds.asked]
        answers = sum(
            weight * runs[-1].predict(problem, problem.features[seen], samples=samples).probs[0]
            for weight, runs in zip(weights.to(left_out), results.values(), strict=True)
        )
        right = torch.as_tensor(answers).argmax(1) == problem.labels[seen]
    return Stacked(
        case=case,
        folds=folds,
        members={name: runs[0] for name, runs in results.items()},
        titles=tuple(member.title for member in choice.members),
        left_out=left_out,
        labels=labels,
        weights=weights,
        temperature=_temperature(mixed, labels, folds),
        seen=float(right.float().mean()) if len(right) else None,
        operations=choice.operations,
        notes=choice.notes,
    )


def mixture_weights(densities: Tensor) -> Tensor:
    """Weights (K,) of members from their densities (n, K) of images left out; equal where there are none."""
    n, members = densities.shape
    if not n:
        return torch.full((members,), 1 / members, dtype=torch.float64, device=densities.device)
    return stacking_weights(densities, PRIOR_PER_IMAGE * n)


def _temperature(probs: Tensor, labels: Tensor, folds: Folds) -> float:
    """As confident as the images left out allow.

    Two environments show one shift in either direction: enough to soften answers, not to sharpen them. Ordinary folds
    show none at all.
    """
    if not folds.by_environment or bool((probs.argmax(1) == labels).all()):
        return 1.0
    found = fit_temperature(probs, labels)
    return found if len(folds.present) > 2 else max(1.0, found)
