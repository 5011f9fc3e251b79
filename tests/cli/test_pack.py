"""`bayescal data pack`: from images to one file."""

import pytest
import torch

from bayescal.benchmark.bundle import load_bundle
from benches import SEEDS, short_trainings
from command_line import left_in, refused, run

pytestmark = pytest.mark.xdist_group("bench")


def pack(*arguments):
    with short_trainings():
        return run("data", "pack", *arguments)


def test_a_packed_data_set_is_the_one_that_was_given(pictures, bundle, tmp_path):
    path = tmp_path / "new" / "mine.bundle"
    options = ("--seeds", "1,2", "--shots", 3, "--val-shots", 2)
    result = pack("pictures", "--from", pictures, "-o", path, *options, "--text", "a drawing of a {}.")
    assert result.code == 0, result.err
    assert "63 images of pictures" in result.err
    ours, theirs = load_bundle(path), load_bundle(bundle)
    assert torch.allclose(ours.problem.features, theirs.problem.features, atol=1e-5)
    for fold, other in zip(ours.folds, theirs.folds, strict=True):
        assert [ours.splits(fold, s).digest for s in SEEDS] == [theirs.splits(other, s).digest for s in SEEDS]
    assert ours.problem.tokenize("a drawing of a dog.")
    refused(pack("pictures", "--from", pictures, "-o", path, *options), "exists already", "--force")
    assert pack("pictures", "--from", pictures, "-o", path, *options, "--force").code == 0
    assert left_in(path.parent) == ["mine.bundle"]


@pytest.mark.parametrize(
    ("path", "output", "said"),
    [("nowhere", "x.bundle", "there is no such folder or file"), (".", "x.zip", "ends in .bundle")],
)
def test_mistakes_are_said(tmp_path, monkeypatch, path, output, said):
    monkeypatch.chdir(tmp_path)
    refused(pack("mine", "--from", path, "-o", output), said)
    assert left_in(tmp_path) == []


def test_it_is_listed_and_explained():
    assert " pack " in run("data", "--help").out
    result = run("data", "pack", "--help")
    assert "bayescal data pack pacs --from PACS -o pacs.bundle" in result.out
