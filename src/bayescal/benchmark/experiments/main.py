"""Tables 1 and 2: every method on every data set, by each of the three selection rules, with all metrics.

One search (trials × seeds × held-out environments) per method and data set. The first table uses each data set's own
rule, the second all three; a third table per data set has accuracy by held-out environment and everything else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bayescal.benchmark import end_to_end
from bayescal.benchmark.bench import CORE, Bench
from bayescal.benchmark.experiments import published
from bayescal.benchmark.experiments.experiment import (
    Experiment,
    compare,
    make_section,
    overall_value,
    published_columns,
    rule_of,
    scores,
    value,
)
from bayescal.benchmark.experiments.figures import reliability_figure, risk_coverage_figure, trials_figure
from bayescal.benchmark.results import Column, Figure, Row, Section, Table, Value
from bayescal.benchmark.searches import Search
from bayescal.benchmark.variants import get_variant
from bayescal.data.datasets.base import Dataset
from bayescal.errors import BayescalError
from bayescal.evaluation.selection import RULES
from bayescal.methods import find_method, hyperparameters, method_names
from bayescal.methods.registry import BUILT_IN

METRICS = (
    Column("accuracy", "accuracy", "high"),
    Column("selective_accuracy", "Acc*", "high"),
    Column("selective_accuracy_code", "Acc* (code)", "high"),
    Column("coverage", "coverage", "high"),
    Column("ece", "ECE", "low"),
    Column("brier", "Brier", "low", unit="", digits=3),
    Column("nll", "NLL", "low", unit="", digits=3),
    Column("auroc", "AUROC", "high"),
    Column("fpr95", "FPR@95", "low"),
    Column("aurc", "AURC", "low"),
)
WHOLE = "end to end, on all training images"
WHOLE_NOTE = (
    " Rows “end to end” are networks trained from pixels on all images of the training environments, not few-shot; in "
    "the paper's columns they are OoD-Bench's (ResNet-18), as published, with a standard error where the source gives "
    "one."
)
ANNEALED = ("irm", "vrex")
ANNEALED_NOTE = (
    " IRM and VREx draw the step from which their penalty counts in full as a share of the training's steps, as large "
    "as DomainBed's 10^U(0, 4) is of its 5,000, so that it counts in short trainings, too."
)
FIGURE_METHODS = ("clip", "coop", "cocoop", "tip-adapter-f", "erm", "cal", "bayes-cal", "bayes-cal-scaled")


def variants(bench: Bench) -> list[str]:
    """The methods of the table: the user's, or all, with the second search space of Bayes-CAL."""
    if bench.options.methods is not None:
        return list(bench.options.methods)
    if bench.options.quick:
        return list(CORE)
    names = [name for name in method_names() if not bench.lacks_file(name)]
    own = ["bayes-cal-scaled", *(f"{name}-16" for name in ("coop", "cal", "bayes-cal") if not papers_prompt(bench))]
    at = names.index("bayes-cal") + 1
    return [*names[:at], *own, *names[at:]]


def is_outside(name: str) -> bool:
    """Whether a method is not the package's own: it is in every figure, since nobody names it but to see it."""
    return get_variant(name).method not in BUILT_IN


def papers_prompt(bench: Bench) -> bool:
    """Whether the backbone's own default is the paper's prompt already: 16 random vectors."""
    defaults = bench.sources.prepared(bench.options.datasets[0]).backbone_info.defaults
    return (defaults.n_context, defaults.context_init) == (16, "")


def searches(bench: Bench) -> list[Search]:
    few = [Search(dataset, get_variant(name)) for dataset in bench.options.datasets for name in variants(bench)]
    return [*few, *(whole_search(bench, data, n) for data in bench.options.datasets for n in whole_models(bench))]


def whole_models(bench: Bench) -> list[str]:
    """The algorithms that are also trained end to end."""
    options = bench.options
    if options.end_to_end is None:
        return []
    if found := end_to_end.algorithms(options.methods, options.quick):
        return found
    raise BayescalError(
        "--end-to-end: none of --methods trains an image model; these do: "
        f"{', '.join(end_to_end.algorithms(None, quick=False))}"
    )


def whole_search(bench: Bench, data: str, name: str) -> Search:
    how = bench.options.end_to_end
    assert how is not None
    return Search(data, how.variant(name), end_to_end.PURPOSE, end_to_end=how)


def whole_rows(bench: Bench, cells: Callable[[Search], Mapping[str, Value | str]]) -> list[Row]:
    """Rows of whole models, by data set: what `cells` finds in each one's search; out of the running for best."""
    rows = []
    for name in whole_models(bench):
        found: dict[str, Value | str] = {}
        for data in bench.options.datasets:
            found |= cells(whole_search(bench, data, name))
        rows.append(Row(f"{find_method(name).title}, end to end", found, whole_group(bench), ranked=False))
    return rows


def whole_group(bench: Bench) -> str:
    how = bench.options.end_to_end
    return f"{WHOLE}{f': {how.title}' if how else ''}"


def section(bench: Bench) -> Section:
    names, datasets = variants(bench), bench.options.datasets
    if bench.options.methods is None and not bench.options.quick and any(map(bench.lacks_file, method_names())):
        bench.notes.append("W2V was left out: it needs word vectors, --word-vectors FILE")
    tables = [
        accuracy_table(bench, names, whole=True),
        rules_table(bench, names),
        *(dataset_table(bench, name, names) for name in datasets),
    ]
    shown = [name for name in names if name in FIGURE_METHODS or is_outside(name)]
    figures = [figure for name in datasets for figure in dataset_figures(bench, name, shown)]
    return make_section(
        bench,
        "main",
        "Every method, every data set",
        lead(bench, names, [bench.dataset(name) for name in datasets]),
        tables,
        figures,
        limits=(
            "With a weak backbone, methods that change the representation most have most to gain, so the order of the "
            "rows need not be that of CLIP. A few seeds tell large differences from chance and no small ones; seeds "
            "share the test images, so the standard error does not say how another test set would come out. "
            "Test-domain validation chooses with labelled images of the test distribution, which nobody has in real "
            "use: it is reported because the paper does."
        ),
    )


def accuracy_table(bench: Bench, names: Sequence[str], whole: bool = False) -> Table:
    """Accuracy by each data set's own rule; the last column is the mean over the data sets.

    With `whole`, image models that were trained end to end on all images, here or by OoD-Bench, are rows of their own.
    """
    own = [Column(name, bench.dataset(name).title, "high") for name in bench.options.datasets]
    columns = [*own, Column("mean", "mean", "high")] if len(own) > 1 else own
    rows = []
    for name in names:
        variant = get_variant(name)
        cells = {data: overall_value(bench, Search(data, variant)) for data in bench.options.datasets}
        found = [cell.mean for cell in cells.values() if cell.mean is not None]
        if len(found) == len(own) > 1:
            cells["mean"] = Value(sum(found) / len(found))
        for data in bench.options.datasets:
            if (paper := published.accuracy(name, data)) is not None:
                cells[f"{data}/paper"] = paper
        rows.append(Row(variant.title, cells))
    note = ""
    if whole:
        rows += (ended := _end_to_end_rows(bench))
        note = WHOLE_NOTE if ended else ""
    rules = "; ".join(f"{bench.dataset(d).title} {rule_of(bench, d).title}" for d in bench.options.datasets)
    if any(get_variant(name).method in ANNEALED for name in names):
        note += ANNEALED_NOTE
    note = f"Accuracy in the test environments, %. Chosen by: {rules}.{note}"
    return Table("accuracy", "Accuracy", (*columns, *published_columns(bench, own)), tuple(rows), note)


def _end_to_end_rows(bench: Bench) -> list[Row]:
    """Whole models that were trained here, and those that OoD-Bench published, where the paper's numbers are shown."""
    found = {row.label: row for row in whole_rows(bench, lambda s: {s.dataset: overall_value(bench, s)})}
    if published.is_papers(bench.options.backbone):
        for name in published.OOD_BENCH:
            cells: dict[str, Value | str] = {
                f"{data}/paper": paper
                for data in bench.options.datasets
                if (paper := published.accuracy(name, data, end_to_end=True)) is not None
            }
            label = f"{find_method(name).title}, end to end"
            if cells:
                own = found.get(label, Row(label, {}, whole_group(bench), ranked=False))
                found[label] = replace(own, cells={**own.cells, **cells})
    return list(found.values())


def rules_table(bench: Bench, names: Sequence[str]) -> Table:
    """The same search, read by each of the rules that the data set has validation images for."""
    readings = [
        (data, rule)
        for data in bench.options.datasets
        for rule in RULES.values()
        if any(rule.looks_at in record.curves for record in bench.records(Search(data, get_variant(names[0]))))
    ]
    columns = [
        Column(f"{data}/{rule.name}", rule.name.replace("-domain", ""), "high", group=bench.dataset(data).title)
        for data, rule in readings
    ]
    rows = [
        Row(
            get_variant(name).title,
            {f"{data}/{rule.name}": overall_value(bench, Search(data, get_variant(name)), rule=rule.name)
             for data, rule in readings},
        )
        for name in names
    ]  # fmt: skip
    rows += whole_rows(
        bench, lambda s: {f"{d}/{r.name}": overall_value(bench, s, rule=r.name) for d, r in readings if d == s.dataset}
    )
    note = (
        "training: validation images of the training environments; test: validation images of the test distribution, "
        "last checkpoint; ood: of neither, where the data set has them. Accuracy, %."
    )
    return Table("rules", "Accuracy by selection rule", tuple(columns), tuple(rows), note)


def dataset_table(bench: Bench, data: str, names: Sequence[str]) -> Table:
    """Accuracy in every held-out environment, the worst of them, and every other metric of the chosen runs."""
    folds = [fold.name for fold in bench.sources.prepared(data).folds]
    columns = [Column(f"fold/{fold}", fold.replace("_", " "), "high", group="held out") for fold in folds]
    columns.append(Column("worst", "worst", "high", group="held out"))
    metrics = [Column(c.key, c.title, c.better, c.unit, c.digits, group="all") for c in METRICS]

    def measured(search: Search) -> dict[str, Value | str]:
        by_fold = scores(bench, search)
        cells: dict[str, Value | str] = {f"fold/{fold}": value(by_fold.get(fold, {})) for fold in folds}
        # With one fold the worst environment is inside it; with several, each fold is one environment.
        worst = scores(bench, search, "worst_environment")
        seeds = set.intersection(*(set(found) for found in worst.values())) if worst else set()
        cells["worst"] = value({seed: min(found[seed] for found in worst.values()) for seed in sorted(seeds)})
        return cells | {column.key: overall_value(bench, search, column.key) for column in METRICS}

    rows = [Row(get_variant(name).title, measured(Search(data, get_variant(name)))) for name in names]
    rows += whole_rows(bench, lambda search: measured(search) if search.dataset == data else {})
    title = bench.dataset(data).title
    note = (
        f"Chosen by {rule_of(bench, data).title}. Acc*: correct among the answers that were not “unsure”; "
        "Acc* (code): as the released code counts it, never below accuracy; coverage: share answered. AUROC and "
        "FPR@95: of confidence as a detector of errors; AURC: area under the risk–coverage curve, %."
    )
    return Table(f"dataset/{data}", title, (*columns, *metrics), tuple(rows), note)


def dataset_figures(bench: Bench, data: str, names: Sequence[str]) -> list[Figure]:
    chosen = {get_variant(name).title: bench.chosen(Search(data, get_variant(name))) for name in names}
    dataset, rule = bench.dataset(data), rule_of(bench, data)
    title = dataset.title
    figures = [
        reliability_figure(f"reliability/{data}", f"{title}: does confidence mean what it says?", chosen, rule),
        risk_coverage_figure(f"risk-coverage/{data}", f"{title}: what declining to answer buys", chosen, rule),
    ]
    searched = [name for name in names if name in ("bayes-cal", "bayes-cal-scaled", "cal") or is_outside(name)]
    if searched:
        searches = [Search(data, get_variant(name)) for name in searched]
        records = {search.variant.title: bench.records(search) for search in searches}
        draws = [hyperparameters.searched(search.variant.search_space(dataset)) for search in searches]
        log = {name for found in draws for name, draw in found.items() if draw.log}
        figures.append(trials_figure(f"trials/{data}", f"{title}: every trial of the search", records, rule, log))
    return figures


def lead(bench: Bench, names: Sequence[str], datasets: Sequence[Dataset]) -> str:
    """What came out for Bayes-CAL against zero-shot and CoOp, data set by data set, in words."""
    runs = f"{bench.options.trials} trials × {len(bench.options.seeds)} seeds"
    text = [f"{len(names)} methods on {', '.join(d.title for d in datasets)}; {runs}, trained as stacks."]
    for ours, *rivals in (("bayes-cal", "clip", "coop", "cal"), ("bayes-cal-16", "clip", "coop-16", "cal-16")):
        if ours in names:
            rivals = [name for name in rivals if name in names]
            text.append(compare(bench, ours, rivals, bench.options.datasets))
    return "\n\n".join(text)


EXPERIMENT = Experiment("main", "every method on every data set (tables 1 and 2)", searches, section)
