"""Wilcoxon signed-rank test over data sets: Bayes-CAL against CLIP, CoOp, CoCoOp and the three ablations.

Exact and two-sided. With n pairs no p-value can be below 2/2^n (0.031 for the paper's six data sets), so n and that
floor stand beside every p. A second table takes held-out environments as pairs: more of them, but those of one data
set are not independent.
"""

from collections.abc import Sequence

from bayescal.benchmark.bench import CORE, Bench
from bayescal.benchmark.experiments.experiment import Experiment, make_section, overall_value, points, scores, value
from bayescal.benchmark.results import Column, Row, Section, Table, Value
from bayescal.benchmark.searches import Search
from bayescal.benchmark.variants import get_variant
from bayescal.errors import BayescalError
from bayescal.evaluation.statistics import bootstrap_interval, wilcoxon

OURS = "bayes-cal"
OTHERS = ("clip", "coop", "cocoop", "without-env", "without-irm", "without-orth")


def others(bench: Bench) -> list[str]:
    if bench.options.methods is not None:
        return [name for name in bench.options.methods if name != OURS]
    return [name for name in CORE if name != OURS] if bench.options.quick else list(OTHERS)


def searches(bench: Bench) -> list[Search]:
    if not others(bench):
        raise BayescalError(f"wilcoxon compares {OURS} with others: name another method in --methods")
    return [Search(data, get_variant(n)) for data in bench.options.datasets for n in (OURS, *others(bench))]


def section(bench: Bench) -> Section:
    n = len(bench.options.datasets)
    return make_section(
        bench,
        "wilcoxon",
        "Is Bayes-CAL better over data sets?",
        f"{n} data sets give {n} pairs; the smallest two-sided p that {n} pairs allow is {min(1.0, 2 / 2**n):.3g}. The "
        "paper reports 0.03 to 0.04 over six data sets, where 0.031 is the smallest there is.",
        [_table(bench, "datasets"), _table(bench, "environments"), _intervals(bench)],
        limits=(
            "A small p says that one method is above the other more often than chance would have it, not by how much. "
            "Held-out environments of one data set share training images and are not independent: their p is too small."
        ),
    )


def pairs(bench: Bench, other: str, unit: str) -> tuple[list[float], list[float]]:
    """Accuracies of Bayes-CAL and another variant, one pair per data set or per held-out environment."""
    found: list[tuple[Value, Value]] = []
    for data in bench.options.datasets:
        a, b = Search(data, get_variant(OURS)), Search(data, get_variant(other))
        if unit == "datasets":
            found.append((overall_value(bench, a), overall_value(bench, b)))
        else:
            ours, theirs = scores(bench, a), scores(bench, b)
            found += [(value(ours[fold]), value(theirs[fold])) for fold in ours if fold in theirs]
    both = [(one.mean, two.mean) for one, two in found if one.mean is not None and two.mean is not None]
    return [one for one, _ in both], [two for _, two in both]


def _table(bench: Bench, unit: str) -> Table:
    columns = (
        Column("difference", "mean difference", "", digits=1),
        Column("wins", "Bayes-CAL above", ""),
        Column("n", "n", "", unit="", digits=0),
        Column("statistic", "W", "", unit="", digits=1),
        Column("p", "p (exact)", "", unit="", digits=4),
        Column("floor", "smallest p for this n", "", unit="", digits=4),
    )
    rows = []
    for name in others(bench):
        ours, theirs = pairs(bench, name, unit)
        test = wilcoxon(ours, theirs)
        gains = [a - b for a, b in zip(ours, theirs, strict=True)]
        cells: dict[str, Value | str] = {
            "difference": Value(sum(gains) / len(gains)) if gains else Value(None, why="no pairs"),
            "wins": f"{sum(g > 0 for g in gains)} of {len(gains)}",
            "n": Value(float(test.n)),
            "statistic": _number(test.statistic),
            "p": _number(test.p),
            "floor": _number(test.smallest_p),
        }
        rows.append(Row(get_variant(name).title, cells))
    what = "data sets" if unit == "datasets" else "held-out environments"
    note = "Two-sided signed-rank test; pairs without a difference are dropped and not counted in n."
    return Table(f"wilcoxon/{unit}", f"Bayes-CAL against each, over {what}", columns, tuple(rows), note)


def _number(p: float) -> Value:
    return Value(p) if p == p else Value(None, why="no pair differs")


def _intervals(bench: Bench) -> Table:
    """Bootstrap intervals of the difference on each data set, resampling held-out environments and seeds."""
    columns = tuple(Column(data, bench.dataset(data).title, "") for data in bench.options.datasets)
    rows = []
    for name in others(bench):
        cells: dict[str, Value | str] = {}
        for data in bench.options.datasets:
            cells[data] = _interval(*(scores(bench, Search(data, get_variant(n))) for n in (OURS, name)))
        rows.append(Row(get_variant(name).title, cells, ranked=False))
    note = (
        "Difference in points with its 95 % bootstrap interval: seeds resampled, and held-out environments where there "
        "are several. With three seeds the interval is rough."
    )
    return Table("wilcoxon/bootstrap", "Bayes-CAL minus each, by data set", columns, tuple(rows), note)


def _interval(ours: dict[str, dict[int, float]], theirs: dict[str, dict[int, float]]) -> str:
    folds = [fold for fold in ours if fold in theirs]
    seeds = sorted(set.intersection(*(set(ours[f]) & set(theirs[f]) for f in folds))) if folds else []
    if not seeds:
        return "–"
    table: Sequence[Sequence[float]] = [[ours[f][s] - theirs[f][s] for s in seeds] for f in folds]
    mean = sum(map(sum, table)) / (len(folds) * len(seeds))
    if len(seeds) * len(folds) < 2:
        return points(mean)
    low, high = bootstrap_interval(table if len(folds) > 1 else table[0])
    return f"{points(mean)} [{points(low)}, {points(high)}]"


EXPERIMENT = Experiment("wilcoxon", "signed-rank test and bootstrap intervals over data sets", searches, section)
