"""Finding and reading what experiments left behind."""

import warnings
from pathlib import Path

from bayescal.benchmark.experiments import EXPERIMENTS
from bayescal.benchmark.results import Section, read_section
from bayescal.errors import BayescalWarning, DataError

FOLDER = "sections"  # inside a folder of results


def read_sections(folder: Path) -> list[Section]:
    """Every `folder/sections/*.json`, in the order of a report; damaged ones are named and left out."""
    folder = Path(folder)
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "there is no such folder"
        raise DataError(f"{folder}: {found}; expected a folder of results. `bayescal bench` makes one.")
    paths = section_files(folder)
    if not paths:
        raise DataError(
            f"{folder}: nothing to report, there is no file {FOLDER}/*.json in it. Run an experiment first "
            f"(`bayescal bench main`), or name the folder that its results are in."
        )
    sections, problems = [], []
    for path in paths:
        try:
            sections.append(read_section(path))
        except DataError as error:
            problems.append(error)
    if not sections:
        raise problems[0]
    for problem in problems:
        warnings.warn(f"{problem} The others are reported without it.", BayescalWarning, stacklevel=2)
    return in_order(sections)


def section_files(folder: Path) -> list[Path]:
    """The results in a folder; drafts of a process that is writing one are none."""
    return sorted(path for path in (folder / FOLDER).glob("*.json") if not path.name.startswith("."))


def in_order(sections: list[Section]) -> list[Section]:
    """In the order of the paper; experiments that are not among its own follow by name."""
    ranks = {name: i for i, name in enumerate(EXPERIMENTS)}
    return sorted(sections, key=lambda section: (ranks.get(section.experiment, len(ranks)), section.experiment))
