"""How the instances converge: CoOp, PL, LV, W2V and the visual network; final loss, target loss, test accuracy.

λ = (0.1, 0, 0.1) and 50 epochs, as in the paper. Final loss: mean training cross-entropy of the last epoch. Target
loss: the smallest training cross-entropy on the loss landscape around the end of training: how much lower a better
optimiser would have got in the plane that training moved in.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bayescal.errors import BayescalError
from bayescal.experiments import published
from bayescal.experiments.bench import Bench, Search
from bayescal.experiments.experiment import SPREAD, Experiment, line, make_section, seed_curves, value
from bayescal.experiments.findings import Column, Figure, Row, Section, Table, Value
from bayescal.landscape import landscape
from bayescal.protocol.entries import Entry
from bayescal.protocol.runner import Planned
from bayescal.protocol.selection import overall, per_fold
from bayescal.protocol.store import Record
from bayescal.stacks import RunResult

EPOCHS, QUICK_EPOCHS = 50, 10
GRID, QUICK_GRID = 25, 11
LAMBDAS = {"lambda_env": 0.1, "lambda_irm": 0.0, "lambda_orth": 0.1}
NAMES = {
    "instance-coop": ("coop", "CoOp"),
    "instance-pl": ("bayes-cal", "PL (Bayes-CAL)"),
    "instance-lv": ("bayes-cal-lv", "LV"),
    "instance-w2v": ("bayes-cal-w2v", "W2V"),
    "instance-visual": ("visual-mlp", "visual"),
}


def entries(bench: Bench) -> list[Entry]:
    found = []
    for key, (method, title) in NAMES.items():
        if bench.options.methods is not None and method not in bench.options.methods:
            continue
        if method == "bayes-cal-w2v" and not bench.options.word_vectors:
            bench.notes.append("W2V was left out: it needs word vectors, --word-vectors FILE")
            continue
        fixed: dict[str, Any] = {"epochs": QUICK_EPOCHS if bench.options.quick else EPOCHS}
        if method.startswith("bayes-cal"):
            fixed |= LAMBDAS
        found.append(Entry(key, method, title, fixed, searched=False))
    return found


def refuse_none(found: Sequence[Entry], known: Sequence[str]) -> None:
    if not found:
        raise BayescalError(f"none of --methods is compared here; there are {', '.join(known)}")


def datasets(bench: Bench) -> list[str]:
    """NICO_SUB, as in the paper; where it is not at hand, PACS, or the first of those that are."""
    given = bench.options.datasets
    return [next((name for name in ("nico-sub", "pacs") if name in given), given[0])]


def search_of(bench: Bench, data: str, entry: Entry) -> Search:
    grid = QUICK_GRID if bench.options.quick else GRID
    return Search(data, entry, f"instances/{grid}", trajectory=True, extra=Landscapes(grid))


class Landscapes:
    """Adds the loss landscape around its end to every run's record."""

    def __init__(self, grid: int):
        self.grid = grid

    def __call__(self, results: Sequence[RunResult], first: Planned) -> list[dict[str, Any]]:
        problem, run = first.arena.problem, first.run()
        out = []
        for result in results:
            found = landscape(problem, result, run, grid=self.grid)
            out.append(
                {
                    "landscape": {
                        **{
                            name: np.round(getattr(found, name).numpy(), 5).tolist()
                            for name in ("x", "y", "z", "path", "best")
                        },
                        "explained": [float(v) for v in found.explained],
                        "target_loss": float(found.target_loss),
                    }
                }
            )
        return out


def searches(bench: Bench) -> list[Search]:
    refuse_none(entries(bench), [method for method, _ in NAMES.values()])
    return [search_of(bench, data, entry) for data in datasets(bench) for entry in entries(bench)]


def section(bench: Bench) -> Section:
    titles = ", ".join(bench.dataset(data).title for data in datasets(bench))
    return make_section(
        bench,
        "instances",
        "What is learned: prompts, vectors, word vectors, a visual network",
        f"The same loss, λ = (0.1, 0, 0.1), on {titles} with different things to learn. A low training loss with a "
        "low test accuracy is a network that fits the few images and not the classes.",
        [_table(bench, data) for data in datasets(bench)],
        [_curves(bench, data) for data in datasets(bench)],
        limits=(
            "The target loss is the lowest point of a plane, not of the whole space: an upper bound of what training "
            "could reach. One λ for all; nothing was searched, so this compares convergence and not the best result."
        ),
    )


def final_loss(record: Record) -> float:
    return record["curves"]["ce"][-1]


def _table(bench: Bench, data: str) -> Table:
    columns = [
        Column("final", "final loss", "low", unit="", digits=2),
        Column("target", "target loss", "low", unit="", digits=2),
        Column("accuracy", "test accuracy", "high"),
        Column("parameters", "learned numbers", "", unit="", digits=0),
    ]
    paper = [
        Column(f"paper/{c.key}", c.title, c.better, c.unit, c.digits, published=True, group="paper, NICO_SUB, RN50")
        for c in columns[:3]
    ]
    rows = []
    for entry in entries(bench):
        records = bench.records(search_of(bench, data, entry))
        folds, ended = {r["fold"] for r in records}, [r for r in records if not r["stopped"]]
        mean = lambda found, f=folds, r=ended: value(overall(per_fold(r, found), f))  # noqa: E731
        cells = {
            "final": mean(final_loss),
            "target": mean(lambda record: record["landscape"]["target_loss"]),
            "accuracy": mean(lambda record: record["scores"]["last"]["accuracy"]),
            "parameters": Value(float(records[0]["parameters"])),
        }
        final, target, accuracy = published.INSTANCES[entry.key]
        cells |= {
            "paper/final": Value(final), "paper/target": Value(target), "paper/accuracy": Value(accuracy / 100)
        }  # fmt: skip
        rows.append(Row(entry.title, cells))
    note = f"Last checkpoint; {SPREAD}; held-out environments averaged."
    shown = (*columns, *(paper if published.is_papers(bench.options.backbone) else ()))
    return Table(f"instances/{data}", f"{bench.dataset(data).title}: convergence", shown, tuple(rows), note)


def _curves(bench: Bench, data: str) -> Figure:
    found = {e.title: bench.records(search_of(bench, data, e)) for e in entries(bench)}
    chance = 1 / len(bench.sources.arena(data).manifest.classes)
    series = lambda name: [  # noqa: E731
        line(title, seed_curves(records, lambda record: record["curves"][name])) for title, records in found.items()
    ]
    panels = [{"title": "test accuracy", "chance": chance, "series": series("test")}]
    about = {"x": "epoch", "y": "accuracy", "percent": True, "log_y": False, "panels": panels}
    return Figure(f"instances/{data}", f"{bench.dataset(data).title}: test accuracy against epoch", "lines", about)


EXPERIMENT = Experiment("instances", "convergence of CoOp, PL, LV, W2V, visual", searches, section)
