"""What an image tower says about the pixels it wants. Imports nothing heavy: every part of the package may need it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bayescal.errors import BackboneError


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes the pixels that the image tower was trained on."""

    size: int  # the tower sees size × size pixels
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str  # "bicubic" or "bilinear"
    resize_mode: str  # "shortest": shorter side to `size`, then centre crop; "squash": both sides to `size`

    @classmethod
    def from_open_clip(cls, config: dict[str, Any]) -> "Preprocess":
        """Read an open_clip `preprocess_cfg`; refuses what the transforms of this package do not do."""
        size = config["size"]
        height, width = (size, size) if isinstance(size, int) else size
        if height != width:
            raise BackboneError(f"images of {height} × {width} pixels are not supported: the input must be square")
        if config["resize_mode"] not in ("shortest", "squash"):
            raise BackboneError(f"resize mode {config['resize_mode']!r} is not supported, only shortest and squash")
        return cls(
            size=int(height),
            mean=_three_floats(config["mean"]),
            std=_three_floats(config["std"]),
            # open_clip allows a third value, "random", and tests such models with bicubic
            interpolation="bilinear" if config["interpolation"] == "bilinear" else "bicubic",
            resize_mode=config["resize_mode"],
        )


def _three_floats(values: Sequence[float] | float) -> tuple[float, float, float]:
    if not isinstance(values, Sequence):
        values = (values,) * 3
    red, green, blue = (float(v) for v in values)
    return red, green, blue
