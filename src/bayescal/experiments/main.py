"""Tables 1 and 2: every method on every data set, by each of the three selection rules, with all metrics.

One search (draws × seeds × held-out environments) per method and data set. The first table uses each data set's own
rule, the second all three; a third table per data set has accuracy by held-out environment and everything else.
"""

from collections.abc import Sequence

from bayescal.data.datasets.base import Dataset
from bayescal.experiments import published
from bayescal.experiments.bench import CORE, Bench, Search
from bayescal.experiments.experiment import (
    SPREAD,
    Experiment,
    compare,
    make_section,
    overall_value,
    published_columns,
    rule_of,
    scores,
    value,
)
from bayescal.experiments.figures import draws_figure, reliability_figure, risk_coverage_figure
from bayescal.experiments.findings import Column, Row, Section, Table, Value
from bayescal.methods import method_names
from bayescal.protocol.entries import get_entry
from bayescal.protocol.selection import RULES

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
FIGURE_METHODS = ("clip", "coop", "cocoop", "tip-adapter-f", "erm", "cal", "bayes-cal", "bayes-cal-scaled")


def entries(bench: Bench) -> list[str]:
    """The methods of the table: the user's, or all, with the second search space of Bayes-CAL."""
    if bench.options.methods is not None:
        return list(bench.options.methods)
    if bench.options.quick:
        return list(CORE)
    names = [name for name in method_names() if "w2v" not in name or bench.options.word_vectors]
    own = ["bayes-cal-scaled", *(f"{name}-16" for name in ("coop", "cal", "bayes-cal") if not papers_prompt(bench))]
    at = names.index("bayes-cal") + 1
    return [*names[:at], *own, *names[at:]]


def papers_prompt(bench: Bench) -> bool:
    """Whether the backbone's own default is the paper's prompt already: 16 random vectors."""
    defaults = bench.sources.arena(bench.options.datasets[0]).facts.defaults
    return (defaults.n_context, defaults.context_init) == (16, "")


def searches(bench: Bench) -> list[Search]:
    return [Search(dataset, get_entry(name)) for dataset in bench.options.datasets for name in entries(bench)]


def section(bench: Bench) -> Section:
    names, datasets = entries(bench), bench.options.datasets
    if bench.options.methods is None and not bench.options.quick and not bench.options.word_vectors:
        bench.notes.append("W2V was left out: it needs word vectors, --word-vectors FILE")
    tables = [
        accuracy_table(bench, names),
        rules_table(bench, names),
        *(dataset_table(bench, name, names) for name in datasets),
    ]
    shown = [name for name in names if name in FIGURE_METHODS]
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


def accuracy_table(bench: Bench, names: Sequence[str]) -> Table:
    """Accuracy by each data set's own rule; the last column is the mean over the data sets."""
    own = [Column(name, bench.dataset(name).title, "high") for name in bench.options.datasets]
    columns = [*own, Column("mean", "mean", "high")] if len(own) > 1 else own
    rows = []
    for name in names:
        entry = get_entry(name)
        cells = {data: overall_value(bench, Search(data, entry)) for data in bench.options.datasets}
        found = [cell.mean for cell in cells.values() if cell.mean is not None]
        if len(found) == len(own) > 1:
            cells["mean"] = Value(sum(found) / len(found))
        for data in bench.options.datasets:
            if (paper := published.accuracy(name, data)) is not None:
                cells[f"{data}/paper"] = paper
        rows.append(Row(entry.title, cells))
    rules = "; ".join(f"{bench.dataset(d).title} {rule_of(bench, d).title}" for d in bench.options.datasets)
    note = f"Accuracy in the test environments, %, {SPREAD}. Chosen by: {rules}."
    return Table("accuracy", "Accuracy", (*columns, *published_columns(bench, own)), tuple(rows), note)


def rules_table(bench: Bench, names: Sequence[str]) -> Table:
    """The same search, read by each of the rules that the data set has validation images for."""
    places = [
        (data, rule)
        for data in bench.options.datasets
        for rule in RULES.values()
        if any(rule.looks_at in record["curves"] for record in bench.records(Search(data, get_entry(names[0]))))
    ]
    columns = [
        Column(f"{data}/{rule.name}", rule.name.replace("-domain", ""), "high", group=bench.dataset(data).title)
        for data, rule in places
    ]
    rows = [
        Row(
            get_entry(name).title,
            {f"{data}/{rule.name}": overall_value(bench, Search(data, get_entry(name)), rule=rule.name)
             for data, rule in places},
        )
        for name in names
    ]  # fmt: skip
    note = (
        "training: validation images of the training environments; test: validation images of the test distribution, "
        f"last checkpoint; ood: of neither, where the data set has them. Accuracy, %, {SPREAD}."
    )
    return Table("rules", "Accuracy by selection rule", tuple(columns), tuple(rows), note)


def dataset_table(bench: Bench, data: str, names: Sequence[str]) -> Table:
    """Accuracy in every held-out environment, the worst of them, and every other metric of the chosen runs."""
    folds = [fold.name for fold in bench.sources.arena(data).folds]
    columns = [Column(f"fold/{fold}", fold.replace("_", " "), "high", group="held out") for fold in folds]
    columns.append(Column("worst", "worst", "high", group="held out"))
    metrics = [Column(c.key, c.title, c.better, c.unit, c.digits, group="all") for c in METRICS]
    rows = []
    for name in names:
        search = Search(data, get_entry(name))
        by_fold = scores(bench, search)
        cells = {f"fold/{fold}": value(by_fold.get(fold, {})) for fold in folds}
        # With one fold the worst environment is inside it; with several, each fold is one environment.
        worst = scores(bench, search, "worst_environment")
        seeds = set.intersection(*(set(found) for found in worst.values())) if worst else set()
        cells["worst"] = value([min(found[seed] for found in worst.values()) for seed in sorted(seeds)])
        cells |= {column.key: overall_value(bench, search, column.key) for column in METRICS}
        rows.append(Row(get_entry(name).title, cells))
    title = bench.dataset(data).title
    note = (
        f"Chosen by {rule_of(bench, data).title}; {SPREAD}. Acc*: correct among the answers that were not “unsure”; "
        "Acc* (code): as the released code counts it, never below accuracy; coverage: share answered. AUROC and "
        "FPR@95: of confidence as a detector of errors; AURC: area under the risk–coverage curve, %."
    )
    return Table(f"dataset/{data}", title, (*columns, *metrics), tuple(rows), note)


def dataset_figures(bench: Bench, data: str, names: Sequence[str]) -> list:
    chosen = {get_entry(name).title: bench.chosen(Search(data, get_entry(name))) for name in names}
    rule, title = rule_of(bench, data), bench.dataset(data).title
    figures = [
        reliability_figure(f"reliability/{data}", f"{title}: does confidence mean what it says?", chosen, rule),
        risk_coverage_figure(f"risk-coverage/{data}", f"{title}: what declining to answer buys", chosen, rule),
    ]
    searched = [name for name in names if name in ("bayes-cal", "bayes-cal-scaled", "cal")]
    if searched:
        records = {get_entry(name).title: bench.records(Search(data, get_entry(name))) for name in searched}
        figures.append(draws_figure(f"draws/{data}", f"{title}: every draw of the search", records, rule))
    return figures


def lead(bench: Bench, names: Sequence[str], datasets: Sequence[Dataset]) -> str:
    """What came out for Bayes-CAL against zero-shot and CoOp, data set by data set, in words."""
    runs = f"{bench.options.trials} draws × {len(bench.options.seeds)} seeds"
    text = [f"{len(names)} methods on {', '.join(d.title for d in datasets)}; {runs}, trained as stacks."]
    for ours, *rivals in (("bayes-cal", "clip", "coop", "cal"), ("bayes-cal-16", "clip", "coop-16", "cal-16")):
        if ours in names:
            rivals = [name for name in rivals if name in names]
            text.append(compare(bench, ours, rivals, bench.options.datasets))
    return "\n\n".join(text)


EXPERIMENT = Experiment("main", "every method on every data set (tables 1 and 2)", searches, section)
