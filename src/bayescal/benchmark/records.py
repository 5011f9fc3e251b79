"""A record: everything that is kept of one finished run, as a dataclass and as JSON.

Selection, tables and exports read records by attribute. The JSON is what the database and `bayescal records` hold;
`from_json` also reads what version 0.1 wrote, whose words were others (`_RENAMED`).

The JSON carries a checksum: one flipped bit would make an accuracy another one, and a mean over records would not show
it. Records of before there was one are read and stay marked (`checked`).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bayescal.errors import DataError
from bayescal.evaluation.scoring import Scores
from bayescal.methods.hyperparameters import Config, renamed
from bayescal.util.checksum import KEY, check_seal, sealed
from bayescal.util.typed import read

FORMAT = 4  # of the JSON; keys of runs do not depend on it (`runner.KEY_FORMAT`)
_UNCHECKED = 3  # the last format without a checksum, the same in all else
_RENAMED = {"entry": "variant", "probes": "gradient_norms", "draws": "samples"}  # format 2 → format 3

Curve = list[float | None]  # one number per epoch; None where it was not finite


@dataclass(frozen=True)
class SplitInfo:
    """The images of a run: how many are in each set, and a digest of which they are."""

    digest: str
    train: int
    eval_sets: dict[str, int]
    notes: tuple[str, ...] = ()  # what there was too little of

    def to_json(self) -> dict[str, Any]:
        return {"digest": self.digest, "train": self.train, **self.eval_sets, "notes": list(self.notes)}


@dataclass(frozen=True)
class RecordedBackbone:
    """The backbone that a run was trained on, without this machine's folders."""

    name: str
    fingerprint: str
    views: int = 0  # augmented views of each training image
    precision: str = "float32"  # of the text tower's layers in training


@dataclass(frozen=True)
class LossLandscape:
    """The loss on a grid around the end of a training (`training.loss_landscape`): z (K, K) at x and y (K,)."""

    x: list[float]
    y: list[float]
    z: list[list[float]]
    path: list[list[float]]  # (epochs + 1, 2)
    best: list[float]
    explained: list[float]
    target_loss: float  # the smallest z
    final_loss: float | None = None  # z at the end of training; records of version 0.1 have none


@dataclass(frozen=True)
class Record:
    """One finished run: what was asked for, how it went, and every score that a selection rule may report."""

    key: str  # hash of everything that decides the outcome
    dataset: str
    variant: str
    method: str
    purpose: str
    fold: str
    train_environments: tuple[str, ...]
    seed: int
    trial: int
    config: Config
    settings: Config  # the part of the config that changes the shape of the computation
    shots: int
    val_shots: int
    split: SplitInfo
    backbone: RecordedBackbone
    curves: dict[str, Curve]  # loss terms and accuracies, epoch by epoch
    gradient_norms: dict[str, Curve]  # of each loss term, at the epochs under "epoch"
    chosen: dict[str, int]  # checkpoint → epoch, counted from 1; 0: before the first
    scores: dict[str, Scores]  # by checkpoint
    samples: int  # posterior samples of a prediction
    parameters: int
    stopped: str | None
    seconds: float
    versions: dict[str, str]
    made: str  # date and time, ISO
    new: dict[str, Scores] = field(default_factory=dict)  # base-to-new: on classes that were not trained on
    landscape: LossLandscape | None = None
    checked: bool = field(default=True, compare=False)  # False: read from JSON of before it had a checksum

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`; parts that only some experiments add are left out where they are empty."""
        content = {"format": FORMAT, **asdict(self), "split": self.split.to_json()}
        kept = {name: v for name, v in content.items() if name != "checked" and (v or name not in ("new", "landscape"))}
        return sealed(kept) if self.checked else {**kept, "format": _UNCHECKED}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Record":
        """What `to_json` of this version or of an earlier one wrote; anything else is refused with a `DataError`."""
        try:
            found = _current({name: value for name, value in content.items() if name != KEY})
            checked = _check(content)
            found["config"], found["settings"] = (renamed(found["method"], found[n]) for n in ("config", "settings"))
            found["split"] = _sizes_together(found["split"])
            return read(cls, {**found, "checked": checked})
        except DataError:
            raise
        except KeyError as error:
            raise DataError(f"not a record of a run that this version reads ({error.args[0]}: is missing)") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise DataError(f"not a record of a run that this version reads ({error})") from error


def _check(content: Mapping[str, Any]) -> bool:
    """Whether it has a checksum; a wrong one is no matter of versions."""
    try:
        return check_seal(content, required=content["format"] >= FORMAT)
    except ValueError as error:
        raise DataError(str(error)) from error


def _sizes_together(split: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a `SplitInfo`, whose JSON has the sizes of its sets beside the rest."""
    own = {name: value for name, value in split.items() if name in ("digest", "train", "notes")}
    return {**own, "eval_sets": {name: value for name, value in split.items() if name not in own}}


def _current(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content in today's words, without its format."""
    found = dict(content)
    version = found.pop("format")
    if version > FORMAT:
        raise DataError(
            f"the record {found.get('key')} has format {version}, and this version of bayescal reads up to {FORMAT}: "
            "install the version that wrote it, or a later one"
        )
    if version >= _UNCHECKED:
        return found
    found = {_RENAMED.get(name, name): value for name, value in found.items()}
    found["shots"], found["val_shots"] = found["shots"]
    found["scores"] = {
        checkpoint: {"eval_set" if name == "set" else name: value for name, value in own.items()}
        for checkpoint, own in found["scores"].items()
    }
    return found
