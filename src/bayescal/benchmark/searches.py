"""What a row of a table needs: the trials of a variant on a data set, and what has to be known about their runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bayescal.benchmark.end_to_end import EndToEnd
from bayescal.benchmark.records import Record
from bayescal.benchmark.runner import LEAVE_ONE_OUT, AddToRecord
from bayescal.benchmark.variants import MethodVariant


@dataclass(frozen=True, eq=False)
class Search:
    """Trials × seeds × folds of one variant on one data set: what a row of a table needs."""

    dataset: str
    variant: MethodVariant
    purpose: str = ""
    classes: tuple[str, ...] = ()  # only these; empty: all
    trajectory: bool = False
    add_to_record: AddToRecord | None = None
    end_to_end: EndToEnd | None = None  # trains a whole image model on all images, not on features of few

    @property
    def key(self) -> tuple[str, str, str]:
        return self.dataset, self.variant.key, self.purpose

    def inner(self) -> "Search":
        """The same trials, each trained without every training environment in turn."""
        return replace(self, purpose=LEAVE_ONE_OUT, add_to_record=None, trajectory=False)


def remarks(search: Search, records: Sequence[Record]) -> list[str]:
    """What a reader of these records has to know: runs that stopped, and too few images."""
    found = []
    if stopped := [record for record in records if record.stopped]:
        first = stopped[0]
        found.append(
            f"{search.variant.title} on {search.dataset}: {len(stopped)} of {len(records)} runs stopped, the first "
            f"({first.fold}, seed {first.seed}): {first.stopped}"
        )
    short = sorted({(record.fold, record.seed, text) for record in records for text in record.split.notes})
    if short:
        fold, seed, text = short[0]
        more = f" (and {len(short) - 1} more like this)" if len(short) > 1 else ""
        found.append(f"{search.dataset}, {fold}, seed {seed}: {text}{more}")
    return found
