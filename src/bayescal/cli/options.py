"""Options that several commands share, and reading the values people type."""

import codecs
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayescal.errors import BayescalError, DataError, MethodError
from bayescal.util.jsonable import loads
from bayescal.util.references import is_reference
from bayescal.util.regular import read_file
from bayescal.util.seeds import check_seed

if TYPE_CHECKING:
    import torch

    from bayescal.distributed.ray_cluster import Cluster
    from bayescal.methods.hyperparameters import Space

Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder of the feature cache. Default: $BAYESCAL_CACHE, or the user's cache folder.",
        rich_help_panel="Running",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="Where to compute: cpu, cuda, cuda:1, mps; auto: a GPU where there is one.", rich_help_panel="Running"
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        help="Of the text tower in training: float32, float16 or bfloat16; auto: float16 on a GPU, else float32.",
        rich_help_panel="Running",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Share the work out over a Ray cluster: HOST:PORT of its head, or auto for the one this machine belongs "
        "to. --device is then what its workers compute on.",
        rich_help_panel="Running",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an output that exists.", rich_help_panel="Running")]
MovedBackbone = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        metavar="NAME",
        help="Where the model's backbone is now, if its weights file has moved.",
        rich_help_panel="Running",
    ),
]
RawCsv = Annotated[
    bool,
    typer.Option(
        "--raw-csv",
        help="In CSV, leave text as it is that a spreadsheet would take for a formula (=, +, -, @ at its start).",
    ),
]
Shots = Annotated[int | None, typer.Option(min=1, help="Training images per class. Default: the data set's.")]
ValShots = Annotated[int | None, typer.Option(min=1, help="Validation images per class. Default: the data set's.")]
END_TO_END = "Training an image model (a GPU and thousands of images)"
VisionWeights = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Its weights at the start; the word timm downloads those that timm publishes. Default: random.",
        show_default=False,
        rich_help_panel=END_TO_END,
    ),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A folder written by `bayescal fit`.", show_default=False)]


def open_cluster(address: str | None, device: str) -> "tuple[Cluster | None, str]":
    """The cluster of --ray, and the device of this process: with a cluster, workers have the GPUs."""
    if address is None:
        return None, taken_device(device)
    from bayescal.distributed.ray_cluster import Cluster

    return Cluster(address, device), "cpu"


def taken_device(device: str) -> str:
    """What --device auto is here; a GPU that was found is mentioned."""
    if device != "auto":
        return device
    from bayescal.backbones.base import usable_device
    from bayescal.cli.screen import tell

    found = str(usable_device(device))
    if found != "cpu":
        tell(f"Computing on {found}.")
    return found


def parse_precision(text: str, device: str) -> "torch.dtype | None":
    """The precision of --precision; None: as the weights are."""
    from bayescal.text.precision import PRECISIONS

    if text == "auto":
        text = "float16" if device.startswith("cuda") else "float32"
    if text not in PRECISIONS:
        raise BayescalError(f"--precision {text}: expected auto, {', '.join(PRECISIONS)}")
    return None if text == "float32" else PRECISIONS[text]


def import_from_here(*names: str) -> None:
    """What somebody types as module:Class may lie in the folder she is in, as for `python -m`.

    For names that are typed, never for names out of files: a model must not choose what is imported from where it lies.
    """
    here = os.getcwd()
    if here not in sys.path and any(is_reference(name) for name in names):
        sys.path.insert(0, here)


def is_from_here(name: str) -> bool:
    """Whether module:Class was found in this folder, which `bayescal` looks into only for what is typed."""
    module = sys.modules.get(name.partition(".")[0].partition(":")[0]) if is_reference(name) else None
    if (found := getattr(module, "__file__", None)) is None:
        return False
    file = Path(found)
    return Path.cwd() in (file.parent, file.parent.parent if file.name == "__init__.py" else None)


def examples(*lines: str) -> str:
    """The epilog of a command's help."""
    return "\n".join(["[bold]Examples[/bold]", *(f"[cyan]{line}[/cyan]" for line in lines)])


def parse_settings(method_name: str, pairs: Sequence[str], space: "Space | None" = None) -> dict[str, Any]:
    """`--set name=value` as the method's options: known ones only, each of the kind it has to be.

    `space`: the options there are, where they are not the method's own.
    """
    from bayescal.methods import get_method
    from bayescal.methods.hyperparameters import check_options

    space = get_method(method_name).space if space is None else space
    given: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise MethodError(f"--set {pair!r}: expected name=value, for example --set epochs=50")
        check_options(space, {name: text}, who=f"method {method_name!r}")
        given[name] = _value(space[name], text, f"--set {name}={text}")
    return given


def _value(param: Any, text: str, where: str) -> Any:
    """JSON where it is JSON, else the text itself; of the kind that the parameter's default has."""
    from bayescal.backbones.defaults import CLIP  # backbones differ in values, not in kinds
    from bayescal.methods.hyperparameters import check_value

    try:
        value = loads(text)
    except ValueError:
        value = text
    if isinstance(param.default_for(CLIP), str) and not isinstance(value, str):
        value = text  # words that happen to read like JSON: "1", "true", "null"
    check_value(param, value, CLIP, where)
    return value


def read_words(file: Path | None, option: str) -> dict[str, str]:
    """A JSON object {name: words}, or nothing."""
    if file is None:
        return {}
    try:
        words = loads(read_file(file).removeprefix(codecs.BOM_UTF8))
    except OSError as error:
        raise DataError(f"{option} {file}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise DataError(f"{option} {file}: is not JSON ({error})") from error
    if not isinstance(words, dict) or not all(isinstance(text, str) for text in words.values()):
        raise DataError(f'{option} {file}: expected an object such as {{"n02084071": "dog"}}')
    return words


def parse_seeds(text: str) -> tuple[int, ...]:
    """ "1,2,3" → (1, 2, 3)."""
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise BayescalError(
            f"--seeds {text[:60]}: expected whole numbers, separated by commas, such as 1,2,3"
        ) from error
    for seed in seeds:
        check_seed(seed, "--seeds")
    if len(set(seeds)) < len(seeds):
        raise BayescalError(f"--seeds {text}: every seed once")
    return seeds
