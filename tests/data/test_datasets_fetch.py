"""Downloads appear whole or not at all, and archives write nothing outside their folder."""

import functools
import http.server
import io
import tarfile
import threading
import zipfile

import pytest

from bayescal.data.datasets import domainnet
from bayescal.data.datasets.fetch import fetch, is_archive, unpack, unpacked_name
from bayescal.errors import DataError
from layouts import PNG


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        if "short" not in self.path:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"cut off")


@pytest.fixture
def site(tmp_path):
    """A web server of this machine; its files lie in tmp_path/site."""
    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_file_is_downloaded_once(site, tmp_path):
    folder, address = site
    (folder / "data.txt").write_text("first")
    target = tmp_path / "new" / "data.txt"
    assert fetch(f"{address}/data.txt", target).read_text() == "first"
    (folder / "data.txt").write_text("second")
    assert fetch(f"{address}/data.txt", target).read_text() == "first"
    assert [path.name for path in target.parent.iterdir()] == ["data.txt"]


def test_a_download_that_fails_leaves_nothing_and_says_what_to_do(site, tmp_path):
    _, address = site
    for name, reason in (("missing.txt", "not found"), ("short.txt", "7 of 100 bytes|IncompleteRead")):
        with pytest.raises(DataError, match=f"could not be downloaded .*({reason}).* by other means"):
            fetch(f"{address}/{name}", tmp_path / "new" / name)
    with pytest.raises(DataError, match="could not be downloaded"):
        fetch("http://127.0.0.1:9/nobody-listens", tmp_path / "new" / "x")
    assert list((tmp_path / "new").iterdir()) == []


def write_archive(path, files):
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(path, "w:gz") as archive:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("name", ["PACS.zip", "PACS.tar.gz"])
def test_an_archive_becomes_a_folder(tmp_path, name):
    archive = write_archive(tmp_path / name, {"kfold/photo/dog/1.png": PNG, "kfold/a b/é.png": PNG})
    assert is_archive(archive)
    assert unpacked_name(archive) == "PACS"
    unpack(archive, tmp_path / "PACS")
    assert (tmp_path / "PACS" / "kfold" / "photo" / "dog" / "1.png").read_bytes() == PNG
    assert (tmp_path / "PACS" / "kfold" / "a b" / "é.png").exists()
    unpack(archive, tmp_path / "inner", inner="kfold")
    assert (tmp_path / "inner" / "photo" / "dog" / "1.png").exists()
    with pytest.raises(DataError, match="has no folder nothing in it"):
        unpack(archive, tmp_path / "none", inner="nothing")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "PACS", "inner"])


@pytest.mark.parametrize("kind", [".zip", ".tar.gz"])
@pytest.mark.parametrize("bad", ["../escaped.png", "/nowhere/escaped.png", "a/../../escaped.png", "..\\escaped.png"])
def test_paths_that_lead_outside_are_refused(tmp_path, kind, bad):
    archive = write_archive(tmp_path / f"bad{kind}", {"fine.png": PNG, bad: PNG})
    with pytest.raises(DataError, match="leads outside"):
        unpack(archive, tmp_path / "inside" / "bad")
    assert not list(tmp_path.rglob("*escaped*"))
    assert not list((tmp_path / "inside").iterdir())


def test_links_in_an_archive_are_left_out(tmp_path):
    with tarfile.open(tmp_path / "links.tar", "w") as archive:
        link = tarfile.TarInfo("secret")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        info = tarfile.TarInfo("1.png")
        info.size = len(PNG)
        archive.addfile(info, io.BytesIO(PNG))
    unpack(tmp_path / "links.tar", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["1.png"]


def test_damaged_and_foreign_files_are_refused(tmp_path):
    archive = write_archive(tmp_path / "a.zip", {"1.png": PNG * 50})
    content = bytearray(archive.read_bytes())
    content[60] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.zip: is damaged"):
        unpack(archive, tmp_path / "a")
    (tmp_path / "b.zip").write_text("not an archive")
    assert not is_archive(tmp_path / "b.zip")
    with pytest.raises(DataError, match=r"neither a \.zip nor a \.tar"):
        unpack(tmp_path / "b.zip", tmp_path / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b.zip"]


def test_an_archive_that_does_not_fit_is_not_unpacked(tmp_path, monkeypatch):
    archive = write_archive(tmp_path / "a.zip", {"1.png": PNG})
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(DataError, match=r"needs .* GB"):
        unpack(archive, tmp_path / "a")


def test_domainnet_is_fetched_and_unpacked_side_by_side(site, tmp_path, monkeypatch):
    folder, address = site
    monkeypatch.setattr(domainnet, "LISTS", {"real_train.txt": f"{address}/real_train.txt"})
    monkeypatch.setattr(domainnet, "ARCHIVES", {name: f"{address}/{name}.zip" for name in ("real", "sketch")})
    (folder / "real_train.txt").write_text("real/dog/1.png 0\n")
    for name in ("real", "sketch"):
        write_archive(folder / f"{name}.zip", {f"{name}/dog/1.png": PNG})
    target = domainnet.download_domainnet(tmp_path / "domain_net")
    assert (target / "real" / "dog" / "1.png").exists()
    assert (target / "sketch" / "dog" / "1.png").exists()
    assert (target / "real_train.txt").exists()
    (folder / "real.zip").unlink()
    assert domainnet.download_domainnet(target) == target  # what is there is not fetched again
