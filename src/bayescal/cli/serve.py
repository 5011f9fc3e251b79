"""`bayescal serve`."""

import re
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bayescal.cli.options import Device, MovedBackbone

if TYPE_CHECKING:
    from bayescal.serving.desk import Desk
    from bayescal.serving.engine import Engine
    from bayescal.serving.settings import Settings

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def serve(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="A folder written by `bayescal fit`, or by `bayescal export`. Without one, the page learns one first.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; anything but this machine needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any that is free.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="BAYESCAL_TOKEN",
            show_envvar=True,
            help="What whoever asks must know, at least 16 characters. Better set in the environment than typed.",
            show_default=False,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another name it may be asked under, such as a proxy's; may be repeated."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="torch or onnx. Default: what the folder holds.", show_default=False)
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Forward passes at once, which share the cores. Default: one per core."),
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Images of one forward pass.")] = 32,
    max_upload: Annotated[str, typer.Option(metavar="SIZE", help="Largest body of a request: 20MB, 512KB …")] = "20MB",
    max_queue: Annotated[
        int, typer.Option(min=1, help="Images that may wait; beyond them a request is told to come back (503).")
    ] = 512,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where the page keeps images and labels that people add. Default: MODEL-labels, beside the model.",
            show_default=False,
        ),
    ] = None,
    backbone: MovedBackbone = None,
    device: Device = "auto",
) -> None:
    """Put a model behind an address: an API for programs, and a page for people.

    POST /v1/predict answers images or features, GET /v1/model says what the model knows, /openapi.json describes both;
    /healthz, /readyz and /metrics are for whoever runs it. Ctrl-C or SIGTERM finishes what is begun.
    """
    from bayescal.cli.screen import near, tell
    from bayescal.errors import BayescalError

    try:
        from bayescal.serving.app import create_app
        from bayescal.serving.run import listen, with_log
        from bayescal.serving.run import serve as run
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "python_multipart", "prometheus_client", "starlette", "pydantic"):
            raise
        raise BayescalError(f"serving needs {error.name}: pip install 'bayescal[serve]'") from error
    from bayescal.serving.engine import open_engine
    from bayescal.serving.later import LaterDesk
    from bayescal.serving.settings import Settings

    settings = Settings(
        host=host,
        port=port,
        token=token,
        hosts=tuple(allow_host or ()),
        workers=workers,
        max_batch=max_batch,
        max_upload=parse_size(max_upload, "--max-upload"),
        max_queue=max_queue,
    )
    listening = listen(settings)
    with_log()  # before the model and the labels are read, which may have something to say
    answering = None if model is None else open_engine(model, engine, backbone, device, settings.threads)
    make = partial(_desk, model, answering, settings, backbone, device, labels)
    exported = answering is not None and answering.name == "onnx"
    if labels is not None and exported and not find_spec("torch"):
        raise BayescalError("--labels: the page that keeps them needs torch beside an exported model")
    desk = make() if not exported else LaterDesk(make) if find_spec("torch") else None
    what = "bayescal, without a model yet," if model is None else near(model)
    app = create_app(answering, settings, desk)
    run(app, settings, listening, lambda at: tell(f"{what} answers at {at} (Ctrl-C ends it)"))


def _desk(
    model: Path | None,
    answering: "Engine | None",
    settings: "Settings",
    backbone: str | None,
    device: str,
    labels: Path | None,
) -> "Desk":
    """What the page works on; needs torch."""
    from bayescal.end_to_end import load_model
    from bayescal.export.reading import ExportedModel
    from bayescal.serving.desk import Desk
    from bayescal.serving.exported_predictor import ExportedPredictor
    from bayescal.serving.torch_engine import TorchEngine

    desk = Desk(
        lambda folder: load_model(folder, backbone, device),
        local=settings.on_loopback,
        labels=None if labels is None else labels.absolute(),
        threads=settings.threads,
    )
    if model is not None and isinstance(answering, TorchEngine):
        desk.open(model.absolute(), answering.predictor)
    if model is not None and isinstance(answering, ExportedModel):
        desk.open(model.absolute(), ExportedPredictor(answering))
    return desk


def parse_size(text: str, option: str) -> int:
    """Bytes: "20MB" → 20,971,520."""
    from bayescal.errors import BayescalError

    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:I?B)?", text.strip().upper())
    if found is None or not (size := int(float(found[1]) * _UNITS[found[2]])):
        raise BayescalError(f"{option} {text}: expected a size such as 20MB or 512KB")
    return size
