"""Tip-Adapter-F and its relatives beside Bayes-CAL: methods that work on image features instead of prompts."""

from bayescal.benchmark.bench import Bench
from bayescal.benchmark.experiments import main
from bayescal.benchmark.experiments.experiment import Experiment, compare, make_section
from bayescal.benchmark.results import Section
from bayescal.benchmark.searches import Search
from bayescal.benchmark.variants import get_variant

NAMES = ("clip", "tip-adapter", "tip-adapter-f", "clip-adapter", "bayes-cal")


def names(bench: Bench) -> list[str]:
    return list(bench.options.methods or NAMES)


def searches(bench: Bench) -> list[Search]:
    return [Search(data, get_variant(name)) for data in bench.options.datasets for name in names(bench)]


def section(bench: Bench) -> Section:
    text = ["Cache and adapter methods learn on the image side; α and β of Tip-Adapter come from validation images."]
    if "bayes-cal" in names(bench):
        rivals = [name for name in names(bench) if name != "bayes-cal"]
        text.append(compare(bench, "bayes-cal", rivals, bench.options.datasets))
    return make_section(
        bench,
        "adapters",
        "Adapters and caches",
        "\n\n".join(text),
        [main.accuracy_table(bench, names(bench))],
        limits=(
            "Tip-Adapter's public code picks its epoch on test accuracy; here the epoch, α and β are chosen on "
            "validation images, so numbers published with that code may be higher."
        ),
    )


EXPERIMENT = Experiment("adapters", "Tip-Adapter-F and other adapters", searches, section)
