"""Finding and reading what experiments left behind."""

from pathlib import Path

from bayescal.benchmark.experiments import EXPERIMENTS
from bayescal.benchmark.results import Section, read_section
from bayescal.errors import DataError

FOLDER = "sections"  # inside a folder of results


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
    """In the order of the paper; experiments that are not among its own follow by name."""
    ranks = {name: i for i, name in enumerate(EXPERIMENTS)}
    return sorted(sections, key=lambda section: (ranks.get(section.experiment, len(ranks)), section.experiment))


def _read(path: Path) -> Section:
    """A section, or an error about the file where it is JSON of another shape."""
    try:
        return read_section(path)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: is damaged, or of another version ({type(error).__name__}: {error}). "
            f"Run `bayescal bench {path.stem}` again, or delete the file."
        ) from error
