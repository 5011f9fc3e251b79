"""What a model says about images, one answer per image, and the forms it is shown in: table, JSON, CSV."""

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bayescal.util.jsonable import finite

if TYPE_CHECKING:
    from rich.table import Table

    from bayescal.estimator.base_predictor import BasePredictor
    from bayescal.features import Encoded

FIELDS = (
    "image", "status", "class", "unsure", "confidence", "environment", "entropy", "mutual_information", "disagreement",
    "familiarity", "unfamiliar",
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """The answer for one image, or the reason why there is none."""

    image: str
    reason: str = ""  # why the image could not be read
    label: Any = None
    unsure: bool = False
    confidence: float = math.nan
    environment: Any = None
    entropy: float = math.nan
    mutual_information: float = math.nan
    disagreement: float = math.nan
    familiarity: float | None = None  # None: the model knows nothing of it
    unfamiliar: bool = False
    probabilities: tuple[float, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.reason

    def fields(self) -> dict[str, Any]:
        """The columns of FIELDS; None where an unreadable image has no value."""
        if not self.ok:
            return dict.fromkeys(FIELDS) | {"image": self.image, "status": "unreadable"}
        values = (
            self.image,
            "ok",
            self.label,
            self.unsure,
            self.confidence,
            self.environment,
            self.entropy,
            self.mutual_information,
            self.disagreement,
            self.familiarity,
            self.unfamiliar,
        )
        return dict(zip(FIELDS, values, strict=True))


def answer_all(predictor: "BasePredictor", images: Sequence[str], encoded: "Encoded") -> list[Answer]:
    """Answers in the order of the images."""
    reasons = {failure.index: failure.reason for failure in encoded.failures}
    read = [i for i in range(len(images)) if i not in reasons]
    answers = [Answer(image, reason=reasons.get(i, "")) for i, image in enumerate(images)]
    if read:
        details = predictor.details(encoded.features[read])
        for row, i in enumerate(read):
            answers[i] = Answer(
                image=images[i],
                label=details.labels[row].item(),
                unsure=bool(details.unsure[row]),
                confidence=float(details.confidence[row]),
                environment=details.environment[row].item(),
                entropy=float(details.entropy[row]),
                mutual_information=float(details.mutual_information[row]),
                disagreement=float(details.disagreement[row]),
                familiarity=finite(float(details.familiarity[row])),
                unfamiliar=bool(details.unfamiliar[row]),
                probabilities=tuple(details.probabilities[row].tolist()),
            )
    return answers


def as_json(answers: Sequence[Answer], classes: Sequence[Any]) -> str:
    """One JSON array, one line per image."""
    names = [str(name) for name in classes]
    lines = []
    for answer in answers:
        entry = answer.fields()
        if answer.ok:
            entry["probabilities"] = dict(zip(names, answer.probabilities, strict=True))
        else:
            entry["reason"] = answer.reason
        lines.append(json.dumps(entry, ensure_ascii=False))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def as_csv(answers: Sequence[Answer], classes: Sequence[Any], probabilities: bool) -> str:
    """A table with a header, for spreadsheets and data frames."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    extra = [f"probability_{name}" for name in classes] if probabilities else []
    writer.writerow([*FIELDS, "reason", *extra])
    for answer in answers:
        cells = [_cell(value) for value in answer.fields().values()]
        numbers = [f"{p:.6f}" for p in answer.probabilities] if answer.ok else [""] * len(classes)
        writer.writerow([*cells, answer.reason, *(numbers if probabilities else [])])
    return stream.getvalue()


def as_table(answers: Sequence[Answer], classes: Sequence[Any], probabilities: bool) -> "Table":
    """For people."""
    from rich.text import Text

    from bayescal.cli.screen import near, percent, plain_table

    extra = [str(name) for name in classes] if probabilities else []
    numbers = ("confidence", "uncertainty", *extra)
    table = plain_table("image", "class", "confidence", "looks like", "uncertainty", *extra, numbers=numbers)
    for answer in answers:
        if not answer.ok:
            table.add_row(near(answer.image), Text("unreadable", style="red"))
            continue
        said: Text | str = str(answer.label)
        if answer.unfamiliar:
            said = Text(f"unfamiliar (maybe {answer.label})", style="magenta")
        elif answer.unsure:
            said = Text(f"unsure (maybe {answer.label})", style="yellow")
        table.add_row(
            near(answer.image),
            said,
            percent(answer.confidence),
            str(answer.environment),
            f"{answer.entropy:.2f}",
            *(f"{p:.3f}" for p in answer.probabilities if probabilities),
        )
    return table


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6f}"
    return "" if value is None else value
