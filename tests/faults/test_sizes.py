"""What must not grow: memory with the square of the classes."""

import os
import resource
import sys
from pathlib import Path

import pytest
import torch

from bayescal.evaluation.scoring import evaluate
from bayescal.report.plots import confusion_matrix_figure

ROOM = 300 * 2**20


def measure_and_draw(n_classes: int) -> None:
    names, last = [f"class {i}" for i in range(n_classes)], n_classes - 1
    probs, labels = torch.zeros(3, n_classes), torch.tensor([7, last, 7])
    probs[0, 7] = probs[1, 3] = probs[2, 7] = 1.0
    found = evaluate(probs, labels, labels * 0, threshold=0.5, classes=names, environments=["here"])
    assert found.to_json()["confusion_matrix"]["entries"] == [[7, 7, 2], [last, 3, 1]]
    figure = confusion_matrix_figure(found.sparse_confusion_matrix(), names)
    assert f"class {last}" in [label.get_text() for label in figure.axes[0].get_yticklabels()]


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a fork")
def test_memory_of_an_evaluation_does_not_grow_with_the_square_of_the_classes():
    """Of 345 classes it took 3 GB; a matrix of 20,000 classes takes as much for its zeros alone."""
    measure_and_draw(600)  # what is loaded late is loaded by now
    if (child := os.fork()) == 0:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM,) * 2)
        try:
            measure_and_draw(20_000)
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
