"""Images wherever they lie: files, bytes, archives, URLs; and files that nobody can read, left out by name."""

import io
import json
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bayescal.cli.image_list import list_images
from bayescal.data.file_tree import expand_braces, find_images, is_tree, list_tree
from bayescal.data.images import content_hash, read_image
from bayescal.data.manifest import read_manifest
from bayescal.data.sources import ImageError
from bayescal.errors import BayescalWarning, DataError
from layouts import tiny_png

TREE = ("photo/dog/1.png", "photo/cat/2.png", "sketch/dog/3.png", "sketch/cat/4.png")
LABELS = [("photo", "cat"), ("photo", "dog"), ("sketch", "cat"), ("sketch", "dog")]


def contents(prefix: str = "") -> dict[str, bytes]:
    return {f"{prefix}{name}": tiny_png(number) for number, name in enumerate(TREE)}


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def labels(manifest) -> list[tuple[str, str]]:
    return [(row.environment, row.class_name) for row in manifest.rows()]


# ---------------------------------------------------------------- bytes


def test_bytes_and_file_objects_are_the_file_itself(tmp_path):
    path = tmp_path / "1.png"
    path.write_bytes(tiny_png(7))
    stream = io.BytesIO(path.read_bytes())
    stream.seek(5)  # the position belongs to the caller
    with open(path, "rb") as file:
        for source in (path.read_bytes(), bytearray(path.read_bytes()), memoryview(path.read_bytes()), stream, file):
            assert content_hash(source) == content_hash(path)
            assert np.array_equal(np.asarray(read_image(source)), np.asarray(read_image(path)))
    assert stream.tell() == 5
    for empty in (b"", io.BytesIO()):
        with pytest.raises(ImageError, match="the bytes: the file is empty"):
            read_image(empty)
    with pytest.raises(ImageError, match="the bytes: the image data is damaged"):
        read_image(tiny_png(7)[:-30])
    with pytest.raises(ImageError, match="mode 'rb'"):
        read_image(io.StringIO("text"))


# ---------------------------------------------------------------- archives


@pytest.mark.parametrize("form", ["zip", "tar"])
def test_a_folder_in_an_archive_is_a_folder(tmp_path, form):
    path = tmp_path / f"photos.{form}"
    write_zip(path, contents("set/")) if form == "zip" else write_tar(path, contents("set/"))
    assert labels(read_manifest(f"{path}/set")) == LABELS
    manifest = read_manifest(f"{path}/set/photo/")
    assert (manifest.classes, len(manifest)) == (("cat", "dog"), 2)
    assert list_images([f"{path}/set/photo/dog"]) == [f"{path}/set/photo/dog/1.png"]
    assert list_images([f"{path}/set/photo/dog/1.png"]) == [f"{path}/set/photo/dog/1.png"]
    assert list_images([f"{path}/other"]) == [f"{path}/other"]  # which is then said not to be there
    assert not is_tree(f"{path}/set/photo/dog/1.png")


@pytest.mark.parametrize("form", ["zip", "tar", "tar.gz", "tar.xz", "tgz"])
def test_archives_are_read_as_folders(tmp_path, form):
    path = tmp_path / f"photos.{form}"
    if form == "zip":
        write_zip(path, {**contents(), "__MACOSX/photo/dog/1.png": b"x", "photo/.DS_Store": b"x"})
    else:
        write_tar(path, contents(), {"tar": "w", "tar.xz": "w:xz"}.get(form, "w:gz"))
    manifest = read_manifest(path)
    assert labels(manifest) == LABELS
    assert manifest.paths[1] == f"{path}/photo/dog/1.png"
    for row, name in zip(manifest.rows(), sorted(TREE), strict=True):
        assert content_hash(row.path) == content_hash(contents()[name])
    assert [str(found) for found in find_images(path)] == list(manifest.paths)
    with pytest.raises(ImageError, match=r"photo/dog/9\.png: there is no such file in photos"):
        read_image(f"{path}/photo/dog/9.png")


def test_a_folder_with_the_archive_s_name_is_no_level(tmp_path):
    assert labels(read_manifest(write_zip(tmp_path / "photos.zip", contents("photos/")))) == LABELS


def test_an_archive_that_has_changed_is_read_anew(tmp_path):
    path = write_zip(tmp_path / "photos.zip", {"dog/1.png": tiny_png(1)})
    before = content_hash(f"{path}/dog/1.png")
    path.unlink()
    write_zip(path, {"dog/1.png": tiny_png(2), "dog/2.png": tiny_png(3)})
    assert content_hash(f"{path}/dog/1.png") != before


@pytest.mark.parametrize("name", ["photos.zip", "photos.tar", "photos.tar.gz"])
def test_damaged_archives_are_refused_by_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04 this is no archive" if "zip" in name else b"\x1f\x8b\x08 no archive")
    with pytest.raises(DataError, match=rf"{name}: (is damaged|cannot be opened)"):
        read_manifest(tmp_path / name)


def write_links(path: Path, links: dict[str, tuple[bytes, str]]) -> Path:
    """Two whole images, and links of either kind to what they name."""
    write_tar(path, {"dog/1.png": tiny_png(1), "cat/2.png": tiny_png(2)})
    with tarfile.open(path, "a") as archive:
        for name, (kind, target) in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return path


def test_links_in_archives_are_what_they_lead_to(tmp_path):
    links = {
        "dog/hard.png": (tarfile.LNKTYPE, "./dog/1.png"),
        "dog/soft.png": (tarfile.SYMTYPE, "1.png"),
        "cat/far.png": (tarfile.SYMTYPE, "../cat/./again.png"),  # a link to a link
        "cat/again.png": (tarfile.SYMTYPE, "2.png"),
    }
    manifest = read_manifest(write_links(tmp_path / "photos.tar", links))
    names = [path.partition(".tar/")[2] for path in manifest.paths]
    assert names == ["cat/2.png", "cat/again.png", "cat/far.png", "dog/1.png", "dog/hard.png", "dog/soft.png"]
    assert content_hash(manifest.paths[2]) == content_hash(manifest.paths[0])


def test_links_out_of_archives_are_left_out_with_their_names(tmp_path):
    links = {
        "dog/gone.png": (tarfile.SYMTYPE, "/home/me/1.png"),
        "dog/up.png": (tarfile.SYMTYPE, "../../1.png"),
        "dog/circle.png": (tarfile.SYMTYPE, "circle.png"),
        "dog/pipe.png": (tarfile.FIFOTYPE, ""),
        "dog/._1.png": (tarfile.SYMTYPE, "nowhere"),
    }
    with pytest.warns(BayescalWarning, match=r"4 files left out: .*dog/gone\.png \(a link to no file in the archive"):
        assert len(read_manifest(write_links(tmp_path / "photos.tar", links))) == 2
    only = tmp_path / "only.tar"
    with tarfile.open(only, "w") as archive:
        info = tarfile.TarInfo("dog/1.png")
        info.type, info.linkname = tarfile.SYMTYPE, "/home/me/1.png"
        archive.addfile(info)
    with pytest.raises(DataError, match=r"Left out: dog/1\.png \(a link to no file in the archive"):
        read_manifest(only)


def test_samples_without_a_readable_image_are_counted(tmp_path):
    files = {
        "0.png": tiny_png(0),
        "0.cls": b"dog",
        "1.png": tiny_png(1),
        "1.cls": b"cat",
        "2.jxl": b"x",
        "2.cls": b"cat",
    }
    path = write_tar(tmp_path / "shard.tar", files)
    with pytest.warns(BayescalWarning, match=r"skipped 1 of 3 samples.*: 2 \(cls, jxl\)"):
        assert len(read_manifest(path)) == 2


def test_a_list_may_name_members_of_archives(tmp_path):
    write_zip(tmp_path / "photos.zip", contents())
    table = tmp_path / "list.csv"
    table.write_text("path,class\nphotos.zip/photo/dog/1.png,dog\nphotos.zip/photo/cat/2.png,cat\n")
    assert read_manifest(table).classes == ("cat", "dog")
    table.write_text("path,class\nphotos.zip/photo/dog/9.png,dog\n")
    with pytest.raises(DataError, match="1 of 1 files do not exist"):
        read_manifest(table)


# ---------------------------------------------------------------- shards


def test_a_folder_of_shards_and_a_pattern_say_how_shards_are_named(tmp_path):
    write_tar(tmp_path / "shard-000.tar", {"0.png": tiny_png(0), "0.cls": b"dog"})
    for named in (tmp_path, tmp_path / "*.tar"):
        with pytest.raises(DataError, match=r"as a range: shard-\{000\.\.009\}\.tar"):
            read_manifest(named)


def test_webdataset_shards_are_read_by_what_stands_beside_the_images(tmp_path):
    for shard in range(3):
        files: dict[str, bytes] = {}
        for number, (environment, name) in enumerate(LABELS):
            key = f"{shard}{number:03}"
            about = {"label": name, "environment": environment, "place": "x"}
            files |= {f"{key}.png": tiny_png(10 * shard + number), f"{key}.json": json.dumps(about).encode()}
        write_tar(tmp_path / f"shard-{shard:03}.tar", files)
    manifest = read_manifest(f"{tmp_path}/shard-{{000..002}}.tar")
    assert labels(manifest) == LABELS * 3
    assert manifest.understood.startswith("WebDataset shards, 12 samples")
    assert len({content_hash(path) for path in manifest.paths}) == 12
    assert read_manifest(tmp_path / "shard-000.tar", columns="environment=place").environments == ("x",)

    cls = {f"a.b/{n}.{ending}": content for n in "01" for ending, content in (("png", tiny_png()), ("cls", n.encode()))}
    assert read_manifest(write_tar(tmp_path / "cls.tar", cls)).classes == ("0", "1")
    write_tar(tmp_path / "odd.tar", {"0.png": tiny_png(), "0.json": b"[1]", "1.png": tiny_png(), "1.cls": b"dog"})
    with pytest.raises(DataError, match=r"odd\.tar/0\.json: expected an object"):
        read_manifest(tmp_path / "odd.tar")
    write_tar(tmp_path / "bare.tar", {"0.png": tiny_png(), "1.png": tiny_png(), "1.cls": b"dog"})
    with pytest.raises(DataError, match="sample 1: the class is empty"):
        read_manifest(tmp_path / "bare.tar")


def test_braces_are_expanded(tmp_path):
    assert expand_braces("s-{08..11}.tar") == ["s-08.tar", "s-09.tar", "s-10.tar", "s-11.tar"]
    assert expand_braces("{a,b}/{0..1}.tar") == ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]
    (tmp_path / "{1,2}.png").touch()
    assert expand_braces(str(tmp_path / "{1,2}.png")) == [str(tmp_path / "{1,2}.png")]
    with pytest.raises(DataError, match="count upwards"):
        expand_braces("{5..1}.tar")


# ---------------------------------------------------------------- URLs


@pytest.fixture
def store():
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name, content in contents("bucket/photos/").items():
        memory.pipe(f"/{name}", content)
    yield memory
    memory.rm("/bucket", recursive=True)


def test_object_storage_is_read_as_a_folder(store, tmp_path):
    manifest = read_manifest("memory://bucket/photos")
    assert labels(manifest) == LABELS
    assert manifest.paths[0] == "memory://bucket/photos/photo/cat/2.png"
    assert [content_hash(path) for path in manifest.paths] == [content_hash(contents()[name]) for name in sorted(TREE)]
    with pytest.raises(ImageError, match=r"memory://bucket/none\.png: there is no such file"):
        read_image("memory://bucket/none.png")
    store.pipe(
        "/bucket/list.csv", b"path,class\nphotos/photo/dog/1.png,dog\nmemory://bucket/photos/photo/cat/2.png,cat\n"
    )
    assert read_manifest("memory://bucket/list.csv").paths[0] == "memory://bucket/photos/photo/dog/1.png"
    store.pipe("/bucket/photos.zip", write_zip(tmp_path / "photos.zip", contents()).read_bytes())
    zipped = read_manifest("memory://bucket/photos.zip")
    assert [content_hash(path) for path in zipped.paths] == [content_hash(path) for path in manifest.paths]


@pytest.mark.parametrize(("url", "said"), [("none://a/b.png", "none://"), ("abfs://a/b.png", "pip install 'adlfs'")])
def test_stores_that_cannot_be_reached_are_named(url, said):
    with pytest.raises(ImageError, match=said):
        read_image(url)


# ---------------------------------------------------------------- files that cannot be used


def test_odd_files_are_left_out_with_a_count_and_their_names(tmp_path):
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(tiny_png())
    dog = tmp_path / "photo" / "dog"
    os.symlink("loop.png", dog / "loop.png")
    os.symlink("nothing.png", dog / "gone.png")
    os.mkfifo(dog / "pipe.png")
    with open(os.path.join(os.fsencode(dog), b"caf\xe9.png"), "wb") as file:
        file.write(tiny_png())
    with pytest.warns(BayescalWarning, match="4 files left out") as caught:
        assert labels(read_manifest(tmp_path)) == LABELS
    said = next(str(warning.message) for warning in caught if "4 files" in str(warning.message))
    assert "photo/dog/loop.png (a link to itself)" in said
    assert "photo/dog/gone.png (a link that leads nowhere)" in said
    assert "photo/dog/pipe.png (neither a file nor a folder)" in said
    assert "photo/dog/caf\\udce9.png (its name is not UTF-8)" in said
    assert len(list_tree(tmp_path).files) == 4


def test_kinds_that_are_not_read_are_named(tmp_path):
    for magic, said in ((b"8BPS", "a Photoshop file"), (b"%PDF-1.7", "a PDF file"), (b"\xff\x0a", "a JPEG XL image")):
        (tmp_path / "odd").write_bytes(magic + bytes(80))
        with pytest.raises(ImageError, match=f"is {said}, which is not read here. Convert it"):
            read_image(tmp_path / "odd")


def test_photos_of_telephones_are_read_and_stand_upright(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    picture = np.zeros((64, 96, 3), np.uint8)
    picture[:32] = 255  # bright above
    exif = Image.Exif()
    exif[0x0112] = 6
    pillow_heif.from_pillow(Image.fromarray(picture)).save(tmp_path / "plain.heic", quality=90)
    read_image(tmp_path / "plain.heic")  # registers the format, which the next line needs
    Image.fromarray(picture).save(tmp_path / "turned.HEIC", format="HEIF", exif=exif.tobytes(), quality=90)
    Image.fromarray(picture).save(tmp_path / "plain.avif", quality=95)
    for name in ("plain.heic", "plain.avif"):
        assert np.abs(np.asarray(read_image(tmp_path / name)).astype(int) - picture).mean() < 5
    turned = np.asarray(read_image(tmp_path / "turned.HEIC"))
    assert turned.shape == (96, 64, 3)
    assert turned[:, 40:].mean() > 240 > 15 > turned[:, :24].mean()


def test_without_its_package_heic_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "photo.jpg").write_bytes(b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(80))
    monkeypatch.setitem(__import__("sys").modules, "pillow_heif", None)
    Image.init()
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    with pytest.raises(ImageError, match=r"HEIC photo.*pip install 'bayescal\[heic\]'"):
        read_image(tmp_path / "photo.jpg")
