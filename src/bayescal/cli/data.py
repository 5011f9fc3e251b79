"""`bayescal data`: named data sets, and looking at images before they are used."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayescal.cli.layout_options import DATA_HELP, ClassFromName, Columns, Layout, read_data
from bayescal.cli.options import examples, import_from_here
from bayescal.cli.pack import pack
from bayescal.util.seeds import LARGEST_SEED

if TYPE_CHECKING:
    from bayescal.data import Manifest
    from bayescal.data.datasets.base import Dataset

FOUND_PROBLEMS = 1  # the exit code of `check`; 2 is for commands that could not run

data_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Data sets by name: what they are, reading a download, making ColoredMNIST and ColoredCatsDogs, checking, "
    "packing.",
    epilog=examples(
        "bayescal data list",
        "bayescal data prepare pacs --from PACS.zip -o pacs.csv",
        "bayescal data check my_photos",
    ),
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A name from `bayescal data list`, or module:OBJECT.", show_default=False)
]
Seed = Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="The same seed makes the same images.")]
NewFolder = Annotated[
    Path, typer.Option("--output", "-o", metavar="FOLDER", help="A new folder for the images.", show_default=False)
]

Exact = Annotated[
    bool,
    typer.Option(
        "--exact/--by-chance",
        help="Rates are shares of the images of each class and part, or the probability that each image is drawn with.",
    ),
]


def list_datasets() -> None:
    """List the data sets that have a name here, with how each is used in experiments."""
    from bayescal.cli.screen import note, out, plain_table
    from bayescal.data.datasets import dataset_names, get_dataset, outside_datasets
    from bayescal.errors import BayescalError

    table = plain_table(
        "name", "shift", "classes", "environments", "images", "selection", "shots", numbers=("classes",)
    )
    for name in (*dataset_names(), *outside_datasets()):
        try:
            dataset = get_dataset(name)
        except BayescalError as error:  # one that cannot be loaded is no reason not to list the others
            note(str(error))
            continue
        table.add_row(
            name,
            dataset.shift,
            str(len(dataset.class_words)),
            ", ".join(dataset.environment_words.values()),
            f"{dataset.images:,}" if dataset.images else "made",
            dataset.selection,
            f"{dataset.shots} / {dataset.val_shots}",
        )
    screen = out()
    screen.print(table)
    screen.print("Shots: training / validation images per class. More: bayescal data info NAME")


def info(name: Name) -> None:
    """Say what a data set is, where it comes from, what it has to look like on disk, and how it is searched."""
    from rich.table import Table
    from rich.text import Text

    from bayescal.cli.screen import out
    from bayescal.data.datasets import get_dataset

    import_from_here(name)
    dataset = get_dataset(name)
    table = Table.grid(padding=(0, 2, 0, 0))
    for label, text in _about(dataset):
        table.add_row(Text(label, style="bold"), Text(text))
    screen = out()
    screen.print(table)
    screen.print(Text("\nOn disk", style="bold"), Text(dataset.layout.rstrip()), soft_wrap=True)


def _about(dataset: "Dataset") -> list[tuple[str, str]]:
    from bayescal.data.names import to_words

    def shown(words: dict[str, str]) -> str:
        return ", ".join(name if text == to_words(name) else f"{name} ({text})" for name, text in words.items())

    about = [
        (dataset.title, dataset.citation),
        ("shift", dataset.shift or "–"),
        ("images", f"{dataset.images:,}" if dataset.images else "as many as were made"),
        ("classes", f"{len(dataset.class_words)}: {shown(dict(dataset.class_words))}"),
        ("environments", shown(dict(dataset.environment_words))),
        ("selection", f"{dataset.selection} validation"),
        ("shots", f"{dataset.shots} to train on and {dataset.val_shots} to validate on, per class, {_spread(dataset)}"),
        ("search", _search(dataset) or "each method's own ranges"),
    ]
    if dataset.base_classes:
        about.append(("base classes", ", ".join(dataset.base_classes)))
        about.append(("new classes", ", ".join(dataset.new_classes)))
    return [*about, ("from", dataset.source)]


def _spread(dataset: "Dataset") -> str:
    if dataset.balanced:
        return "spread evenly over environments"
    return "spread over environments as the class's images are (class and environment stay correlated)"


def _search(dataset: "Dataset") -> str:
    from bayescal.benchmark.search_ranges import search_ranges
    from bayescal.methods.hyperparameters import Choice

    lines = []
    for name, param in search_ranges(dataset.name).items():
        draw = param.draw
        if draw is None:
            lines.append(f"{name} = {param.default}")
        elif isinstance(draw, Choice):
            lines.append(f"{name}: {' or '.join(map(str, draw.options))}")
        else:
            lines.append(f"{name}: 10^U({draw.low}, {draw.high})")
    return "\n".join(lines)


def prepare(
    name: Name,
    path: Annotated[
        Path,
        typer.Option(
            "--from",
            metavar="PATH",
            help="The folder or the archive (.zip, .tar, …) of the download.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE.csv", help="The list to write. Default: NAME.csv.", show_default=False
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where an archive is unpacked. Default: beside it.", show_default=False),
    ] = None,
    download: Annotated[
        bool,
        typer.Option("--download", help="First download the data set into the folder PATH, where it has an address."),
    ] = False,
) -> None:
    """Check a download and write the list of its images, with classes, environments and splits, to a CSV file.

    Whatever is missing is named, with the page to get it from. Images stay where they are: the CSV names them.
    """
    from bayescal.cli.files import check_file
    from bayescal.cli.screen import near, out
    from bayescal.data.datasets import get_dataset
    from bayescal.errors import DataError

    import_from_here(name)
    dataset = get_dataset(name)
    target = Path(output or f"{dataset.name}.csv")
    check_file(target)
    if target.suffix.lower() != ".csv":
        raise DataError(f"-o {target}: expected the name of a .csv file")
    if download:
        if dataset.download is None:
            raise DataError(f"{dataset.title} has no address to download it from. Get it by hand: {dataset.source}")
        path = dataset.download(path.expanduser().absolute())
    manifest = dataset.read(_unpacked(path, to))
    manifest.to_csv(target)
    screen = out()
    _print_counts(manifest)
    screen.print(f"Written: {near(target)}", soft_wrap=True)


def _unpacked(path: Path, to: Path | None) -> Path:
    """The folder itself, or the one an archive is unpacked to; one that is there is used as it is."""
    from bayescal.cli.screen import near, tell
    from bayescal.data.datasets.fetch import is_archive, unpack, unpacked_name

    path = path.expanduser()
    if not is_archive(path):
        return path
    folder = (to.expanduser() if to else path.absolute().parent) / unpacked_name(path)
    if folder.is_dir() and any(folder.iterdir()):
        tell(f"Already unpacked: {near(folder)}")
        return folder
    if folder.is_dir():
        folder.rmdir()
    return unpack(path, folder.absolute())


def make_ccd(
    pets: Annotated[
        Path,
        typer.Option("--from", metavar="FOLDER", help="Photos of cats and dogs and their masks.", show_default=False),
    ],
    output: NewFolder,
    seed: Seed = 0,
    sigma: Annotated[float, typer.Option(min=0, help="Noise on the animal: standard deviation, of 0 to 255.")] = 50.0,
    label_noise: Annotated[float, typer.Option(min=0, max=1, help="Share of labels that are wrong.")] = 0.0,
    exact: Exact = True,
) -> None:
    """Make ColoredCatsDogs: animals on red or green, where the colour goes with cat or dog in training alone.

    The folder must hold images/cat/*.jpg and masks/cat/*.png (white: animal), the same for dog; or images/*.jpg and
    annotations/trimaps/*.png, as Oxford-IIIT Pet is downloaded. Every photo is used once.
    """
    from bayescal.cli.screen import shows_progress
    from bayescal.data.synthetic.colored_cats_dogs import make_colored_cats_dogs

    manifest = make_colored_cats_dogs(
        pets, output, seed=seed, sigma=sigma, label_noise=label_noise, exact=exact, progress=shows_progress()
    )
    _print_made(output, manifest)


def make_coloredmnist(
    output: NewFolder,
    mnist: Annotated[
        Path, typer.Option("--from", metavar="PATH", help="mnist.npz, or a folder with MNIST's own files.")
    ] = Path("mnist.npz"),
    seed: Seed = 0,
    per_environment: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Images of each environment. Default: 20,000.", show_default=False),
    ] = None,
    label_noise: Annotated[float, typer.Option(min=0, max=1, help="Share of labels that are wrong.")] = 0.25,
    exact: Exact = True,
    download: Annotated[
        bool, typer.Option("--download", help="First download mnist.npz to PATH (11 MB), if it is not there.")
    ] = False,
) -> None:
    """Make ColoredMNIST: red and green digits, where the colour goes with the label in training alone."""
    from bayescal.cli.screen import shows_progress
    from bayescal.data.datasets.fetch import fetch
    from bayescal.data.synthetic.colored_mnist import make_colored_mnist
    from bayescal.data.synthetic.mnist import ADDRESS

    if download and not mnist.is_dir():
        fetch(ADDRESS, mnist)
    manifest = make_colored_mnist(
        mnist,
        output,
        seed=seed,
        per_environment=per_environment,
        label_noise=label_noise,
        exact=exact,
        progress=shows_progress(),
    )
    _print_made(output, manifest)


def check(
    path: Annotated[str, typer.Argument(metavar="PATH", help=DATA_HELP, show_default=False)],
    layout: Layout = None,
    class_from_name: ClassFromName = False,
    columns: Columns = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Check it as this data set.", show_default=False)
    ] = None,
    shots: Annotated[
        int | None, typer.Option(min=1, help="Training images per class. Default: the data set's, else 16.")
    ] = None,
    val_shots: Annotated[
        int | None, typer.Option(min=0, help="Validation images per class. Default: the data set's, else 16.")
    ] = None,
    backbone: Annotated[
        str, typer.Option(metavar="NAME", help="The backbone that has to know the words of the names.")
    ] = "mini",
) -> None:
    """Open every image, look for copies, and try to draw the shots: what would make results wrong, and what is short.

    Names whose words the backbone has never seen are noted.

    Ends with exit code 1 if something would make results wrong, 2 if PATH cannot be read at all.
    """
    from bayescal.cli.data_check import examine, print_report
    from bayescal.cli.screen import out, shows_progress
    from bayescal.data import Reading
    from bayescal.data.datasets import find_name, open_dataset
    from bayescal.data.datasets.base import describe

    import_from_here(dataset or "")
    own = False
    if dataset:
        about, manifest = open_dataset(dataset, Path(path))
    elif find_name(path) and not os.path.lexists(path):
        about, manifest = open_dataset(path)  # which says where to get it
    else:
        manifest = read_data(path, Reading(layout, class_from_name, columns))
        about, own = describe(path, manifest), True
        out().print(f"Read as {manifest.understood}.", soft_wrap=True)
    _print_counts(manifest)
    report = examine(
        about,
        manifest,
        about.shots if shots is None else shots,
        about.val_shots if val_shots is None else val_shots,
        backbone,
        progress=shows_progress(),
        own=own,
    )
    print_report(report)
    if report.problems:
        raise typer.Exit(FOUND_PROBLEMS)


def _print_counts(manifest: "Manifest") -> None:
    from bayescal.cli.data_check import print_counts

    print_counts(manifest)


def _print_made(folder: Path, manifest: "Manifest") -> None:
    from bayescal.cli.data_check import print_flips
    from bayescal.cli.screen import near, out

    print_flips(folder)
    out().print(f"{len(manifest):,} images and manifest.csv in {near(folder)}", soft_wrap=True)


def _add(name: str, command: Callable[..., None], *lines: str) -> None:
    # Help text is wrapped to the reader's screen, not where the source wraps.
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    text = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    data_app.command(name, help=text, epilog=examples(*lines))(command)


_add("list", list_datasets, "bayescal data list")
_add("info", info, "bayescal data info pacs")
_add(
    "prepare",
    prepare,
    "bayescal data prepare pacs --from downloads/PACS",
    "bayescal data prepare office-home --from OfficeHomeDataset_10072016.zip -o office-home.csv",
    "bayescal data prepare domainnet --from domain_net --download",
)
_add(
    "make-ccd",
    make_ccd,
    "bayescal data make-ccd --from pets -o ccd",
    "bayescal data make-ccd --from pets -o ccd-1 --seed 1",
)
_add(
    "make-coloredmnist",
    make_coloredmnist,
    "bayescal data make-coloredmnist --from mnist.npz -o colored-mnist",
    "bayescal data make-coloredmnist -o small --per-environment 500 --download",
)
_add(
    "check",
    check,
    "bayescal data check my_photos",
    "bayescal data check pacs.csv --dataset pacs",
    "bayescal data check my_photos --shots 4 --val-shots 4",
)
_add(
    "pack",
    pack,
    "bayescal data pack pacs --from PACS -o pacs.bundle",
    'bayescal data pack mine --from my_photos -o mine.bundle --backbone "RN50:openai" --seeds 1',
)
