"""What each term contributes: Bayes-CAL without L_E, without L_IRM, without L_orth, and without Bayes (that is CAL).

The same trials with one λ put to zero, chosen by the same rule. Beside it, what each term can do at all: the norm of
its gradient on φ_C, the context of the class prompts, over training. L_E has none: it trains φ_E alone and reaches φ_C
only through L_orth.
"""

import math
from collections.abc import Sequence

import numpy as np

from bayescal.benchmark.bench import Bench
from bayescal.benchmark.experiments.experiment import Experiment, compare, line, make_section, seed_curves, value
from bayescal.benchmark.experiments.main import accuracy_table, papers_prompt
from bayescal.benchmark.records import Record
from bayescal.benchmark.results import Column, Figure, Row, Section, Table, Value
from bayescal.benchmark.searches import Search
from bayescal.benchmark.variants import get_variant

NAMES = ("bayes-cal", "without-env", "without-irm", "without-orth", "cal")
SCALED = ("bayes-cal-scaled", "scaled-without-env", "scaled-without-irm", "scaled-without-orth")
SIXTEEN = ("bayes-cal-16", "16-without-env", "16-without-irm", "16-without-orth", "cal-16")
TERMS = {"ce": "cross-entropy", "irm": "λ2·L_IRM", "orth": "λ3·L_orth", "env": "λ1·L_E", "kl": "β/N·KL"}


def names(bench: Bench) -> list[str]:
    if bench.options.methods is not None:
        return list(bench.options.methods)
    if bench.options.quick:
        return list(NAMES)
    return [*NAMES, *SCALED, *(() if papers_prompt(bench) else SIXTEEN)]


def searches(bench: Bench) -> list[Search]:
    return [Search(data, get_variant(name)) for data in bench.options.datasets for name in names(bench)]


def section(bench: Bench) -> Section:
    whole = [name for name in names(bench) if name in ("bayes-cal", "bayes-cal-scaled", "bayes-cal-16")]
    tables = [accuracy_table(bench, names(bench)), *([gradient_table(bench, whole)] if whole else [])]
    figures = [gradient_figure(bench, data, whole) for data in bench.options.datasets] if whole else []
    return make_section(
        bench,
        "ablation",
        "What each term contributes",
        lead(bench),
        tables,
        figures,
        limits=(
            "Putting one λ to zero in a search also changes which trial is chosen, so a difference is that of two "
            "searches, not of the term alone. The norm of a gradient says how hard a term pulls, not whether it pulls "
            "somewhere useful."
        ),
    )


def lead(bench: Bench) -> str:
    text = [
        "Bayes-CAL with one term left out at a time, and without Bayes (CAL), which the paper omits. “Scaled λ” "
        "searches ranges in which the terms are large enough to matter beside the cross-entropy gradient. “16 random "
        "vectors” is the paper's prompt, where the backbone's own default is another."
    ]
    for whole, *parts in (NAMES, SCALED, SIXTEEN):
        if whole in names(bench):
            parts = [name for name in parts if name in names(bench)]
            text.append(compare(bench, whole, parts, bench.options.datasets))
    return "\n\n".join(text)


def weight(record: Record, term: str) -> float:
    """What the objective multiplies a term by."""
    config = record.config
    if term == "kl":
        return config["beta"] / record.split.train
    return {"ce": 1.0, "irm": config["lambda_irm"], "orth": config["lambda_orth"], "env": config["lambda_env"]}[term]


def pull(record: Record, term: str) -> list[float]:
    """Norm of the weighted term's gradient on φ_C at every epoch where it was measured; NaN where it was not finite."""
    norms = record.gradient_norms[term]
    return [math.nan if norm is None else weight(record, term) * norm for norm in norms]


def gradient_table(bench: Bench, variants: Sequence[str]) -> Table:
    """How hard each weighted term pulls at φ_C, relative to cross-entropy: mean over the measured epochs."""
    columns = [
        Column(f"{data}/{term}", title, "", unit="%", digits=2, group=bench.dataset(data).title)
        for data in bench.options.datasets
        for term, title in TERMS.items()
        if term != "ce"
    ]
    rows = []
    for name in variants:
        for what, pick in (("chosen runs", bench.chosen), ("all trials", bench.records)):
            picked = {data: pick(Search(data, get_variant(name))) for data in bench.options.datasets}
            cells = {
                f"{data}/{term}": _share(runs, term) for data, runs in picked.items() for term in TERMS if term != "ce"
            }
            rows.append(Row(f"{get_variant(name).title}, {what}", cells, ranked=False))
    note = (
        "Norm of λ·∇L on φ_C as a share of the cross-entropy's, mean over epochs, folds and "
        "trials. λ1·L_E is exactly zero: the term does not contain φ_C."
    )
    return Table("gradients", "How hard each term pulls at the class prompt", tuple(columns), tuple(rows), note)


def _share(records: Sequence[Record], term: str) -> Value:
    """A term's pull as a share of the cross-entropy's, over the runs that finished and were measured."""
    by_seed: dict[int, list[float]] = {}
    for record in records:
        if term in record.gradient_norms and not record.stopped:
            share = float(np.mean(pull(record, term)) / np.mean(pull(record, "ce")))
            if math.isfinite(share):
                by_seed.setdefault(record.seed, []).append(share)
    if not by_seed:
        return Value(None, why="not recorded")
    return value({seed: float(np.mean(found)) for seed, found in sorted(by_seed.items())})


def gradient_figure(bench: Bench, data: str, variants: Sequence[str]) -> Figure:
    """Weighted gradient norms on φ_C over training, on a logarithmic axis; one panel per search space."""
    panels = []
    for name in variants:
        chosen = [record for record in bench.chosen(Search(data, get_variant(name))) if record.gradient_norms]
        series = []
        for term, title in TERMS.items():
            if term == "env" or not chosen or term not in chosen[0].gradient_norms:
                continue  # zero cannot be drawn on a logarithmic axis
            # Nor can the KL at the start, where the posterior mean is the prior's.
            curves = seed_curves(chosen, lambda record, t=term: [norm or None for norm in pull(record, t)])
            series.append(line(title, curves, chosen[0].gradient_norms["epoch"]))
        panels.append({"title": get_variant(name).title, "chance": None, "series": series})
    about = {"x": "epoch", "y": "gradient norm on φ_C", "percent": False, "log_y": True, "panels": panels}
    title = f"{bench.dataset(data).title}: gradient of each weighted term on the class prompt"
    band = ", band: standard error over seeds" if len(bench.options.seeds) > 1 else ""
    note = f"Chosen runs, mean over folds{band}. λ1·L_E is zero everywhere and not drawn."
    return Figure(f"gradients/{data}", title, "lines", about, note)


EXPERIMENT = Experiment("ablation", "without L_E, L_IRM, L_orth, Bayes; gradient of every term", searches, section)
