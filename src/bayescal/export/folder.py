"""The folder that `export` writes: the graph, what its numbers mean, how to use it, and a page that does.

model.onnx     images (N, H, W, 3) uint8 → probabilities, entropy, … (`export.answering.Answers`), features (N, D)
answers.onnx   features (N, D) → the same: its last part, for those who keep features
labels.json    names of classes and environments, thresholds, preprocessing, checksums
README.md      ten lines of Python and of JavaScript
index.html     the page; its program comes from the npm package onnxruntime-web, in the folder beside it
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayescal import __version__
from bayescal.errors import BayescalError
from bayescal.export.reading import ANSWERS, FORMAT, FORMAT_VERSION, LABELS, MODEL
from bayescal.util import atomic
from bayescal.util.checksum import sealed
from bayescal.util.jsonable import jsonable

if TYPE_CHECKING:
    from bayescal.estimator.base_predictor import BasePredictor

README, PAGE, WEB = "README.md", "index.html", "onnxruntime-web"
OURS = (MODEL, ANSWERS, LABELS, README, PAGE, WEB)
PRECISIONS = ("float32", "float16", "int8")
SCRIPT = "ort.wasm.min.js"  # of the npm package: the program, and the two files that it loads itself
WEB_FILES = (SCRIPT, "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
_TEMPLATES = Path(__file__).parent / "templates"


def labels(predictor: "BasePredictor", precision: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """What labels.json holds but its checksum."""
    about = predictor.description()
    known = ("classes", "class_words", "environments", "threshold", "unfamiliar_below", "temperature", "expected")
    return jsonable(
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **{name: about[name] for name in known},
            "measured": predictor.record.get("checked"),
            "method": predictor.method_name,
            "feature_width": predictor.backbone.dim,
            "preprocessing": asdict(predictor.backbone.preprocess),
            "backbone": predictor.backbone.label,
            "fingerprint": predictor.backbone.fingerprint,
            "precision": precision,
            "version": __version__,
            "files": {
                name: {"bytes": len(graph), "sha256": hashlib.sha256(graph).hexdigest()}
                for name, graph in files.items()
            },
        }
    )


def write_folder(path: Path, files: Mapping[str, bytes], about: dict[str, Any], web: Path | None = None) -> None:
    """All of it under a temporary name, then renamed: there is a whole folder or none."""
    texts = {
        LABELS: json.dumps(sealed(about), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        README: _readme(about),
        PAGE: (_TEMPLATES / "page.html").read_text(encoding="utf-8"),
    }
    try:
        with atomic.replacing_folder(path) as draft:
            for name, graph in files.items():
                atomic.write_bytes(draft / name, graph)
            for name, text in texts.items():
                atomic.write_text(draft / name, text)
            if web is not None:
                (draft / WEB).mkdir()
                for file in web_files(web):
                    shutil.copyfile(file, draft / WEB / file.name)
    except OSError as error:
        raise BayescalError(f"could not write {path}: {error.strerror or error}") from error


def web_files(package: Path) -> list[Path]:
    """The files of the npm package onnxruntime-web that the page needs."""
    for folder in (package / "dist", package):
        if (folder / SCRIPT).is_file():
            files = [folder / name for name in WEB_FILES]
            if missing := [file.name for file in files if not file.is_file()]:
                raise BayescalError(f"{folder} has {SCRIPT} but not {missing[0]}: unpack the whole npm package again")
            return files
    raise BayescalError(
        f"{package} is not the npm package onnxruntime-web: expected dist/{SCRIPT} in it. "
        "`npm pack onnxruntime-web` downloads it; unpack the .tgz and give its folder"
    )


def _readme(about: dict[str, Any]) -> str:
    text = (_TEMPLATES / "readme.md").read_text(encoding="utf-8")
    values = {
        "METHOD": about["method"],
        "BACKBONE": about["backbone"],
        "VERSION": about["version"],
        "PRECISION": about["precision"],
        "CLASSES": str(len(about["classes"])),
        "SIDE": str(about["preprocessing"]["size"]),
    }
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    return text
