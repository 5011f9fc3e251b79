"""Finding and reading what experiments left behind."""

from pathlib import Path

from bayescal.errors import DataError
from bayescal.experiments.findings import Section, read_section

FOLDER = "sections"  # inside a folder of results
# The order of the paper; experiments that are not named here follow by name.
ORDER = ("main", "ablation", "adapters", "base-to-new", "instances", "epochs", "landscape", "tsne", "wilcoxon")


def read_sections(folder: Path) -> list[Section]:
    """Every `folder/sections/*.json`, in the order of a report."""
    folder = Path(folder)
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "there is no such folder"
        raise DataError(f"{folder}: {found}; expected a folder of results. `bayescal bench` makes one.")
    paths = sorted(path for path in (folder / FOLDER).glob("*.json") if not path.name.startswith("."))
    if not paths:
        raise DataError(
            f"{folder}: nothing to report, there is no file {FOLDER}/*.json in it. Run an experiment first "
            f"(`bayescal bench main`), or name the folder that its results are in."
        )
    return in_order([_read(path) for path in paths])


def in_order(sections: list[Section]) -> list[Section]:
    places = {name: i for i, name in enumerate(ORDER)}
    return sorted(sections, key=lambda section: (places.get(section.experiment, len(ORDER)), section.experiment))


def _read(path: Path) -> Section:
    """A section, or words about the file where it is JSON of another shape."""
    try:
        return read_section(path)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: is damaged, or of another version ({type(error).__name__}: {error}). "
            f"Run `bayescal bench {path.stem}` again, or delete the file."
        ) from error
