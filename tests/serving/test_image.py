"""The images of deploy/: every step of both Dockerfiles done in a folder, and their programs run there."""

import json
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from dockerfile import Image, build, mounts, of
from tiny_export import tiny_export

from servers import picture
from wheelhouse import here, offline, write_wheels

pytestmark = pytest.mark.xdist_group("image")
ROOT = Path(__file__).resolve().parents[2]
SERVE, TRAIN = ROOT / "deploy" / "Dockerfile", ROOT / "deploy" / "train.Dockerfile"
TOKEN = "a-token-that-nobody-guesses"
USER = 10001


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that other users may enter, as pytest's own may not."""
    pytest.importorskip("ensurepip", reason="needs the pip that comes with Python (Debian's package python3-venv)")
    with tempfile.TemporaryDirectory(prefix="bayescal-image-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def packages(dockerfile: Path) -> list[str]:
    """What its first `pip install` names."""
    line = next(line for line in of(dockerfile, "RUN") if "pip install" in line)
    words = line.partition("pip install")[2].split()
    return [word for word in words if not word.startswith("-") and not word.endswith(".lock")]


@pytest.fixture(scope="module")
def image(place) -> Image:
    """What deploy/Dockerfile makes, with an exported model where `docker run -v` puts it."""
    wheels = write_wheels([*packages(SERVE), "hatchling"], place / "wheels")
    made = build(SERVE, ROOT, place / "root", offline(wheels))
    shutil.copytree(tiny_export(place / "exported"), made.at("/model"), dirs_exist_ok=True)
    return made


def content(folder: Path) -> dict[str, int]:
    """Every file below a folder with its size."""
    return {str(path): path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture(scope="module")
def running(image) -> Iterator[tuple[int, str]]:
    """The entry point as `docker run --read-only --cap-drop ALL … --port 0` starts it: (PID, address)."""
    before = content(image.root)
    process = image.start([*image.entrypoint, *image.cmd, "--port", "0"], BAYESCAL_TOKEN=TOKEN)
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"answers at http://0\.0\.0\.0:(\d+)/", line):
                break
        else:
            pytest.fail(said)
        yield process.pid, f"http://127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert content(image.root) == before, "the program writes into its image"


def test_the_image_has_what_answers_and_nothing_that_learns(image):
    names = ("torch", "onnx", "scipy", "onnxruntime")
    program = f"import importlib.util as u; print(*[n for n in {names} if u.find_spec(n)])"
    done = image.run(["/opt/bayescal/bin/python", "-c", program])
    assert (done.returncode, done.stdout.split()) == (0, ["onnxruntime"]), done.stderr
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert image.run(["/opt/bayescal/bin/bayescal", "--version"]).stdout.split()[-1] == version
    assert not list(image.root.rglob("*.safetensors"))
    assert not image.at("/build").exists(), "the last stage takes the environment alone"
    assert (image.at("/opt/bayescal/bin/bayescal")).read_text().startswith(f"#!{image.root}/opt/bayescal/bin/python")


def test_the_image_answers_with_what_is_in_it(running):
    _, address = running
    files = {"images": ("a.png", picture((5, 250, 5)))}
    assert httpx.post(f"{address}/v1/predict", files=files).status_code == 401
    answer = httpx.post(f"{address}/v1/predict", files=files, headers={"authorization": f"Bearer {TOKEN}"}).json()
    assert answer["answers"][0]["class"] == "green"
    about = httpx.get(f"{address}/v1/model", headers={"authorization": f"Bearer {TOKEN}"}).json()
    assert about["engine"] == "onnx"


def test_without_a_token_the_image_does_not_start(image):
    done = image.run([*image.entrypoint, "--port", "0"])
    assert done.returncode == 2
    assert "expected a token" in " ".join(done.stderr.split())


def test_the_health_check_of_the_image_says_whether_it_answers(image, running):
    _, address = running
    *program, code = image.health
    asked = code.replace("http://127.0.0.1:8000", address)
    assert asked != code
    assert image.run([*program, asked]).returncode == 0
    assert image.run([*program, code.replace(":8000", ":9")]).returncode != 0


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="root alone may become another user")
def test_the_image_runs_as_a_user_without_rights(running):
    status = Path(f"/proc/{running[0]}/status").read_text()
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in status.splitlines())}
    assert fields["Uid"] == fields["Gid"] == [str(USER)] * 4
    assert fields["Groups"] == []
    assert {int(fields[name][0], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert fields["NoNewPrivs"] == ["1"]


def test_nothing_in_the_image_can_be_written(image, running):
    if not mounts():
        pytest.skip("this machine lets no test mount a folder read-only")
    lines = Path(f"/proc/{running[0]}/mounts").read_text().splitlines()
    (options,) = [line.split()[3] for line in lines if line.split()[1] == str(image.root)]
    assert "ro" in options.split(",")
    done = image.run(["sh", "-c", "touch /tmp/x"])
    assert "Read-only file system" in done.stderr


def distributions() -> dict[str, int]:
    """What is installed here, with the time at which each entry was changed: pip writes RECORD, or removes it."""
    return {
        str(path): path.stat().st_mtime_ns for path in Path(here()).iterdir() if path.suffix in (".dist-info", ".pth")
    }


@pytest.fixture(scope="module")
def training(place) -> Image:
    """What deploy/train.Dockerfile makes. pip finds its packages installed, at versions that the lock file allows."""
    if os.geteuid() != 0:
        pytest.skip("a step gives folders to another user, which root alone may do")
    own = place / "wheels-of-hatchling"
    given = offline(write_wheels(["hatchling"], own)) | {"PYTHONDONTWRITEBYTECODE": "1"}  # beside links: elsewhere
    before = distributions()
    image = build(TRAIN, ROOT, place / "train", given, installed=[here()])
    assert distributions() == before, "the packages of this Python stay as they are"
    return image


def test_pip_of_an_image_cannot_remove_what_the_image_borrows(place):
    """Its packages are links to those of the Python that runs the tests: here, to one made for this test."""
    site = place / "site"
    files = {
        "borrowed/__init__.py": "",
        "borrowed-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: borrowed\nVersion: 1.0\n",
    }
    files["borrowed-1.0.dist-info/RECORD"] = "".join(
        f"{name},,\n" for name in [*files, "borrowed-1.0.dist-info/RECORD"]
    )
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    (place / "Dockerfile").write_text("FROM python:3.12-slim\nWORKDIR /build\n")
    image = build(place / "Dockerfile", ROOT, place / "borrower", offline(place / "none"), installed=[str(site)])
    assert "borrowed" in image.run(["pip", "list"]).stdout
    done = image.run(["pip", "uninstall", "--yes", "borrowed"])
    assert "RECORD" in done.stderr, done.stdout
    assert {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()} == set(files)


def test_the_training_image_installs_from_the_lock_file_and_runs(training):
    """As a user without rights, in a folder that belongs to it."""
    done = training.run([*training.entrypoint, *training.cmd], locked=False)
    if "Permission denied" in done.stderr or "No module named" in done.stderr:
        pytest.skip(f"the user of the image cannot read {here()}")
    assert done.returncode == 0, done.stderr
    assert {"fit", "evaluate", "export", "serve"} <= set(re.findall(r"\b[a-z]+\b", done.stdout))
    assert (training.user, training.folder) == (f"{USER}:{USER}", "/work")
    for folder in ("/work", "/cache"):
        assert training.at(folder).stat().st_uid == USER
    program = "import bayescal, sys; print(bayescal.__file__)"
    where = training.run(["python", "-c", program], locked=False).stdout.strip()
    assert where.startswith(str(training.root)), "the copy in the image, and not the clone"
    assert sys.version_info[:2] >= (3, 11)
    assert json.loads(of(TRAIN, "ENTRYPOINT")[0]) == ["bayescal"]
