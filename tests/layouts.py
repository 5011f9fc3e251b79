"""Trees of exactly the layouts that data sets are downloaded in, with tiny images."""

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image


def tiny_png(shade: int = 0) -> bytes:
    """A whole image of 4 × 4 pixels; equal shades give equal bytes."""
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (shade % 256, shade // 256 % 256, 90)).save(stream, "PNG")
    return stream.getvalue()


PNG = tiny_png()


def make_tree(root: Path, environments: Sequence[str], classes: Sequence[str], images: int = 1) -> Path:
    """root/environment/class/0.png …; all images are the same, which loaders do not mind."""
    for environment in environments:
        for name in classes:
            folder = root / environment / name
            folder.mkdir(parents=True)
            for number in range(images):
                (folder / f"{number}.png").write_bytes(PNG)
    return root


NICO_CONTEXTS = ("on_snow", "in_forest", "on_beach", "on_grass")
NICO_SUBCLASSES = {
    "animal": ("bear", "bird", "cat", "cow", "dog", "elephant", "horse", "monkey", "rat", "sheep"),
    "vehicle": ("airplane", "bicycle", "boat", "bus", "car", "helicopter", "motorcycle", "train", "truck"),
}
NICO_FILES = ("env_train1.csv", "env_train2.csv", "env_val.csv", "env_test.csv")


def make_nico(root: Path, level: str = "images", blanks: bool = False, lists: str = "mixed_split_corrected") -> Path:
    """One image per subclass, context and csv file; the csv files are written as OoD-Bench writes them.

    `level`: the folder between superclass and class, or none; `blanks`: folders are called "on snow", as NICO does.
    """
    lines: dict[str, list[str]] = {name: [] for name in NICO_FILES}
    for superclass, subclasses in NICO_SUBCLASSES.items():
        for subclass in subclasses:
            for context in NICO_CONTEXTS:
                spelled = context.replace("_", " ") if blanks else context
                folder = root / superclass / level / subclass / spelled
                folder.mkdir(parents=True)
                for number, name in enumerate(NICO_FILES):
                    (folder / f"{number}.jpg").write_bytes(PNG)
                    lines[name].append(f"{subclass}\\{context}\\{number}.jpg,{subclass},{context},{superclass}")
    (root / lists).mkdir(exist_ok=True)
    for name, rows in lines.items():
        (root / lists / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return root
