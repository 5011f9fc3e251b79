"""Lists of images as people save them: CSV with any separator and encoding, spreadsheets, JSON. Entry by entry."""

import codecs
import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from bayescal.data.file_tree import IMAGE_SUFFIXES
from bayescal.data.remote import is_url, open_url
from bayescal.data.sources import ImageError, open_source
from bayescal.errors import DataError
from bayescal.util.csv_cells import as_it_was
from bayescal.util.suggest import closest

FIELDS = ("path", "class", "environment", "split")
COLUMNS = "path, class, environment (may be left out), split (may be left out)"
_DELIMITERS = (",", ";", "\t", "|")
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16, whose mark is the beginning of this one
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_BLOCK = 1 << 20
_OPEN_IN_1252 = b"\x81\x8d\x8f\x90\x9d"  # bytes that mean nothing there
_USUAL = {  # what other people call the columns, for a hint
    "path": ("filename", "file_name", "file", "image", "image_path", "filepath", "img"),
    "class": ("label", "class_name", "category", "target", "species"),
}

Entry = tuple[int, Sequence[Any]]  # line or number; path, class, environment and split as they are written


@dataclass(frozen=True)
class Table:
    """Entries, read as they are asked for; how they were read; the words to show for names."""

    entries: Iterator[Entry]
    counted: str  # what an entry's number counts: "line", "row" or "image"
    said: str  # how the columns were understood, for people
    class_words: Mapping[str, str]
    environment_words: Mapping[str, str]
    notes: tuple[str, ...] = ()


def parse_columns(pairs: "str | Mapping[str, str] | None") -> dict[str, str]:
    """ "class=label,path=filename" → {"class": "label", "path": "filename"}: our name, and the name in the file."""
    if pairs is None:
        return {}
    if isinstance(pairs, str):
        split = [pair.partition("=") for pair in pairs.split(",") if pair.strip()]
        given = {ours.strip().lower(): theirs.strip() for ours, _, theirs in split}
    else:
        given = {str(ours).lower(): str(theirs) for ours, theirs in pairs.items()}
    for ours, theirs in given.items():
        if ours not in FIELDS or not theirs:
            raise DataError(
                f"columns {ours}={theirs}: expected OURS=THEIRS, where OURS is one of {', '.join(FIELDS)}; such as "
                "class=label,path=filename."
            )
    return given


def read_csv(file: str, columns: Mapping[str, str]) -> Table:
    """A table with a header, separated by commas, semicolons, tabs or bars, in any usual encoding."""
    stream, note = _text(file)
    with_head = iter(stream)
    try:
        head = next(with_head, "")
    except UnicodeError as error:
        raise _undecodable(file, error) from error
    delimiter = _find_delimiter(head, columns)
    header = next(csv.reader([head], delimiter=delimiter), [])
    try:
        where, said = _find_columns(file, header, columns)
    except DataError:
        stream.close()
        raise

    def entries() -> Iterator[Entry]:
        reader = csv.reader(with_head, delimiter=delimiter, strict=True)
        try:
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                if len(cells) > len(header):
                    raise DataError(
                        f"{file}, line {reader.line_num + 1}: {len(cells)} cells under {len(header)} columns. "
                        "Put cells that contain the separator in double quotes."
                    )
                found = (None if i is None or i >= len(cells) else as_it_was(cells[i]) for i in where)
                yield reader.line_num + 1, list(found)
        except csv.Error as error:
            raise DataError(f"{file}, line {reader.line_num + 1}: not a valid table ({error}).") from error
        except UnicodeError as error:
            raise _undecodable(file, error) from error
        finally:
            stream.close()

    return Table(entries(), "line", said, {}, {}, () if note is None else (note,))


def read_xlsx(file: str, columns: Mapping[str, str]) -> Table:
    """The first sheet of a workbook, with a header in its first row."""
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise DataError(
            f"{file}: reading spreadsheets needs a package: pip install 'bayescal[xlsx]'. Or save it as CSV."
        ) from error
    with _damage_reported(file):
        with open_source(file) as stream:
            book = load_workbook(io.BytesIO(stream.read()), read_only=True, data_only=True)
        sheet = book.worksheets[0]
        rows = sheet.iter_rows(values_only=True)
        header = ["" if cell is None else str(cell) for cell in next(rows, ())]
    where, said = _find_columns(file, header, columns)

    def entries() -> Iterator[Entry]:
        with _damage_reported(file):
            for number, cells in enumerate(rows, start=2):
                if any(cell is not None and str(cell).strip() for cell in cells):
                    yield number, [None if i is None or i >= len(cells) else _plain(cells[i]) for i in where]

    return Table(entries(), "row", said, {}, {})


@contextmanager
def _damage_reported(file: str) -> Iterator[None]:
    """Whatever openpyxl raises on a damaged workbook (there is no end to the kinds), in words; rows are read lazily."""
    try:
        yield
    except ImageError as error:  # missing, empty, no file
        raise DataError(str(error)) from error
    except (DataError, MemoryError):
        raise
    except Exception as error:
        why = str(error).split("\n")[0][:200] or type(error).__name__
        raise DataError(
            f"{file}: is not a spreadsheet that can be read ({why}). Save it again as .xlsx or CSV."
        ) from error


def read_json(file: str, columns: Mapping[str, str]) -> Table:
    """A list of objects, or an object with "images" and the words to show for names."""
    stream, _ = _text(file)
    try:
        content = json.loads(stream.read())
    except json.JSONDecodeError as error:
        raise DataError(
            f"{file}: not valid JSON at line {error.lineno}, column {error.colno} ({error.msg})."
        ) from error
    except UnicodeError as error:
        raise _undecodable(file, error) from error
    except (RecursionError, ValueError) as error:  # nested too deeply; a number of thousands of digits
        why = "nested too deeply" if isinstance(error, RecursionError) else "a number in it is too long"
        raise DataError(f"{file}: not a manifest ({why}).") from error
    images = content.get("images") if isinstance(content, dict) else content
    if not isinstance(images, list) or not all(isinstance(entry, dict) for entry in images):
        raise DataError(
            f'{file}: expected a list [{{"path": …, "class": …}}, …] or an object {{"images": [ … ]}}, '
            f"each image with: {COLUMNS}."
        )
    words = content if isinstance(content, dict) else {}
    for key in ("class_words", "environment_words"):
        if not isinstance(words.get(key, {}), dict):
            raise DataError(f'{file}: "{key}" must be an object, such as {{"raw name": "words to show"}}.')
    keys = [columns.get(name, name) for name in FIELDS]
    for number, entry in enumerate(images, start=1):
        missing = [key for key in keys[:2] if key not in entry]
        if missing:
            raise DataError(
                f"{file}, image {number}: no {' and no '.join(missing)}. Expected: {COLUMNS}. "
                f"Found: {', '.join(map(str, entry)) or 'nothing'}.{_column_hint(list(map(str, entry)), columns)}"
            )
    entries = ((number, [entry.get(key) for key in keys]) for number, entry in enumerate(images, start=1))
    said = _said({name: key for name, key in zip(FIELDS, keys, strict=True) if any(key in entry for entry in images)})
    return Table(entries, "image", said, words.get("class_words", {}), words.get("environment_words", {}))


def _find_delimiter(head: str, columns: Mapping[str, str]) -> str:
    """Pick the separator under which the header shows most of the columns that we know."""
    known = {*FIELDS, *(name.lower() for name in columns.values())}

    def known_columns(delimiter: str) -> tuple[int, int]:
        names = [name.strip().strip('"').lower() for name in head.split(delimiter)]
        return sum(name in known for name in names), len(names)

    return max(_DELIMITERS, key=known_columns)


def _find_columns(file: str, header: Sequence[str], columns: Mapping[str, str]) -> tuple[list[int | None], str]:
    """Where path, class, environment and split are, None for one that is not there; and the same in words."""
    names = [name.strip().lower() for name in header]
    wanted = {ours: columns.get(ours, ours).lower() for ours in FIELDS}
    missing = [name for ours, name in wanted.items() if name not in names and (ours in FIELDS[:2] or ours in columns)]
    if missing:
        found = ", ".join(name or "(empty)" for name in names) or "an empty first line"
        raise DataError(
            f"{file}: no column {' and no column '.join(missing)}. The first line must name the columns: "
            f"{COLUMNS}. Found: {found}.{_column_hint(names, columns)}"
        )
    twice = [name for name, count in Counter(names).items() if name in wanted.values() and count > 1]
    if twice:
        raise DataError(f"{file}: the column {twice[0]} occurs more than once. Remove one of them.")
    at = [names.index(name) if name in names else None for name in wanted.values()]
    return at, _said({ours: header[i].strip() for ours, i in zip(FIELDS, at, strict=True) if i is not None})


def _column_hint(found: Sequence[str], columns: Mapping[str, str]) -> str:
    """The option for columns that other people call so."""
    lower = [name.lower() for name in found]
    pairs = []
    for ours, usual in _USUAL.items():
        if ours in lower or ours in columns:
            continue
        same = [name for name in usual if name in lower] or closest(ours, lower)
        pairs.append(f"{ours}={same[0] if same else 'THEIRS'}")
    if any(os.path.splitext(name)[1] in IMAGE_SUFFIXES for name in lower):
        return " The first line looks like an image: put a line path,class above it."
    return f" If they are called otherwise, say so: --columns {','.join(pairs)}" if pairs else ""


def _said(found: Mapping[str, str]) -> str:
    named = [ours if ours == theirs.lower() else f'{ours} from "{theirs}"' for ours, theirs in found.items()]
    without = "" if "environment" in found else "; no environments: all images count as one"
    return f"columns {', '.join(named)}{without}"


def _plain(cell: Any) -> Any:
    """7.0 is how a spreadsheet keeps a 7."""
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def _text(file: str) -> tuple[io.TextIOBase, str | None]:
    """A file as text, and a note if its encoding is not the usual one. Large files are not read at once."""
    try:
        encoding, note = _find_encoding(file)
        return io.TextIOWrapper(_open(file), encoding=encoding, newline=""), note
    except ImageError as error:  # missing, empty, no file
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"{file}: cannot be opened ({error.strerror or error}).") from error


def _undecodable(file: str, error: UnicodeError) -> DataError:
    return DataError(f"{file}: is not text in any usual encoding ({error}). Save it again as UTF-8.")


def _open(file: str) -> IO[bytes]:
    return open_url(file) if is_url(file) else open_source(file)


def _find_encoding(file: str) -> tuple[str, str | None]:
    """UTF-8 where the bytes allow, UTF-16 or UTF-32 by their marks or zeros, else that of old Windows programs."""
    with _open(file) as stream:
        block = stream.read(_BLOCK)
        marked = next((name for mark, name in _MARKS.items() if block.startswith(mark)), None)
        if marked is not None:
            return marked, None
        if b"\0" in block[:2000]:  # an ASCII letter is a byte and a zero byte in UTF-16
            return ("utf-16-be" if block[0] == 0 else "utf-16-le"), None
        decoder = codecs.getincrementaldecoder("utf-8")()
        line = 1
        try:
            while block:
                decoder.decode(block)
                line += block.count(b"\n")
                block = stream.read(_BLOCK)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            line += block[: error.start].count(b"\n")
            name = "latin-1" if any(byte in block for byte in _OPEN_IN_1252) else "cp1252"
            return (
                name,
                f"{file}: is not UTF-8 (line {line}), so it was read as {name}. If names look odd, save it as UTF-8.",
            )
    return "utf-8", None
