"""Figure: test accuracy against epoch on CCD, Bayes-CAL and CoOp. Reads the searches of `main`; trains nothing else."""

from bayescal.benchmark.bench import Bench
from bayescal.benchmark.experiments.experiment import Experiment, line, make_section, rule_of, seed_curves
from bayescal.benchmark.results import Figure, Section
from bayescal.benchmark.searches import Search
from bayescal.benchmark.variants import get_variant

NAMES = ("coop", "cal", "bayes-cal")


def names(bench: Bench) -> list[str]:
    return list(bench.options.methods or NAMES)


def datasets(bench: Bench) -> list[str]:
    """CCD, as in the paper; where it is not at hand, the data sets that are."""
    return ["ccd"] if "ccd" in bench.options.datasets else list(bench.options.datasets)


def searches(bench: Bench) -> list[Search]:
    return [Search(data, get_variant(name)) for data in datasets(bench) for name in names(bench)]


def section(bench: Bench) -> Section:
    figures = [figure for data in datasets(bench) for figure in _figures(bench, data)]
    titles = ", ".join(bench.dataset(data).title for data in datasets(bench))
    return make_section(
        bench,
        "epochs",
        "Accuracy during training",
        f"Accuracy on the test environments of {titles} after every epoch, at the posterior mean, for the runs that "
        "the data set's rule chose. A method that learns the spurious cue rises on validation images of the training "
        "environments while it falls on the test environment.",
        figures=figures,
        limits="The curves are of the chosen runs: another trial has another curve.",
    )


def _figures(bench: Bench, data: str) -> list[Figure]:
    prepared = bench.sources.prepared(data)
    chosen = {name: bench.chosen(Search(data, get_variant(name))) for name in names(bench)}
    chance = 1 / len(prepared.manifest.classes)
    panels = []
    for curve, title in (("test", "test environment"), ("val", "validation images of the training environments")):
        series = [
            line(get_variant(name).title, seed_curves(runs, lambda record, c=curve: record.curves[c]))
            for name, runs in chosen.items()
            if runs
        ]
        panels.append({"title": title, "chance": chance, "series": series})
    what = "Mean and standard error over seeds" if len(bench.options.seeds) > 1 else "One seed"
    note = f"{what}; runs chosen by {rule_of(bench, data).title}."
    about = {"x": "epoch", "y": "accuracy", "percent": True, "log_y": False, "panels": panels}
    return [Figure(f"epochs/{data}", f"{prepared.dataset.title}: accuracy against epoch", "lines", about, note)]


EXPERIMENT = Experiment("epochs", "test accuracy against epoch on CCD", searches, section)
