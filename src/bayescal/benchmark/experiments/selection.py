"""How the selection rules compare: the same trials, chosen by each rule, and by the test images themselves.

DomainBed's third rule, leave-one-domain-out, is hardly ever reported, because it trains every trial once more for each
training environment. Here these inner runs are stacks and records like all others.
"""

from collections.abc import Sequence

from bayescal.benchmark.bench import Bench
from bayescal.benchmark.experiments.experiment import Experiment, make_section, overall_value, value
from bayescal.benchmark.records import Record
from bayescal.benchmark.results import Column, Row, Section, Table, Value
from bayescal.benchmark.searches import Search
from bayescal.benchmark.variants import get_variant
from bayescal.errors import BayescalError
from bayescal.evaluation.selection import RULES, overall

NAMES = ("coop", "cal", "bayes-cal", "clip-adapter", "erm")
ORACLE = "oracle"


def names(bench: Bench) -> list[str]:
    return list(bench.options.methods or NAMES)


def datasets(bench: Bench) -> list[str]:
    """Those that have a fold with two training environments and more."""
    return [
        data
        for data in bench.options.datasets
        if any(len(fold.train_environments) > 1 for fold in bench.sources.prepared(data).folds)
    ]


def searches(bench: Bench) -> list[Search]:
    if bench.options.sampler != "random":
        raise BayescalError(
            "selection compares rules on the same trials, and TPE draws its trials by one rule: use --sampler random"
        )
    if not datasets(bench):
        raise BayescalError("selection leaves out training environments, and no data set has two of them in a fold")
    outer = [Search(data, get_variant(name)) for data in datasets(bench) for name in names(bench)]
    return [search for own in outer for search in (own, own.inner())]


def section(bench: Bench) -> Section:
    tables = [_table(bench, data) for data in datasets(bench)]
    lead = (
        "Every rule chooses among the same trials of a method, separately for every fold and seed; the oracle takes "
        "the best that any trial has on the test images, which nobody has. What a rule loses against it is the price "
        "of not knowing."
    )
    limits = "With few trials the rules often choose the same one, so differences are small."
    return make_section(bench, "selection", "Rules of model selection", lead, tables, limits=limits)


def _table(bench: Bench, data: str) -> Table:
    first = bench.records(Search(data, get_variant(names(bench)[0])))
    rules = [
        rule for rule in RULES.values() if rule.inner_metric or any(rule.looks_at in record.curves for record in first)
    ]
    columns = [Column(rule.name, rule.title, "high") for rule in rules]
    rows = []
    for name in names(bench):
        search = Search(data, get_variant(name))
        cells: dict[str, Value | str] = {rule.name: overall_value(bench, search, rule=rule.name) for rule in rules}
        rows.append(Row(get_variant(name).title, cells | {ORACLE: _oracle(bench.records(search))}, ranked=False))
    title = f"{bench.dataset(data).title}: accuracy by selection rule"
    note = (
        "Accuracy in the test environments, %. Oracle: the highest that any trial has at any checkpoint that a rule "
        "may choose, on the images that this rule reports on."
    )
    return Table(f"selection/{data}", title, (*columns, Column(ORACLE, "oracle")), tuple(rows), note)


def _oracle(records: Sequence[Record]) -> Value:
    """The highest test accuracy that any trial has at any checkpoint: no rule can report more."""
    best: dict[str, dict[int, float]] = {}
    for record in records:
        known = [] if record.stopped else [own.accuracy for own in record.scores.values() if own.accuracy is not None]
        if known:
            cells = best.setdefault(record.fold, {})
            cells[record.seed] = max([*known, cells.get(record.seed, 0.0)])
    return value(overall(best, {record.fold for record in records}))


EXPERIMENT = Experiment("selection", "rules of model selection, leaving environments out among them", searches, section)
