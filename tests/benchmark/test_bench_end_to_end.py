"""`bench main --end-to-end`: whole image models as rows of their own, and published rows called what they are."""

import numpy as np
import pytest

from bayescal.benchmark import end_to_end, runner
from bayescal.benchmark.end_to_end import EndToEnd
from bayescal.benchmark.experiments import main
from bayescal.benchmark.results import Value
from bayescal.end_to_end import algorithm_names
from bayescal.errors import BayescalError, DataError
from bayescal.report.latex import table_latex
from bayescal.report.markdown import table_markdown
from benches import bench_command, finished, open_bench
from command_line import run

pytestmark = pytest.mark.xdist_group("bench")
TINY = {"image_size": 32, "epochs": 2, "batch_size": 12}
HOW = EndToEnd("test_resnet", options=TINY)
OPTIONS = {"methods": ("clip", "erm", "groupdro"), "trials": 1, "seeds": (1,), "end_to_end": HOW}


@pytest.fixture(scope="module")
def bench(prepared, few_samples, tmp_path_factory):
    opened = open_bench({"pictures": prepared}, tmp_path_factory.mktemp("whole"), **OPTIONS)
    opened.train(main.searches(opened))
    return opened


def test_whole_models_are_rows_of_their_own(bench):
    section = main.section(bench)
    for table in section.tables:
        labels = [row.label for row in table.rows]
        assert labels == ["CLIP zero-shot", "ERM", "GroupDRO", "ERM, end to end", "GroupDRO, end to end"], table.key
        assert [row.group for row in table.rows[3:]] == [
            "end to end, on all training images: test_resnet from random weights"
        ] * 2
        assert [row.ranked for row in table.rows] == [True] * 3 + [False] * 2
    accuracy = section.tables[0]
    records = bench.records(main.whole_search(bench, "pictures", "erm"))
    assert accuracy.rows[3].cells["pictures"].mean == pytest.approx(
        np.mean([record.scores["val"].accuracy for record in records])
    )
    assert "not few-shot" in accuracy.note


def test_a_record_of_a_whole_model_has_learned_from_all_images(bench, prepared):
    search = main.whole_search(bench, "pictures", "groupdro")
    records = bench.records(search)
    assert len(records) == 3
    for record in records:
        assert record.split.train + record.split.eval_sets["val"] == 42  # all of two environments
        assert len(record.curves["val"]) == len(record.curves["test_val"]) == 2
        assert record.scores["val"].images == 21
        assert record.scores["last"].images == record.split.eval_sets["test_rest"]
        assert record.scores["last"].eval_set == "test_rest"
        assert (record.backbone.name, record.shots, record.config["epochs"]) == ("test_resnet", 0, 2)
    (planned, *_) = bench._plan(search, bench.study(search).look(1))
    train, val = planned.images
    tested = prepared.splits(planned.fold, 1)
    assert not set(train) & set(val)
    assert not {*train, *val} & {*tested.eval_sets["test"]}


def test_they_are_trained_once(bench, prepared, monkeypatch):
    monkeypatch.setattr(end_to_end.EndToEndRun, "train", lambda *_: pytest.fail("trains"))
    monkeypatch.setattr(runner, "_train", lambda *_: pytest.fail("trains"))
    again = open_bench({"pictures": prepared}, bench.output, **OPTIONS)
    again.train(main.searches(again))
    assert main.section(again).tables == main.section(bench).tables
    assert bench.missing(main.whole_search(bench, "pictures", "erm")) == (3, 0)


def test_which_algorithms(prepared, tmp_path):
    assert end_to_end.algorithms(None, quick=False) == algorithm_names()
    assert end_to_end.algorithms(None, quick=True) == ["erm"]
    only = open_bench({"pictures": prepared}, tmp_path, **OPTIONS | {"methods": ("clip", "coop")})
    with pytest.raises(BayescalError, match="none of --methods trains an image model; these do: erm"):
        main.searches(only)


def test_a_packed_data_set_has_no_pixels(prepared, tmp_path, bundle):
    from bayescal.benchmark.bundle import load_bundle

    packed = open_bench({"pictures": load_bundle(bundle)}, tmp_path, **OPTIONS)
    with pytest.raises(DataError, match="holds features alone"):
        packed.train([main.whole_search(packed, "pictures", "erm")])


def test_published_networks_are_not_beside_few_shot_methods(prepared, tmp_path, few_samples):
    """RSC's 82.8 % on PACS is a ResNet-18 trained on all images; it stood in the row of RSC on frozen features."""
    options = {"methods": ("clip", "rsc"), "trials": 1, "seeds": (1,), "backbone": "RN50:openai"}
    table = finished(open_bench({"pacs": prepared}, tmp_path, **options), main).tables[0]
    rows = {row.label: row for row in table.rows}
    assert "pacs/paper" not in rows["RSC"].cells
    whole = rows["RSC, end to end"]
    assert whole.cells == {"pacs/paper": Value(pytest.approx(0.8282))}
    assert whole.group == "end to end, on all training images"
    assert [label for label in rows if "end to end" in label] == [
        "RSC, end to end", "VREx, end to end", "MMD, end to end",
    ]  # fmt: skip
    for text in (table_markdown(table), table_latex(table)):
        assert "end to end, on all training images" in text
    assert "OoD-Bench's (ResNet-18), as published" in table.note
    mini = finished(open_bench({"pacs": prepared}, tmp_path, **options | {"backbone": "mini"}), main).tables[0]
    assert [row.label for row in mini.rows] == ["CLIP zero-shot", "RSC"]


def test_the_command(pictures, tmp_path):
    command = bench_command("main", pictures, tmp_path / "out", "--methods", "erm", "--seeds", "1", "--trials", 1)
    whole = ["--end-to-end", "--vision", "test_resnet", "--set", "image_size=32", "--set", "epochs=1"]
    result = run(*command, *whole, "--set", "batch_size=12", "--dry-run")
    assert result.code == 0, result.err
    assert "ERM, end to end" in result.out
    assert "unknown" in result.out
    result = run(*command, *whole, "--set", "batch_size=12")
    assert result.code == 0, result.err
    assert "end to end, on all training images: test_resnet" in result.out
    for words, said in (
        (["ablation", "--end-to-end"], "only `bench main`"),
        (["main", "--set", "epochs=1"], "--set belongs to --end-to-end"),
        (["main", "--end-to-end", "--vision", "resnet19"], "timm has no model"),
    ):
        result = run("bench", *words, "--data", f"pictures={pictures}", "-o", tmp_path / "no")
        assert result.code == 2
        assert said in " ".join(result.err.split())
