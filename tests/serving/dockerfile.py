"""The steps of a Dockerfile, done in a folder that stands for the root of the image's file system.

Instructions mean what they mean to Docker, with four differences: a path /a is ROOT/a; what the base image has is a
copy of this Python below ROOT/usr/local; pip finds packages where its environment says, for lack of a network; and
everything but Python comes from this machine. Stages lie at one path, one after the other, because virtual
environments name their own.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_ABSOLUTE = re.compile(r"(?<![\w.:/-])/(?=\w)")  # the beginning of a path, and not the middle of a path or an address
# EXTERNALLY-MANAGED: the base image has none, so that its pip installs; Pythons of uv and of distributions have one.
_LEFT_OUT = ("test", "site-packages", "idlelib", "tkinter", "turtledemo", "lib2to3", "config-*", "*.a")
_LEFT_OUT += ("dist-packages", "EXTERNALLY-MANAGED")


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """(word, the rest) of every instruction, comments and continuations resolved."""
    lines = [line for line in dockerfile.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def of(dockerfile: Path, word: str) -> list[str]:
    return [rest for found, rest in instructions(dockerfile) if found == word]


@dataclass
class Image:
    """What the steps have made: a file system and how to start in it."""

    root: Path
    context: Path  # the folder that COPY takes from
    ignore: Path  # .dockerignore
    given: Mapping[str, str]  # added to the environment of every step
    folder: str = "/"
    user: str = "0:0"
    variables: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    cmd: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def at(self, path: str) -> Path:
        """Where a path of the image is, absolute or from WORKDIR."""
        return self.root / os.path.normpath(os.path.join(self.folder, path)).lstrip("/")

    def placed(self, text: str) -> str:
        """Text with the paths of the image as they are here."""
        return _ABSOLUTE.sub(f"{self.root}/", text)

    @property
    def environment(self) -> dict[str, str]:
        local = self.root / "usr" / "local"
        own = {name: self.placed(value) for name, value in self.variables.items()}
        base = {"PATH": f"{local}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LD_LIBRARY_PATH": f"{local}/lib", "HOME": "/"}
        return {**base, "LANG": "C.UTF-8", **self.given, **own}

    def start(self, words: list[str], *, locked: bool = True, **more: str) -> subprocess.Popen:
        """A program of the image, as its user; `locked`: nothing can be written. `more`: environment, as docker -e."""
        before = confined(self.root, self.user, locked)
        return subprocess.Popen(
            [*before, *map(self.placed, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=self.at("."), env={**self.environment, **more},
        )  # fmt: skip

    def run(self, words: list[str], **how: bool) -> subprocess.CompletedProcess:
        process = self.start(words, **how)
        out, error = process.communicate(timeout=300)
        return subprocess.CompletedProcess(words, process.returncode, out, error)


def build(
    dockerfile: Path, context: Path, root: Path, given: Mapping[str, str], installed: Sequence[str] = ()
) -> Image:
    """All steps; a stage that another one took the place of lies beside the root, under its name.

    `installed`: folders of packages that the base image has.
    """
    ignore = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
    image = Image(root, context, ignore, given)
    name = ""
    for word, rest in instructions(dockerfile):
        if word == "FROM":
            if name:
                root.rename(root.with_name(name))
            name = rest.partition(" AS ")[2] or "last"
            _base(root, installed)
            image = Image(root, context, ignore, given)
        else:
            _step(image, word, rest)
    return image


def _step(image: Image, word: str, rest: str) -> None:
    match word:
        case "RUN":
            done = image.run(["sh", "-ec", rest], locked=False)
            assert done.returncode == 0, f"RUN {rest}\n{done.stdout}{done.stderr}"
        case "COPY":
            _copy(image, *rest.split())
        case "WORKDIR":
            image.folder = os.path.normpath(os.path.join(image.folder, rest))
            image.at(".").mkdir(parents=True, exist_ok=True)
        case "ENV":
            image.variables |= dict(pair.split("=", 1) for pair in shlex.split(rest))
        case "USER":
            image.user = rest
        case "ENTRYPOINT":
            image.entrypoint = json.loads(rest)
        case "CMD":
            image.cmd = json.loads(rest)
        case "HEALTHCHECK":
            image.health = json.loads(rest.partition("CMD ")[2])
        case "VOLUME":
            image.at(rest).mkdir(parents=True, exist_ok=True)
        case "EXPOSE":
            assert rest.isdecimal()
        case _:
            raise AssertionError(f"{word}: a step that the tests do not know")


def _base(root: Path, installed: Sequence[str]) -> None:
    """What the base image has: Python in /usr/local, with pip and what is `installed`, and a folder for what passes."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    there, local = Path(sys.base_prefix), root / "usr" / "local"
    for folder in (local / "bin", local / "lib" / version / "site-packages", root / "tmp", root / "opt"):
        folder.mkdir(parents=True)
    root.chmod(0o755)
    _link(str(there / "bin" / version), str(local / "bin" / version))
    for name in ("python", "python3"):
        (local / "bin" / name).symlink_to(version)
    for library in (there / "lib").glob("libpython*.so*"):
        _link(str(library), str(local / "lib" / library.name))
    left_out = shutil.ignore_patterns(*_LEFT_OUT)
    shutil.copytree(
        there / "lib" / version, local / "lib" / version, copy_function=_link, ignore=left_out, dirs_exist_ok=True
    )
    if installed:
        subprocess.run([local / "bin" / "python", "-m", "ensurepip"], check=True, capture_output=True)
        (local / "bin" / "pip").symlink_to("pip3")
    own = local / "lib" / version / "site-packages"
    for package in (path for folder in installed for path in Path(folder).iterdir()):
        _lend(package, own)


def _lend(package: Path, own: Path) -> None:
    """What is installed elsewhere, as pip finds it there, but cannot remove it.

    pip follows links when it removes a distribution, and removes what RECORD lists: so there is none. Nor is this very
    package, which pip is to install.
    """
    at = own / package.name
    if "bayescal" in package.name or package.suffix == ".pth" or package.name == "__pycache__" or at.exists():
        return
    if package.suffix == ".dist-info":
        shutil.copytree(package, at, ignore=shutil.ignore_patterns("RECORD"))
    else:
        at.symlink_to(package)


def _link(source: str, target: str) -> None:
    """The same file under another name where that can be had, else a copy."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copy2(source, target)


def _copy(image: Image, *words: str) -> None:
    *sources, target = words
    if sources[0].startswith("--from="):
        stage = image.root.with_name(sources.pop(0).removeprefix("--from="))
        for source in sources:
            shutil.copytree(stage / source.lstrip("/"), image.at(target), symlinks=True)
        return
    lines = image.ignore.read_text().split()
    left_out = shutil.ignore_patterns(*(line.removeprefix("**/") for line in lines if line.startswith("**/")))
    for source in sources:
        assert f"!{source}" in lines, f"{source} is ignored by {image.ignore.name}"
        here = image.context / source
        if here.is_dir():
            shutil.copytree(here, image.at(target), ignore=left_out, dirs_exist_ok=True)
        else:
            shutil.copyfile(here, image.at(target) / here.name if target.endswith("/") else image.at(target))


# ---- as whom, and on what ------------------------------------------------------------------------------------------


def confined(root: Path, user: str, locked: bool) -> list[str]:
    """What stands before a command: another user without rights, and a file system that cannot be written.

    Whoever is not root here starts it as it is.
    """
    if os.geteuid() != 0 or not shutil.which("setpriv") or user == "0:0":
        return []
    number, group = user.split(":")
    drop = ["setpriv", "--reuid", number, "--regid", group, "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
    drop += ["--pdeathsig", "KILL"]  # tests that are killed leave no server behind
    return [*(read_only(root) if locked and mounts() else []), *drop]


def read_only(root: Path) -> list[str]:
    """In a name space of mounts of its own."""
    how = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    return ["unshare", "--mount", "sh", "-ec", how, str(root)]


@cache
def mounts() -> bool:
    """Whether this machine lets a test mount: containers often do not."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    return subprocess.run([*read_only(Path("/usr")), "true"], capture_output=True).returncode == 0
