"""Two recorded runs of the benchmarks side by side:  python -m speed.compare A B [--records FILE]

A and B are commits (any unique beginning of four letters or more; a + at the end means: with uncommitted changes) or
numbers of a record, as Python counts: 0 is the first, -1 the last. Of several records of a commit the last one counts.
"""

import argparse
from pathlib import Path
from typing import Any

from speed.measure import RECORDS, read_records, show

Record = dict[str, Any]


def find_record(records: list[Record], wanted: str) -> Record:
    """The record of a commit or with a number; `LookupError` says what there is."""
    if len(wanted) < 4 and wanted.lstrip("-").isdigit():
        at = int(wanted)
        matching = records[at:][:1] if -len(records) <= at else []
    else:
        matching = [record for record in records if (record["commit"] or "").startswith(wanted)]
    commits = {(record["commit"] or "").rstrip("+") for record in matching}
    if len(commits) > 1:
        raise LookupError(f"{wanted!r} can mean {', '.join(sorted(commits))}")
    if not matching:
        known = ", ".join(dict.fromkeys(_name(record) for record in records)) or "none"
        raise LookupError(f"there is no record of {wanted!r}; there are: {known}")
    return matching[-1]


def compare(a: Record, b: Record) -> list[list[str]]:
    """One line per measurement: what, A's value and ratio, B's, and how much faster B is."""
    left, right = ({result["what"]: result for result in record["results"]} for record in (a, b))
    rows = []
    for what in left | right:
        before, after = left.get(what), right.get(what)
        change = f"{before['ours'] / after['ours']:.2f}×" if before and after else ""
        rows.append([what, *_cells(before), *_cells(after), change])
    return rows


def _cells(result: dict[str, Any] | None) -> list[str]:
    if result is None:
        return ["–", ""]
    ratio = "" if result["ratio"] is None else f"{result['ratio']:.1f}×"
    return [show(result["ours"], result["unit"]), ratio]


def _name(record: Record) -> str:
    return (record["commit"] or "no commit")[:10]


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--records", type=Path, default=RECORDS)
    arguments = parser.parse_args()
    records = read_records(arguments.records)
    try:
        a, b = (find_record(records, wanted) for wanted in (arguments.a, arguments.b))
    except LookupError as error:
        parser.error(str(error))
    table = Table()
    for column in ("what", _name(a), "ratio", _name(b), "ratio", "faster"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in compare(a, b):
        table.add_row(*row)
    console = Console()
    console.print(table)
    for key in ("torch", "cpus", "threads", "clock", "device"):
        if a.get(key) != b.get(key):
            console.print(f"Not the same {key}: {a.get(key)} and {b.get(key)}.")


if __name__ == "__main__":
    main()
