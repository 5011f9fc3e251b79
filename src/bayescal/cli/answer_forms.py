"""The forms in which answers are written, as they come: a table for people, CSV, JSON, JSON lines, Parquet, XLSX."""

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bayescal.errors import BayescalError
from bayescal.estimator.answers import FIELDS, Answer
from bayescal.util.csv_cells import plain_cell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

SUFFIXES = {
    ".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".parquet": "parquet", ".xlsx": "xlsx", ".txt": "table",
}  # fmt: skip
SHORTEST_PATH = 16  # letters that a column of paths has at least
SHEET_ROWS = 1_048_575  # of a spreadsheet, below its header
_NUMBERS = ("confidence", "entropy", "mutual_information", "disagreement", "familiarity")
_FLAGS = ("unsure", "unfamiliar")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # which XML, and so a spreadsheet, cannot hold


class Form(Protocol):
    """Where answers go."""

    def add(self, answers: Sequence[Answer], /) -> None: ...


@dataclass(frozen=True)
class RowContent:
    """What the rows are to hold."""

    classes: Sequence[Any]
    environments: Sequence[Any]
    probabilities: bool
    raw: bool  # in CSV: text that looks like a formula stays as it is


def form_of(output: Path) -> str:
    """The form that the ending of a file's name says."""
    if (suffix := output.suffix.lower()) not in SUFFIXES:
        raise BayescalError(f"-o {output}: its ending says no format; expected one of {', '.join(SUFFIXES)}")
    return SUFFIXES[suffix]


class Stream(Protocol):
    """What answers are written to, and where they can be read at once."""

    def write(self, text: str, /) -> Any: ...

    def flush(self) -> None: ...


@contextmanager
def text_form(
    form: str, stream: Stream, content: RowContent, images: Sequence[str], screen: "Console"
) -> Iterator[Form]:
    """Onto a stream, or for "table" onto a console; every part is there when the next is worked on."""
    if form == "table":
        with _table(screen, content, images) as rows:
            yield rows
    elif form == "json":
        stream.write("[\n")
        lines = _Json(stream, content, ",\n")
        yield lines
        stream.write("\n]\n")
    elif form == "jsonl":
        lines = _Json(stream, content, "\n")
        yield lines
        stream.write("\n")
    else:
        yield _Csv(stream, content)
    stream.flush()


@contextmanager
def file_form(form: str, path: Path, content: RowContent, images: Sequence[str]) -> Iterator[Form]:
    """Into a file of any form."""
    if form == "parquet":
        with _parquet(path, content) as rows:
            yield rows
    elif form == "xlsx":
        with _xlsx(path, content, len(images)) as rows:
            yield rows
    else:
        from bayescal.cli.screen import PIPE_WIDTH
        from bayescal.util.console import console

        with open(path, "w", encoding="utf-8", newline="", errors="surrogateescape") as stream:
            screen = console(file=stream, width=PIPE_WIDTH)
            with text_form(form, stream, content, images, screen) as rows:
                yield rows


class _Json:
    """One line per image, with everything that is known."""

    def __init__(self, stream: Stream, content: RowContent, between: str):
        self.stream, self.between, self.first = stream, between, True
        self.classes = [str(name) for name in content.classes]

    def add(self, answers: Sequence[Answer]) -> None:
        lines = [json.dumps(answer.entry(self.classes), ensure_ascii=False) for answer in answers]
        self.stream.write(("" if self.first else self.between) + self.between.join(lines))
        self.stream.flush()
        self.first = False


class _Csv:
    """A table with a header, for spreadsheets and data frames."""

    def __init__(self, stream: Stream, content: RowContent):
        self.stream, self.content = stream, content
        csv.writer(stream, lineterminator="\n").writerow([plain_cell(name, content.raw) for name in _columns(content)])

    def add(self, answers: Sequence[Answer]) -> None:
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        for answer in answers:
            writer.writerow([_cell(plain_cell(value, self.content.raw)) for value in _values(answer, self.content)])
        self.stream.write(text.getvalue())
        self.stream.flush()


@dataclass(frozen=True)
class _Rows:
    """A form that is a function of a part."""

    add: Callable[[Sequence[Answer]], None]


@contextmanager
def _table(screen: "Console", content: RowContent, images: Sequence[str]) -> Iterator[Form]:
    """For people. Widths are known before the first answer, so that later rows stand below earlier ones."""
    from rich.table import Table

    from bayescal.cli.screen import near, plain_table

    classes = [str(name) for name in content.classes]
    extra = classes if content.probabilities else []
    columns = ("image", "class", "confidence", "looks like", "uncertainty", *extra)
    numbers = ("confidence", "uncertainty", *extra)
    others = [
        max(len("unfamiliar (maybe )") + max(map(len, classes)), len("unreadable")),
        len("confidence"),
        max(len("looks like"), *(len(str(name)) for name in content.environments)),
        len("uncertainty"),
        *(max(5, len(name)) for name in extra),
    ]
    room = screen.width - sum(others) - 2 * len(columns) - 2  # a path is folded where it does not fit
    widths = [max(min(room, max(len(near(name)) for name in images)), SHORTEST_PATH), *others]
    header, seen = True, False

    def add(answers: Sequence[Answer]) -> None:
        nonlocal header, seen
        table: Table = plain_table(*columns, numbers=numbers)
        table.show_header = header
        for column, width in zip(table.columns, widths, strict=True):
            column.width = width
        for answer in answers:
            table.add_row(*_shown(answer, content.probabilities))
        with screen.capture() as captured:
            screen.print(table)
        lines = captured.get().splitlines(keepends=True)
        screen.file.writelines(lines[:-1] if header else [line for line in lines if line.strip()])  # no blank lines
        screen.file.flush()
        header, seen = False, seen or any(answer.ok for answer in answers)

    yield _Rows(add)
    screen.print()
    if seen:
        screen.print(
            f"uncertainty: entropy, 0 (sure) to {math.log(len(classes)):.2f} (no idea); "
            "looks like: the most similar training environment; "
            "unfamiliar: unlike all that was learned from, so that the answer means little"
        )


def _shown(answer: Answer, probabilities: bool) -> "list[Text | str]":
    from rich.text import Text

    from bayescal.cli.screen import near, percent
    from bayescal.util.harmless import one_line

    if not answer.ok:
        return [near(answer.image), Text("unreadable", style="red")]
    label = one_line(str(answer.label))
    said: Text | str = label
    if answer.unfamiliar:
        said = Text(f"unfamiliar (maybe {label})", style="magenta")
    elif answer.unsure:
        said = Text(f"unsure (maybe {label})", style="yellow")
    numbers = [f"{p:.3f}" for p in answer.probabilities if probabilities]
    return [
        near(answer.image),
        said,
        percent(answer.confidence),
        str(answer.environment),
        f"{answer.entropy:.2f}",
        *numbers,
    ]


@contextmanager
def _parquet(path: Path, content: RowContent) -> Iterator[Form]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise BayescalError("Parquet needs pyarrow: install bayescal[parquet], or write .csv or .jsonl") from error
    columns = _columns(content)
    kinds = {name: pyarrow.float64() for name in (*_NUMBERS, *columns[len(FIELDS) + 1 :])}
    kinds |= dict.fromkeys(_FLAGS, pyarrow.bool_())
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in columns])
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:

        def add(answers: Sequence[Answer]) -> None:
            rows = [_values(answer, content) for answer in answers]
            arrays = [
                pyarrow.array([_typed(row[i], name in kinds) for row in rows], schema.field(name).type)
                for i, name in enumerate(columns)
            ]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))

        yield _Rows(add)


@contextmanager
def _xlsx(path: Path, content: RowContent, images: int) -> Iterator[Form]:
    try:
        from openpyxl import Workbook
        from openpyxl.cell import WriteOnlyCell
    except ImportError as error:
        raise BayescalError("spreadsheets need openpyxl: install bayescal[xlsx], or write .csv") from error
    if images > SHEET_ROWS:
        raise BayescalError(f"a spreadsheet holds {SHEET_ROWS:,} rows, found {images:,} images: write .csv or .parquet")
    book = Workbook(write_only=True)
    sheet = book.create_sheet("answers")

    def cell(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = WriteOnlyCell(sheet, value="")
        text.value = _CONTROLS.sub("�", value.encode("utf-8", "replace").decode())
        text.data_type = "s"  # never a formula
        return text

    sheet.append([cell(name) for name in _columns(content)])

    def add(answers: Sequence[Answer]) -> None:
        for answer in answers:
            sheet.append([cell(value) for value in _values(answer, content)])

    yield _Rows(add)
    book.save(path)


def _columns(content: RowContent) -> list[str]:
    extra = [f"probability_{name}" for name in content.classes] if content.probabilities else []
    return [*FIELDS, "reason", *extra]


def _values(answer: Answer, content: RowContent) -> list[Any]:
    """The columns' values; None where there is none."""
    numbers = (answer.probabilities if answer.ok else [None] * len(content.classes)) if content.probabilities else ()
    return [*answer.fields().values(), answer.reason, *numbers]


def _typed(value: Any, number: bool) -> Any:
    """For a column of text, a label that is a number becomes text; what is not UTF-8 in a name is marked."""
    if value is None or number:
        return value
    return str(value).encode("utf-8", "replace").decode()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6f}"
    return "" if value is None else value
