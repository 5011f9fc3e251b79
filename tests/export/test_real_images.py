"""Photographs, drawings and sketches as they are: the exported model says what the model says.

`python -m speed.export` does the same in every precision, with a model of `auto` (`speed/results/export-SET-cpu.json`).
"""

import numpy as np
import pytest

from bayescal.data.file_tree import find_images
from bayescal.data.images import read_image
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.export.check import Sample, compare
from bayescal.export.reading import MODEL, ExportedModel

pytestmark = [pytest.mark.data, pytest.mark.xdist_group("exported")]
IMAGES = 500


@pytest.fixture(scope="module")
def paths(shared_data):
    found = find_images(shared_data / "pacs")
    return found[:: len(found) // IMAGES][:IMAGES]


def test_the_same_answers(paths, model, exported):
    reader, predictor = ExportedModel(exported), BasePredictor.load(model)
    sample = Sample(np.stack([reader.pixels(read_image(path)) for path in paths]), np.zeros(IMAGES, int))
    measured = compare(predictor, (exported / MODEL).read_bytes(), sample)
    assert (measured.images, measured.same_class) == (IMAGES, 1.0)
    assert measured.largest_difference < 1e-4


def test_the_graph_resizes_as_pillow_does(paths, exported):
    model = ExportedModel(exported)
    for path in paths[:8]:
        image = read_image(path)
        small, whole = (model.predict_pixels(pixels[None]) for pixels in (model.pixels(image), np.asarray(image)))
        assert small.probabilities == pytest.approx(whole.probabilities, abs=1e-6)
