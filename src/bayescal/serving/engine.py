"""What a server asks for answers: a model in torch, or one that was exported to ONNX, behind one protocol."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from bayescal.errors import BayescalError
from bayescal.estimator.prediction import Prediction

ENGINES = ("torch", "onnx")


class Engine(Protocol):
    """A loaded model. Its methods are called by several threads at once and change nothing."""

    @property
    def name(self) -> str:
        """One of ENGINES."""
        ...

    @property
    def classes(self) -> Sequence[Any]: ...

    @property
    def environments(self) -> Sequence[Any]: ...

    @property
    def width(self) -> int | None:
        """D, the width of the features that it takes; None: it takes none."""
        ...

    @property
    def answers_depend_on_batch(self) -> bool:
        """Whether the answer to an image depends on the images given with it."""
        ...

    def about(self) -> dict[str, Any]:
        """What `GET /v1/model` says of the model, as JSON."""
        ...

    def pixels(self, image: Image.Image) -> np.ndarray:
        """An upright RGB picture as the image tower wants it: (size, size, 3) uint8."""
        ...

    def predict_pixels(self, pixels: np.ndarray) -> Prediction:
        """What is said of N images: (N, size, size, 3) uint8."""
        ...

    def predict_features(self, features: np.ndarray) -> Prediction:
        """What is said of N images from their features: (N, D) float32."""
        ...


def open_engine(
    path: str | Path, name: str | None = None, backbone: str | None = None, device: str = "auto", threads: int = 1
) -> Engine:
    """The engine for a folder: a model of `bayescal fit` in torch, or one that `bayescal export` wrote.

    `threads`: cores of one forward pass. `name` None: what the folder holds.
    """
    found = "onnx" if (Path(path) / "model.onnx").is_file() else "torch"
    if name is not None and name not in ENGINES:
        raise BayescalError(f"--engine {name}: expected {' or '.join(ENGINES)}")
    if name is not None and name != found:
        other = "was exported to ONNX" if found == "onnx" else "is no exported model (it has no model.onnx)"
        hint = "leave --engine out" if found == "onnx" else f"write one with: bayescal export {path} -o exported"
        raise BayescalError(f"--engine {name}: {path} {other}; {hint}")
    if found == "onnx":
        if find_spec("onnxruntime") is None:
            raise BayescalError("an exported model needs onnxruntime: pip install 'bayescal[export]'")
        from bayescal.export.reading import ExportedModel

        return ExportedModel(path, threads)
    try:
        from bayescal.serving.torch_engine import TorchEngine
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise BayescalError(
            f"{path} needs torch, which is not installed here: write an exported model with "
            f"`bayescal export {path} -o exported` where it is, and serve that"
        ) from error
    return TorchEngine.load(path, backbone, device, threads)
