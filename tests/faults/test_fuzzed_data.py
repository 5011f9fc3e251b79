"""Archives, shards and spreadsheets of any bytes: a data set or a reason, never another exception."""

import contextlib
import io
import json
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from campaign import spoil

from bayescal.data.manifest import read_manifest
from bayescal.data.sources import open_source
from bayescal.errors import BayescalError, DataError
from layouts import tiny_png

NAMES = tuple(f"{folder}/{number}.png" for folder in ("hünd", "cat") for number in range(4))


def make_zip(compression: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for number, name in enumerate(NAMES):
            archive.writestr(name, tiny_png(number))
    return stream.getvalue()


def make_tar(mode: str, files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("cat/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "0.png"
        archive.addfile(link)
    return stream.getvalue()


def make_shard() -> bytes:
    files = {f"{n}.png": tiny_png(n) for n in range(4)}
    labels = {f"{n}.json": json.dumps({"label": "ab"[n % 2]}).encode() for n in range(4)}
    return make_tar("w", {name: content for name, content in sorted({**files, **labels}.items())})


def make_workbook() -> bytes:
    openpyxl = pytest.importorskip("openpyxl")
    book, stream = openpyxl.Workbook(), io.BytesIO()
    book.active.append(["path", "class"])
    for number in range(300):  # several blocks: what is damaged further down is met when rows are read
        book.active.append([f"{number}.png", f"{'ab'[number % 2]}{number * 7919 % 1009}"])
    book.save(stream)
    return stream.getvalue()


MAKERS: dict[str, Callable[[], bytes]] = {
    "stored.zip": lambda: make_zip(zipfile.ZIP_STORED),
    "deflated.zip": lambda: make_zip(zipfile.ZIP_DEFLATED),
    "plain.tar": lambda: make_tar("w", {name: tiny_png(n) for n, name in enumerate(NAMES)}),
    "packed.tar.gz": lambda: make_tar("w:gz", {name: tiny_png(n) for n, name in enumerate(NAMES)}),
    "packed.tar.xz": lambda: make_tar("w:xz", {name: tiny_png(n) for n, name in enumerate(NAMES)}),
    "shard.tar": make_shard,
    "list.xlsx": make_workbook,
}


def read_all(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for image in read_manifest(path).paths:
            try:
                open_source(image).read()
            except BayescalError as error:
                assert path.name in str(error)  # noqa: PT017


@pytest.mark.parametrize("name", MAKERS)
def test_spoiled_archives_and_spreadsheets(tmp_path, r, rounds, name):
    whole = MAKERS[name]()
    for number in range(40 * rounds):
        path = tmp_path / f"{number}-{name}"
        path.write_bytes(spoil(whole, r))
        with contextlib.suppress(BayescalError):
            read_all(path)
        path.unlink()


def test_a_spreadsheet_that_is_damaged_further_down_is_a_sentence(tmp_path):
    content = make_workbook()
    with zipfile.ZipFile(io.BytesIO(content)) as book:
        sheet = next(info for info in book.infolist() if "sheet1" in info.filename)
        parts = {info.filename: book.read(info) for info in book.infolist()}
    spoiled = io.BytesIO()
    with zipfile.ZipFile(spoiled, "w") as book:
        for name, part in parts.items():
            book.writestr(
                name, part[: len(part) // 2] + b"<&>" + part[len(part) // 2 :] if name == sheet.filename else part
            )
    (tmp_path / "list.xlsx").write_bytes(spoiled.getvalue())
    with pytest.raises(DataError, match=r"list\.xlsx: is not a spreadsheet that can be read"):
        read_manifest(tmp_path / "list.xlsx")
    at = sheet.header_offset + 400  # in the packed rows
    (tmp_path / "packed.xlsx").write_bytes(content[:at] + bytes(60) + content[at + 60 :])
    with pytest.raises(DataError, match=r"packed\.xlsx: is not a spreadsheet that can be read"):
        read_manifest(tmp_path / "packed.xlsx")


def test_an_entry_without_a_name_is_no_image(tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as file:
        file.writestr("dog/1.png", b"one")
        file.writestr("cat/2.png", b"two")
        file.writestr("x", b"none")
    whole = (tmp_path / "photos.zip").read_bytes()
    at = whole.rindex(b"PK\x01\x02")  # the last entry of the directory, "x": its name's length becomes 0
    (tmp_path / "photos.zip").write_bytes(whole[: at + 28] + b"\0\0" + whole[at + 30 : at + 46] + whole[at + 47 :])
    with contextlib.suppress(BayescalError):
        read_manifest(tmp_path / "photos.zip")


def test_a_zip_with_a_name_that_is_no_text_is_a_sentence(tmp_path):
    whole = make_zip(zipfile.ZIP_STORED)
    (tmp_path / "photos.zip").write_bytes(whole.replace("ü".encode(), b"\xff\xfe"))
    with pytest.raises(DataError, match=r"photos\.zip: is damaged or protected"):
        read_manifest(tmp_path / "photos.zip")
