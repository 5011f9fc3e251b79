"""`bayescal data pack`: from images to one file."""

import pytest
import torch

from bayescal.benchmark.bundle import load_bundle
from benches import SEEDS, short_trainings
from command_line import left_in, refused, run, shape

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


def test_it_reads_what_fit_reads(tmp_path):
    """A list with other headers and separators, of images whose class is in the name."""
    for environment in ("day", "night"):
        (tmp_path / "flat" / environment).mkdir(parents=True)
        for name in ("dog", "house"):
            for number in range(3):
                shape(name, environment, number).save(tmp_path / "flat" / environment / f"{name}_{number}.png")
    options = ("--seeds", 1, "--shots", 1, "--val-shots", 1)
    named = pack("mine", "--from", tmp_path / "flat", "--class-from-name", "-o", tmp_path / "a.bundle", *options)
    assert named.code == 0, named.err
    assert "read as layout environment/class_number.jpg: 2 classes (dog, house), 2 environments" in named.err
    files = sorted((tmp_path / "flat").rglob("*.png"))
    rows = [f"{file};{file.name.split('_')[0]};{file.parent.name}" for file in files]
    (tmp_path / "list.csv").write_text("\n".join(["Datei;Klasse;Ort", *rows]), encoding="utf-16")
    columns = ("--columns", "path=Datei,class=Klasse,environment=Ort")
    listed = pack("mine", "--from", tmp_path / "list.csv", *columns, "-o", tmp_path / "b.bundle", *options)
    assert listed.code == 0, listed.err
    one, two = (load_bundle(tmp_path / name) for name in ("a.bundle", "b.bundle"))
    assert torch.equal(one.problem.features, two.problem.features)
    assert one.dataset.class_words == two.dataset.class_words
    refused(pack("pacs", "--from", tmp_path, "--layout", "class", "-o", tmp_path / "c.bundle"), "names of your own")


@pytest.mark.parametrize(
    ("path", "output", "said"),
    [("nowhere", "x.bundle", "there is no folder or file nowhere"), (".", "x.zip", "ends in .bundle")],
)
def test_mistakes_are_said(tmp_path, monkeypatch, path, output, said):
    monkeypatch.chdir(tmp_path)
    refused(pack("mine", "--from", path, "-o", output), said)
    assert left_in(tmp_path) == []


def test_it_is_listed_and_explained():
    assert " pack " in run("data", "--help").out
    result = run("data", "pack", "--help")
    assert "bayescal data pack pacs --from PACS -o pacs.bundle" in result.out
