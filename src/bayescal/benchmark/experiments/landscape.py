"""Figure: the loss around the end of training, and the way there, for each instance.

The paper shows LV and the visual network; PL is here too. Parameters of every epoch, PCA of the trajectory, a grid in
its first two directions. Reads the runs of `instances`.
"""

from bayescal.benchmark.bench import Bench
from bayescal.benchmark.experiments import instances
from bayescal.benchmark.experiments.experiment import Experiment, make_section
from bayescal.benchmark.results import Figure, Section
from bayescal.benchmark.searches import Search
from bayescal.benchmark.variants import MethodVariant

SHOWN = ("instance-lv", "instance-visual", "instance-pl")  # without W2V, which the paper does not show either


def variants(bench: Bench) -> list[MethodVariant]:
    return instances.variants(bench, SHOWN)


def searches(bench: Bench) -> list[Search]:
    instances.refuse_none(variants(bench), [instances.NAMES[key][0] for key in SHOWN])
    return [instances.search_of(bench, data, one) for data in instances.datasets(bench) for one in variants(bench)]


def section(bench: Bench) -> Section:
    figures = [_figure(bench, data) for data in instances.datasets(bench)]
    return make_section(
        bench,
        "landscape",
        "Loss landscapes",
        "Training cross-entropy in the plane of the first two principal directions of the training path, around its "
        "end. The path runs from the initial parameters to the end at (0, 0); the star marks the lowest point.",
        figures=figures,
        limits=(
            "Two directions out of thousands. The plane is the one that training moved in, so it shows what training "
            "saw and not how rough the loss is elsewhere; panels have their own directions and scales."
        ),
    )


def _figure(bench: Bench, data: str) -> Figure:
    """One run of each: the first seed and held-out environment, which all of them share."""
    panels, shown = [], set()
    for variant in variants(bench):
        records = bench.records(instances.search_of(bench, data, variant))
        first = min(records, key=lambda record: (record.seed, record.fold))
        shown.add(f"{first.fold.replace('_', ' ')}, seed {first.seed}")
        names = ("x", "y", "z", "path", "best", "explained")
        panels.append({"title": variant.title, **{name: getattr(first.landscape, name) for name in names}})
    title = f"{bench.dataset(data).title}: loss landscape and training path"
    note = f"Held out: {'; '.join(sorted(shown))}."
    return Figure(f"landscape/{data}", title, "landscape", {"panels": panels}, note)


EXPERIMENT = Experiment("landscape", "loss landscapes of PL, LV and the visual network", searches, section)
