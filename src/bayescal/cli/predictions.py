"""What a model says about images, one answer per image, and the forms it is shown in: table, JSON, CSV."""

import csv
import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bayescal.estimator.answers import FIELDS, Answer, answers_of

if TYPE_CHECKING:
    from rich.table import Table

    from bayescal.estimator.base_predictor import BasePredictor
    from bayescal.features import Encoded


def answer_all(predictor: "BasePredictor", images: Sequence[str], encoded: "Encoded") -> list[Answer]:
    """Answers in the order of the images."""
    reasons = {failure.index: failure.reason for failure in encoded.failures}
    read = [i for i in range(len(images)) if i not in reasons]
    answers = [Answer(image, reason=reasons.get(i, "")) for i, image in enumerate(images)]
    if read:
        details = predictor.details(encoded.features[read])
        for i, answer in zip(read, answers_of([images[i] for i in read], details), strict=True):
            answers[i] = answer
    return answers


def as_json(answers: Sequence[Answer], classes: Sequence[Any]) -> str:
    """One JSON array, one line per image."""
    names = [str(name) for name in classes]
    lines = [json.dumps(answer.entry(names), ensure_ascii=False) for answer in answers]
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
