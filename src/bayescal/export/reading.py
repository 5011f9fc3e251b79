"""An exported model in use: decoded images → `Prediction`. Needs numpy, Pillow and onnxruntime, and no torch.

`bayescal-runtime` (the folder `runtime/`) is this module and what it imports, cut out of the package.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from bayescal.data.preprocess import Preprocess
from bayescal.data.transforms import cropped
from bayescal.errors import ArtifactError
from bayescal.estimator.prediction import Prediction
from bayescal.util.checksum import checksum
from bayescal.util.cores import usable_cpus
from bayescal.util.regular import read_file
from bayescal.util.typed import read

FORMAT, FORMAT_VERSION = "bayescal-export", 1
MODEL, ANSWERS, LABELS = "model.onnx", "answers.onnx", "labels.json"
OUTPUTS = ("probabilities", "entropy", "mutual_information", "disagreement", "familiarity", "environment")
_LARGEST_SIDE = 4096  # pixels; towers see some hundred
Label = str | int | float | bool | None


@dataclass(frozen=True)
class _File:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class _Labels:
    """What is read of labels.json; it says more."""

    classes: tuple[Label, ...]
    class_words: tuple[str, ...]
    environments: tuple[Label, ...]
    threshold: float | None
    unfamiliar_below: float | None
    temperature: float
    expected: dict[str, Any] | None
    method: str
    preprocessing: Preprocess
    backbone: str
    fingerprint: str
    files: dict[str, _File]
    feature_width: int | None = None  # D; None: an older folder, for images alone


class ExportedModel:
    """What is in a folder that `bayescal export` wrote. Its methods may be called by several threads at once.

    `threads`: cores of one forward pass; None: all that this process may use.
    """

    name = "onnx"
    answers_depend_on_batch = False  # models whose answers do are not exported

    def __init__(self, path: str | Path, threads: int | None = None):
        self.path = Path(path)
        self.labels, graph = _read(self.path)
        self.classes, self.environments = self.labels["classes"], self.labels["environments"]
        threshold, unfamiliar = self.labels["threshold"], self.labels["unfamiliar_below"]
        self.threshold = math.inf if threshold is None else float(threshold)
        self.unfamiliar_below = -math.inf if unfamiliar is None else float(unfamiliar)
        self.preprocess = read(Preprocess, self.labels["preprocessing"])
        self.width: int | None = self.labels.get("feature_width")
        self._threads = usable_cores() if threads is None else threads
        self._session = self._opened(MODEL, graph, "images")
        self._last: Any = None  # of the graph's last part, once it is asked for
        self._opening = Lock()

    def about(self) -> dict[str, Any]:
        """Where the model comes from, and what it calls unsure and unfamiliar."""
        labels = self.labels
        return {
            "method": labels["method"],
            "backbone": {"name": labels["backbone"], "fingerprint": labels["fingerprint"]},
            "unsure_below": labels["threshold"],
            "unfamiliar_below": labels["unfamiliar_below"],
            "expected": labels["expected"],
        }

    def pixels(self, image: Image.Image) -> np.ndarray:
        """An upright RGB picture as the graph likes it best: (size, size, 3) uint8."""
        return np.asarray(cropped(image, self.preprocess))

    def predict_pixels(self, pixels: np.ndarray) -> Prediction:
        """What is said of N images: (N, H, W, 3) uint8, of the size that `pixels` gives or any other."""
        return self._prediction(self._run(OUTPUTS, pixels))

    def features(self, pixels: np.ndarray) -> np.ndarray:
        """Features (N, D) float32 of N images, as `predict_features` takes them."""
        self._check_width()
        return self._run(("features",), pixels)["features"]

    def predict_features(self, features: np.ndarray) -> Prediction:
        """What is said of N images from their features: (N, D)."""
        self._check_width()
        if features.ndim != 2 or features.shape[1] != self.width:
            raise ValueError(f"expected (N, {self.width}), found {features.shape}")
        with self._opening:
            if self._last is None:
                self._last = self._opened(ANSWERS, _file(self.path, ANSWERS, self.labels), "features")
        rows = features if len(features) else np.zeros((1, features.shape[1]))
        values = self._last.run(list(OUTPUTS), {"features": np.ascontiguousarray(rows, dtype=np.float32)})
        return self._prediction({name: value[: len(features)] for name, value in zip(OUTPUTS, values, strict=True)})

    def _run(self, outputs: tuple[str, ...], pixels: np.ndarray) -> dict[str, np.ndarray]:
        if pixels.ndim != 4 or pixels.shape[3] != 3 or pixels.dtype != np.uint8:
            raise ValueError(f"expected (N, H, W, 3) uint8, found {pixels.shape} {pixels.dtype}")
        n, side = len(pixels), self.preprocess.size
        given = np.ascontiguousarray(pixels) if n else np.zeros((1, side, side, 3), np.uint8)
        # Every thread takes a part of the images: sharing each product costs more.
        parts = np.array_split(given, min(self._threads, len(given)))
        with ThreadPoolExecutor(len(parts)) as pool:
            answers = list(pool.map(lambda part: self._session.run(list(outputs), {"images": part}), parts))
        columns = zip(*answers, strict=True)
        return {name: np.concatenate(values)[:n] for name, values in zip(outputs, columns, strict=True)}

    def _prediction(self, found: dict[str, np.ndarray]) -> Prediction:
        probabilities, familiarity = found["probabilities"], found["familiarity"]
        n = len(probabilities)
        if probabilities.shape != (n, len(self.classes)) or not np.isfinite(probabilities).all():
            raise ArtifactError(f"{self.path} gives no probabilities of its {len(self.classes)} classes")
        if found["environment"].shape != (n,) or not np.isin(found["environment"], range(len(self.environments))).all():
            raise ArtifactError(f"{self.path} names environments that {LABELS} does not")
        confidence = probabilities.max(1)
        return Prediction(
            labels=np.array(self.classes)[probabilities.argmax(1)],
            probabilities=probabilities,
            confidence=confidence,
            unsure=confidence < self.threshold,
            entropy=found["entropy"],
            mutual_information=found["mutual_information"],
            disagreement=found["disagreement"],
            environment=np.array(self.environments)[found["environment"]],
            familiarity=familiarity,
            unfamiliar=familiarity < self.unfamiliar_below,
        )

    def _opened(self, name: str, graph: bytes, given: str) -> Any:
        """A graph of the folder, after checking that it takes and gives what its labels are about."""
        session = _session(self.path / name, graph, self._threads)
        outputs = {one.name: one.shape for one in session.get_outputs()}
        wanted = (*OUTPUTS, "features") if name == MODEL and self.width is not None else OUTPUTS
        if [one.name for one in session.get_inputs()] != [given] or not set(wanted) <= outputs.keys():
            raise ArtifactError(f"{self.path / name} is another graph: expected {given} → {', '.join(wanted)}")
        n = outputs["probabilities"][-1] if outputs["probabilities"] else None
        if isinstance(n, int) and n != len(self.classes):
            raise ArtifactError(f"{self.path / name} tells {n} classes apart, {LABELS} names {len(self.classes)}")
        return session

    def _check_width(self) -> None:
        if self.width is None:
            raise ArtifactError(f"{self.path} takes images, not features: an older version wrote it. Export it again")


def usable_cores() -> int:
    """Cores this process may use, or fewer where OMP_NUM_THREADS says so."""
    here = usable_cpus()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(here, int(limit))) if limit.isdecimal() else here


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """labels.json without its checksum, and the graph, after checking that both are whole and unchanged."""
    file = path / LABELS
    if not file.is_file() or not (path / MODEL).is_file():
        raise ArtifactError(
            f"{path} is not an exported model: expected a folder with {MODEL} and {LABELS} (bayescal export)"
        )
    try:
        about = json.loads(file.read_bytes())
    except OSError as error:
        raise ArtifactError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{file} is damaged: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ArtifactError(f"{file} does not describe an exported model")
    if about.get("format_version") != FORMAT_VERSION:
        raise ArtifactError(
            f"{path} has format version {about.get('format_version')}, this program reads version {FORMAT_VERSION}: "
            "export the model again, or use the version it was written with"
        )
    if about.pop("checksum", None) != checksum(about):
        raise ArtifactError(f"{file} was changed after it was written: export the model again")
    try:
        _check(about)
    except ValueError as error:
        raise ArtifactError(f"{file} is not what `bayescal export` writes: {error}") from error
    return about, _file(path, MODEL, about)


def _check(about: Mapping[str, Any]) -> None:
    """Refuse what no export says, whatever its checksum: a `ValueError` names it."""
    said = read(_Labels, {f.name: about[f.name] for f in fields(_Labels) if f.name in about})
    how = said.preprocessing
    for expected, holds in {
        "classes: expected one or more, each once": 0 < len(said.classes) == len({repr(c) for c in said.classes}),
        "class_words: expected one for each class": len(said.class_words) == len(said.classes),
        "environments: expected one or more": len(said.environments) > 0,
        "temperature: expected a number above 0": 0 < said.temperature < math.inf,
        "threshold: expected a finite number": said.threshold is None or math.isfinite(said.threshold),
        "unfamiliar_below: expected a finite number": math.isfinite(said.unfamiliar_below or 0.0),
        "feature_width: expected 1 or more": said.feature_width is None or said.feature_width > 0,
        f"files: expected {MODEL}": MODEL in said.files,
        f"preprocessing.size: expected 1 to {_LARGEST_SIDE:,} pixels": 0 < how.size <= _LARGEST_SIDE,
        "preprocessing: expected three means": len(how.mean) == 3 and all(map(math.isfinite, how.mean)),
        "preprocessing: expected three deviations above 0": len(how.std) == 3
        and all(0 < x < math.inf for x in how.std),
        "preprocessing.interpolation: expected bicubic or bilinear": how.interpolation in ("bicubic", "bilinear"),
        "preprocessing.resize_mode: expected shortest or squash": how.resize_mode in ("shortest", "squash"),
    }.items():
        if not holds:
            raise ValueError(expected)


def _file(path: Path, name: str, about: dict[str, Any]) -> bytes:
    """A graph of the folder, after checking that it is whole and unchanged."""
    try:
        graph = read_file(path / name)
    except OSError as error:
        raise ArtifactError(f"{path / name} cannot be read: {error.strerror}") from error
    expected = about["files"].get(name)
    if expected is None:
        raise ArtifactError(f"{path / LABELS} does not say what {name} holds: export the model again")
    if len(graph) != expected["bytes"]:
        raise ArtifactError(
            f"{path / name} has {len(graph):,} bytes, expected {expected['bytes']:,}: it was cut short or replaced"
        )
    if hashlib.sha256(graph).hexdigest() != expected["sha256"]:
        raise ArtifactError(f"{path / name} was changed after it was written: export the model again")
    return graph


def _session(file: Path, graph: bytes, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    # Threads that wait by spinning take the cores from those that decode images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has its own errors, which no public name covers
        reason = next(iter(str(error).splitlines()), "")
        raise ArtifactError(f"{file} cannot be used by onnxruntime {onnxruntime.__version__}: {reason}") from error
