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


# Images of the rarer and of the commoner superclass in a context, a tenth of those in OoD-Bench's lists. In training
# the commoner one is the context's own (vehicle on snow, animal in forest …), in the test it is the other one.
NICO_COUNTS = {"env_train1.csv": (1, 40), "env_train2.csv": (2, 39), "env_val.csv": (5, 5), "env_test.csv": (1, 9)}


def make_correlated_nico(root: Path) -> Path:
    """NICO with the class–context correlation of its published lists: V = 0.93 in training, 0 in validation."""
    lines: dict[str, list[str]] = {name: [] for name in NICO_FILES}
    number = 0
    for position, context in enumerate(NICO_CONTEXTS):
        for name, (rare, common) in NICO_COUNTS.items():
            own = ("vehicle", "animal")[(position + (name == "env_test.csv")) % 2]
            for superclass in ("animal", "vehicle"):
                for _ in range(common if superclass == own else rare):
                    subclass = NICO_SUBCLASSES[superclass][number % len(NICO_SUBCLASSES[superclass])]
                    folder = root / superclass / "images" / subclass / context
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / f"{number}.jpg").write_bytes(tiny_png(number))
                    lines[name].append(f"{subclass}\\{context}\\{number}.jpg,{subclass},{context},{superclass}")
                    number += 1
    (root / "mixed_split_corrected").mkdir()
    for name, rows in lines.items():
        (root / "mixed_split_corrected" / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return root
