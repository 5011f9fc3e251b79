"""`export_model`: a trained classifier → a folder with an ONNX graph."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from bayescal.errors import BayescalError
from bayescal.export.folder import PRECISIONS, labels, web_files, write_folder
from bayescal.export.reading import ANSWERS, MODEL

if TYPE_CHECKING:
    from bayescal.estimator.base_predictor import BasePredictor
    from bayescal.export.check import Checked, Sample

NEEDED = ("onnx", "onnxruntime", "onnxscript")


def export_model(
    predictor: "BasePredictor",
    path: str | Path,
    precision: str = "float32",
    *,
    sample: "Sample | None" = None,
    web: str | Path | None = None,
    progress: bool = False,
) -> "Checked | None":
    """Write `predictor` as an ONNX graph with what belongs to it (`export.folder`), in place of a folder that is there.

    On the images of `sample` the graph is compared with the model before anything is written, and one that is not as
    good as it has to be is an error; int8 needs them, because some of them set its scales. `web`: the npm package
    onnxruntime-web, whose program is put beside the page.
    """
    check_request(precision, sample is not None, web)
    from bayescal.export.answering import check_exportable
    from bayescal.export.check import checking
    from bayescal.export.graph import answer_graph, checked, image_graph, joined
    from bayescal.export.half import half_weights

    check_exportable(predictor)
    tower, answers = image_graph(predictor), answer_graph(predictor)
    if precision == "int8" and sample is not None:
        from bayescal.export.int8 import quantised

        calibration, sample = sample.calibration()
        tower = quantised(tower, calibration.pixels)
    graphs = {MODEL: joined(tower, answers, show=True), ANSWERS: answers}
    files = {name: checked(one if precision == "float32" else half_weights(one)) for name, one in graphs.items()}
    found = None if sample is None else checking(predictor, sample, precision, progress)(files[MODEL])
    about = labels(predictor, precision, files)
    if found is not None:
        about["checked"] = found.as_json()
    write_folder(Path(path), files, about, None if web is None else Path(web))
    return found


def check_request(precision: str, has_images: bool, web: str | Path | None = None) -> None:
    """Refuse, before any work is done, what cannot be exported here."""
    if precision not in PRECISIONS:
        raise BayescalError(f"precision {precision!r}: expected {', '.join(PRECISIONS)}")
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise BayescalError(f"export needs the package {missing[0]}: pip install 'bayescal[export]'")
    if precision == "int8" and not has_images:
        raise BayescalError(
            "--precision int8 needs --check FOLDER: labelled images like those it will see. Some of them set its "
            "scales, the others show what it costs"
        )
    if web is not None:
        web_files(Path(web))
