"""Figure: the loss around the end of training, and the way there, for LV and the visual network.

Parameters of every epoch, PCA of the trajectory, a grid in its first two directions. Reads the runs of `instances`.
"""

from bayescal.experiments import instances
from bayescal.experiments.bench import Bench, Search
from bayescal.experiments.experiment import Experiment, make_section
from bayescal.experiments.findings import Figure, Section
from bayescal.protocol.entries import Entry

SHOWN = ("instance-lv", "instance-visual", "instance-pl")


def entries(bench: Bench) -> list[Entry]:
    return [entry for entry in instances.entries(bench) if entry.key in SHOWN]


def searches(bench: Bench) -> list[Search]:
    instances.refuse_none(entries(bench), [instances.NAMES[key][0] for key in SHOWN])
    return [instances.search_of(bench, d, e) for d in instances.datasets(bench) for e in entries(bench)]


def section(bench: Bench) -> Section:
    figures = [_figure(bench, data) for data in instances.datasets(bench)]
    return make_section(
        bench,
        "landscape",
        "Loss landscapes",
        "Training cross-entropy in the plane of the first two principal directions of the training path, around its "
        "end. The path runs from the initial parameters to the end at (0, 0); the cross marks the lowest point.",
        figures=figures,
        limits=(
            "Two directions out of thousands. The plane is the one that training moved in, so it shows what training "
            "saw and not how rough the loss is elsewhere; panels have their own directions and scales."
        ),
    )


def _figure(bench: Bench, data: str) -> Figure:
    """One run of each: the first seed and held-out environment, which all of them share."""
    panels, shown = [], set()
    for entry in entries(bench):
        records = bench.records(instances.search_of(bench, data, entry))
        first = min(records, key=lambda record: (record["seed"], record["fold"]))
        shown.add(f"{first['fold'].replace('_', ' ')}, seed {first['seed']}")
        found = first["landscape"]
        panels.append({"title": entry.title, **{k: found[k] for k in ("x", "y", "z", "path", "best", "explained")}})
    title = f"{bench.dataset(data).title}: loss landscape and training path"
    note = f"Held out: {'; '.join(sorted(shown))}."
    return Figure(f"landscape/{data}", title, "landscape", {"panels": panels}, note)


EXPERIMENT = Experiment("landscape", "loss landscape of LV and the visual network", searches, section)
