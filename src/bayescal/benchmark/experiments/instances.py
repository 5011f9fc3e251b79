"""How the instances converge: CoOp, PL, LV, W2V and the visual network; final loss, target loss, test accuracy.

λ = (0.1, 0, 0.1) and 50 epochs, as in the paper; LV, W2V and the visual network at the authors' learning rate, 0.002
for all three, so that their losses can be compared. Final and target loss are one quantity, the cross-entropy of the
whole training set at the posterior mean under the test transform: after the last epoch, and at the lowest point of the
loss landscape around it. Their difference is what a better optimiser would have gained in the plane that training moved
in. The paper's final loss is another one, the mean over the batches of the last epoch, with posterior noise and
augmented views; it has a column of its own.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayescal.benchmark.bench import Bench
from bayescal.benchmark.experiments import published
from bayescal.benchmark.experiments.experiment import Experiment, line, make_section, seed_curves, value
from bayescal.benchmark.records import LossLandscape, Record
from bayescal.benchmark.results import Column, Figure, Row, Section, Table, Value
from bayescal.benchmark.runner import PlannedRun
from bayescal.benchmark.searches import Search
from bayescal.benchmark.variants import MethodVariant
from bayescal.errors import BayescalError
from bayescal.evaluation.selection import overall, per_fold
from bayescal.methods import get_method
from bayescal.training.loss_landscape import Landscape, landscape
from bayescal.training.runs import StackResult

EPOCHS, QUICK_EPOCHS = 50, 10
GRID, QUICK_GRID = 25, 11
RATE = 0.002  # the authors', of everything that is not a prompt
LAMBDAS = {"lambda_env": 0.1, "lambda_irm": 0.0, "lambda_orth": 0.1}
LOSSES = (
    "Final and target loss: cross-entropy of the training set at the posterior mean, after the last epoch and at the "
    "lowest point of the plane around it. Loss in the last epoch, which is what the paper calls final: mean over its "
    "batches, with posterior noise and augmented views."
)
NAMES = {
    "instance-coop": ("coop", "CoOp"),
    "instance-pl": ("bayes-cal", "PL (Bayes-CAL)"),
    "instance-lv": ("bayes-cal-lv", "LV"),
    "instance-w2v": ("bayes-cal-w2v", "W2V"),
    "instance-visual": ("visual-mlp", "visual"),
}


def variants(bench: Bench, keys: Collection[str] = tuple(NAMES)) -> list[MethodVariant]:
    found = []
    for key, (method, title) in NAMES.items():
        if key not in keys:
            continue
        if bench.options.methods is not None and method not in bench.options.methods:
            continue
        if bench.lacks_file(method):
            bench.notes.append(f"{title} was left out: it needs word vectors, --word-vectors FILE")
            continue
        fixed: dict[str, Any] = {"epochs": QUICK_EPOCHS if bench.options.quick else EPOCHS}
        if get_method(method).alignment_terms:
            fixed |= LAMBDAS
        if not get_method(method).uses_text:
            fixed["learning_rate"] = RATE
        found.append(MethodVariant(key, method, title, fixed, searched=False))
    return found


def refuse_none(found: Sequence[MethodVariant], known: Sequence[str]) -> None:
    if not found:
        raise BayescalError(f"none of --methods is compared here; there are {', '.join(known)}")


def datasets(bench: Bench) -> list[str]:
    """NICO_SUB, as in the paper; where it is not at hand, PACS, or the first of those that are."""
    given = bench.options.datasets
    return [next((name for name in ("nico-sub", "pacs") if name in given), given[0])]


def search_of(bench: Bench, data: str, variant: MethodVariant) -> Search:
    grid = QUICK_GRID if bench.options.quick else GRID
    return Search(data, variant, f"instances/2/{grid}", trajectory=True, add_to_record=Landscapes(grid))


@dataclass(frozen=True)
class Landscapes:
    """Adds the loss landscape around its end to every run's record."""

    grid: int

    def __call__(self, results: StackResult, first: PlannedRun) -> list[dict[str, Any]]:
        problem, run = first.prepared.problem, first.run()
        return [{"landscape": _plain(landscape(problem, result, run, grid=self.grid))} for result in results]


def _plain(found: Landscape) -> LossLandscape:
    """To five digits, as a record keeps it."""
    x, y, z, path, best = (
        np.round(values.numpy(), 5).tolist() for values in (found.x, found.y, found.z, found.path, found.best)
    )
    explained = [float(v) for v in found.explained]
    return LossLandscape(x, y, z, path, best, explained, float(found.target_loss), float(found.final_loss_at_end))


def searches(bench: Bench) -> list[Search]:
    refuse_none(variants(bench), [method for method, _ in NAMES.values()])
    return [search_of(bench, data, variant) for data in datasets(bench) for variant in variants(bench)]


def section(bench: Bench) -> Section:
    titles = ", ".join(bench.dataset(data).title for data in datasets(bench))
    return make_section(
        bench,
        "instances",
        "What is learned: prompts, vectors, word vectors, a visual network",
        f"The same loss, λ = (0.1, 0, 0.1), on {titles} with different things to learn; LV, W2V and the visual network "
        f"at one learning rate, {RATE}. A low training loss with a low test accuracy is a network that fits the few "
        "images and not the classes.",
        [_table(bench, data) for data in datasets(bench)],
        [_curves(bench, data) for data in datasets(bench)],
        limits=(
            "The target loss is the lowest point of a plane, not of the whole space: an upper bound of what training "
            "could reach. One λ for all; nothing was searched, so this compares convergence and not the best result."
        ),
    )


def final_loss(record: Record) -> float | None:
    return None if record.landscape is None else record.landscape.final_loss


def epoch_loss(record: Record) -> float | None:
    return record.curves["ce"][-1]


def target_loss(record: Record) -> float | None:
    return None if record.landscape is None else record.landscape.target_loss


def _table(bench: Bench, data: str) -> Table:
    columns = [
        Column("final", "final loss", "low", unit="", digits=2),
        Column("target", "target loss", "low", unit="", digits=2),
        Column("accuracy", "test accuracy", "high"),
        Column("epoch", "loss in the last epoch", "", unit="", digits=2),
        Column("parameters", "learned numbers", "", unit="", digits=0),
    ]
    paper = [
        Column(f"paper/{c.key}", c.title, c.better, c.unit, c.digits, published=True, group="paper, NICO_SUB, RN50")
        for c in columns[:3]
    ]
    rows = []
    for variant in variants(bench):
        records = bench.records(search_of(bench, data, variant))
        folds, ended = {r.fold for r in records}, [r for r in records if not r.stopped]
        mean = lambda found, f=folds, r=ended: value(overall(per_fold(r, found), f))  # noqa: E731
        cells = {
            "final": mean(final_loss),
            "epoch": mean(epoch_loss),
            "target": mean(target_loss),
            "accuracy": mean(lambda record: record.scores["last"].accuracy),
            "parameters": Value(float(records[0].parameters)),
        }
        final, target, accuracy = published.INSTANCES[variant.key]
        cells |= {
            "paper/final": Value(final), "paper/target": Value(target), "paper/accuracy": Value(accuracy / 100)
        }  # fmt: skip
        rows.append(Row(variant.title, cells))
    note = f"{LOSSES} Last checkpoint; held-out environments averaged."
    shown = (*columns, *(paper if published.is_papers(bench.options.backbone) else ()))
    return Table(f"instances/{data}", f"{bench.dataset(data).title}: convergence", shown, tuple(rows), note)


def _curves(bench: Bench, data: str) -> Figure:
    found = {one.title: bench.records(search_of(bench, data, one)) for one in variants(bench)}
    chance = 1 / len(bench.sources.prepared(data).manifest.classes)
    series = lambda name: [  # noqa: E731
        line(title, seed_curves(records, lambda record: record.curves[name])) for title, records in found.items()
    ]
    panels = [{"title": "test accuracy", "chance": chance, "series": series("test")}]
    about = {"x": "epoch", "y": "accuracy", "percent": True, "log_y": False, "panels": panels}
    return Figure(f"instances/{data}", f"{bench.dataset(data).title}: test accuracy against epoch", "lines", about)


EXPERIMENT = Experiment("instances", "convergence of CoOp, PL, LV, W2V, visual", searches, section)
