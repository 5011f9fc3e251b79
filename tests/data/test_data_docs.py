"""The examples in the documentation of the data run as they are printed."""

import re
from pathlib import Path

from bayescal.data import read_image, read_manifest, to_words
from bayescal.data.datasets import dataset_names, get_dataset
from bayescal.data.layout import Layout, read_labels

DOCS = Path(__file__).parents[2] / "docs"


def test_the_worked_example_of_a_dataset_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "adding-a-dataset.md").read_text(encoding="utf-8"), re.S)
    names = {}
    for block in blocks:
        exec(compile(block, "adding-a-dataset.md", "exec"), names)
    assert "16 images to train on, 16 to validate on." in capsys.readouterr().out
    manifest = names["manifest"]
    assert manifest.environment_words == ("dark paper", "white paper", "yellow paper")
    assert set(manifest.splits[manifest.environment_ids == 0]) == {"test"}
    assert read_image(manifest.paths[0]).size == (64, 64)
    assert names["make_shapes"]("shapes") == manifest
    assert names["manifest_by_name"].environment_words == ("black paper", "white paper", "yellow paper")
    assert [fold.name for fold in names["SHAPES"].folds(manifest)] == list(manifest.environments)


def test_the_table_of_names_is_true():
    text = (DOCS / "data-layout.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \|$", text.partition("## Names are words")[2], re.M)
    assert len(rows) == 5
    for name, words in rows:
        assert to_words(name) == words


def test_the_table_of_layouts_is_true():
    text = (DOCS / "data-layout.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \| `--layout (\S+)( --class-from-name)?`", text, re.M)
    assert len(rows) == 7
    for name, layout, from_name in rows:
        labels = read_labels("data", [name], Layout.parse(layout, bool(from_name)))
        assert labels.classes == ["airport" if from_name else "dog"]
        assert labels.environments[0] in ("photo", "rome") or "environment" not in layout


def test_the_examples_of_a_csv_and_a_json_file_are_read(tmp_path):
    text = (DOCS / "data-layout.md").read_text(encoding="utf-8")
    (tmp_path / "images").mkdir()
    for name in ("1.jpg", "2.jpg", "4.png"):
        (tmp_path / "images" / name).touch()
    for start, suffix in ((r"path,class,", ".csv"), (r"\{\n", ".json")):
        block = re.search(rf"(?:^    {start}.*\n?)(?:^    .*\n)*", text, re.M).group()
        (tmp_path / f"example{suffix}").write_text(re.sub(r"^    ", "", block, flags=re.M), encoding="utf-8")
    table = read_manifest(tmp_path / "example.csv")
    assert table.splits.tolist() == ["train", "test", "train"]
    listing = read_manifest(tmp_path / "example.json")
    assert listing.class_words == ("dog", "horse")
    assert listing.environment_words == ("night camera",)


def test_the_table_of_data_sets_is_true():
    text = (DOCS / "datasets.md").read_text(encoding="utf-8")
    rows = {
        cells[0].strip("`"): cells
        for cells in re.findall(r"^\| (`[a-z0-9-]+`) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|", text, re.M)
    }
    assert list(rows) == dataset_names()
    for name, (_, shift, classes, _, images) in rows.items():
        dataset = get_dataset(name)
        assert (shift, int(classes)) == (dataset.shift, len(dataset.class_words))
        assert dataset.images is None or images == f"{dataset.images:,}"
        assert f"{dataset.shots} / {dataset.val_shots}" in next(
            line for line in text.splitlines() if f"| `{name}`" in line
        )
