"""The commands, under one name."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bayescal import __version__
from bayescal.cli.add import add
from bayescal.cli.backbones import backbones
from bayescal.cli.bench import bench
from bayescal.cli.data import data_app
from bayescal.cli.demo import demo
from bayescal.cli.evaluate import evaluate
from bayescal.cli.export import export
from bayescal.cli.failures import reported
from bayescal.cli.fit import fit
from bayescal.cli.methods import methods
from bayescal.cli.options import examples
from bayescal.cli.predict import predict
from bayescal.cli.records import records
from bayescal.cli.report import report
from bayescal.cli.serve import serve
from bayescal.cli.suggest import suggest


class _Group(TyperGroup):
    """Every command runs inside `reported`: the one place where errors become messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        with reported(ctx):
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "bayescal demo                          see what it is for, without any data",
        "bayescal fit photos -o model           learn from photos/ENVIRONMENT/CLASS/*.jpg",
        "bayescal predict model new/*.jpg       what is in these images?",
        "bayescal evaluate model more_photos    how often is it right, and where not?",
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"bayescal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Few-shot image classifiers that hold up in environments they have never seen, and say when they are unsure."""


def _add(command: Callable[..., None], *lines: str) -> None:
    # Help text is wrapped to the reader's screen, not where the source wraps.
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    text = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    app.command(help=text, epilog=examples(*lines))(command)


_add(
    fit,
    "bayescal fit photos -o model",
    "bayescal fit photos -o model --shots 16 --leave-out sketch",
    "bayescal fit images.csv -o model --method coop --set epochs=50 --quiet",
    'bayescal fit photos -o model --backbone "RN50:openai" --trials 20 --force',
)
_add(
    predict,
    "bayescal predict model new/*.jpg",
    "bayescal predict model new_photos -o answers.csv",
    "find . -name '*.png' | bayescal predict model - --json",
)
_add(
    evaluate,
    "bayescal evaluate model photos --only sketch",
    "bayescal evaluate model images.csv --split test -o report",
    "bayescal evaluate model photos --json > metrics.json",
)
_add(
    serve,
    "bayescal serve model",
    "curl -F images=@photo.jpg http://127.0.0.1:8000/v1/predict",
    "BAYESCAL_TOKEN=$(openssl rand -hex 16) bayescal serve model --host 0.0.0.0",
)
_add(
    export,
    "bayescal export model -o exported",
    "bayescal export model -o exported --check photos --precision int8",
    "bayescal export model -o exported --web onnxruntime-web",
)
_add(
    suggest,
    "bayescal suggest model new_photos -n 20",
    "bayescal suggest model new_photos -o to-label.csv -o to-label.png",
)
_add(
    add,
    "bayescal add model to-label.csv -o model2",
    "bayescal add model more_photos -o model2 --environment warehouse",
)
_add(
    report,
    "bayescal report",
    "bayescal report my-results -o results.html",
    "bayescal report --format latex",
    "bayescal report --format all -o to-send",
)
_add(methods, "bayescal methods")
_add(backbones, "bayescal backbones", "bayescal backbones --all")
_add(
    bench,
    "bayescal bench main --data pacs=PACS --quick",
    "bayescal bench main --data FOLDER --datasets pacs,ccd --dry-run",
    'bayescal bench all --data FOLDER --backbone "RN50:openai" --device cuda',
)
_add(
    records,
    "bayescal records",
    "bayescal records --where dataset=pacs --where variant=bayes-cal -o runs.csv",
)
_add(demo, "bayescal demo", "bayescal demo -o quick-look --seeds 1")
app.add_typer(data_app, name="data")
