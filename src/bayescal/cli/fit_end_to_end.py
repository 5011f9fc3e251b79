"""`bayescal fit --end-to-end`: the same data, messages and model folder, another training."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bayescal.cli.fit import _predict_command, _print_found
from bayescal.cli.options import parse_settings
from bayescal.cli.screen import count, near, note, out, percent, shows_progress
from bayescal.cli.training_data import choose_training_data
from bayescal.data import read_manifest
from bayescal.end_to_end.algorithms import get_algorithm, space_of
from bayescal.end_to_end.fit import fit_end_to_end
from bayescal.end_to_end.vision import check_vision
from bayescal.errors import BayescalError

if TYPE_CHECKING:
    from bayescal.end_to_end import EndToEndPredictor


def fit_whole_model(
    data: Path,
    output: Path,
    method: str,
    settings: Sequence[str],
    leave_out: Sequence[str],
    *,
    foreign: Sequence[str],
    vision: str | None,
    weights: str | None,
    shots: int | None,
    val_shots: int | None,
    calibrate: bool,
    seed: int,
    device: str,
    force: bool,
    quiet: bool,
) -> None:
    """`foreign` are the options given that mean nothing here."""
    if vision is None:
        raise BayescalError("--end-to-end: say which model to train, for example --vision resnet50")
    if foreign:
        raise BayescalError(f"{foreign[0]} has no meaning with --end-to-end: leave it out")
    options = parse_settings(method, settings, space_of(get_algorithm(method)))
    check_vision(vision)
    chosen = choose_training_data(read_manifest(data), leave_out, shots, val_shots, seed)
    screen = out()
    if not quiet:
        _print_found(screen, chosen)
    _mention_gpu(device)
    with _checkpoints(output) as folder:
        predictor = fit_end_to_end(
            chosen.manifest,
            vision=vision,
            method=method,
            weights=weights,
            options=options,
            validation=chosen.validation,
            shots=shots,
            val_shots=val_shots,
            calibrate=calibrate,
            seed=seed,
            device=device,
            checkpoints=folder,
            verbose=shows_progress(quiet),
        )
        predictor.save(output, overwrite=force)
    if not quiet:
        _print_learned(screen, predictor, output)
        screen.print(f"\nTry it:\n  {_predict_command(output, chosen, None, device)}", soft_wrap=True)


def _mention_gpu(device: str) -> None:
    import torch

    if device == "cpu" and torch.cuda.is_available():
        note("this machine has a GPU, and training an image model on the CPU is slow: --device cuda uses it")


@contextmanager
def _checkpoints(model: Path) -> Iterator[Path]:
    """A folder beside the model in which training can be continued.

    Hours of training may lie in it: it goes when the model is done or when the data or options were wrong, and stays
    after anything else (a GPU out of memory, a full disk), to be continued.
    """
    folder = model.with_name(f".{model.name}.checkpoints")
    try:
        yield folder
    except BayescalError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _print_learned(screen, predictor: "EndToEndPredictor", output: Path) -> None:
    record = predictor.record
    start = "random weights" if record["weights"] is None else record["weights"]
    what = f"{predictor.method} on {predictor.backbone.name} from {start}, {record['precision']}"
    epochs = f"epoch {record['best_epoch']} of {len(record['curves']['total'])}"
    trained = f"Trained {count(record['parameters'], 'number')} on {count(record['train_images'], 'image')}"
    screen.print(f"{trained} in {record['seconds']:.1f} s ({what}; {epochs}).", soft_wrap=True)
    if record["validation_accuracy"] is not None:
        images = count(record["validation_images"], "image")
        screen.print(f"Validation accuracy: {percent(record['validation_accuracy'])} of {images}.")
        if predictor.threshold <= 1:
            screen.print(f'Threshold: {predictor.threshold:.3f}; answers with less confidence are called "unsure".')
        else:
            screen.print('Threshold: no validation image was answered correctly, so every answer is called "unsure".')
    screen.print(f"Saved in {near(output)}.", soft_wrap=True)
