"""`bayescal fit --end-to-end`: the same data, messages and model folder, another training."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bayescal.cli.fit_screen import checkpoint_folder, print_found, print_learned, print_next
from bayescal.cli.options import parse_settings
from bayescal.cli.screen import count, note, out, shows_progress
from bayescal.end_to_end.algorithms import get_algorithm, space_of
from bayescal.end_to_end.fit import fit_end_to_end
from bayescal.end_to_end.vision import check_vision
from bayescal.errors import BayescalError
from bayescal.estimator.training_data import choose_training_data

if TYPE_CHECKING:
    from bayescal.data import Manifest
    from bayescal.end_to_end import EndToEndPredictor


def fit_whole_model(
    manifest: "Manifest",
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
    chosen = choose_training_data(manifest, leave_out, shots, val_shots, seed)
    screen = out()
    if not quiet:
        print_found(screen, chosen)
    _mention_gpu(device)
    # Hours of training may lie in the folder: after a GPU out of memory or a full disk it stays, to be continued.
    with checkpoint_folder(output, goes_after=BayescalError) as folder:
        predictor = fit_end_to_end(
            chosen.manifest,
            vision=vision,
            method=method,
            weights=weights,
            options=options,
            validation=chosen.validation,
            contents=chosen.contents,
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
        print_learned(screen, _describe(predictor), predictor.record, predictor.threshold, output)
        print_next(screen, output, chosen, None, device, method)


def _mention_gpu(device: str) -> None:
    import torch

    if device == "cpu" and torch.cuda.is_available():
        note("this machine has a GPU, and training an image model on the CPU is slow: --device cuda uses it")


def _describe(predictor: "EndToEndPredictor") -> str:
    record = predictor.record
    start = "random weights" if record["weights"] is None else record["weights"]
    what = f"{predictor.method_name} on {predictor.backbone.name} from {start}, {record['precision']}"
    epochs = f"epoch {record['best_epoch']} of {len(record['curves']['total'])}"
    trained = f"Trained {count(record['parameters'], 'number')} on {count(record['train_images'], 'image')}"
    return f"{trained} in {record['seconds']:.1f} s ({what}; {epochs})."
