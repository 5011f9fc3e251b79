"""`bayescal bench`: what it takes, what it prints, what it refuses, and that a first look is part of the whole."""

import zipfile

import pytest
import torch

from bayescal.benchmark.store import Store, sqlite_url
from bayescal.cli.options import parse_precision
from benches import bench_command, short_trainings
from command_line import left_in, make_shapes, refused, run

pytestmark = pytest.mark.xdist_group("bench")


def bench(*arguments):
    with short_trainings():
        return run("bench", *arguments)


def on(bundle, output, *more):
    """A quick bench on the packed pictures, which train for three epochs."""
    return bench("main", "--data", bundle, "-o", output, "--quiet", *more)


def records(output):
    return {record.key: record for record in Store(sqlite_url(output)).find()}


def test_a_first_look_is_part_of_the_whole(bundle, tmp_path):
    first = on(bundle, tmp_path, "--quick", "--methods", "cal-lv")
    assert first.code == 0, first.err
    few = records(tmp_path)
    assert len(few) == 3 * 3  # trials × folds, of one seed
    whole = on(bundle, tmp_path, "--methods", "cal-lv", "--trials", 4, "--seeds", "1,2")
    assert whole.code == 0, whole.err
    many = records(tmp_path)
    assert len(many) == 4 * 3 * 2
    assert {key: many[key] for key in few} == few


def test_a_dry_run_says_what_there_is_to_do_and_trains_nothing(bundle, tmp_path):
    options = ("--methods", "clip,cal-lv", "--trials", 2, "--seeds", "1,2")
    result = on(bundle, tmp_path, *options, "--dry-run")
    assert result.code == 0, result.err
    lines = [line.split() for line in result.out.splitlines() if line.strip()]
    assert lines[0] == ["experiment", "data", "set", "method", "runs", "to", "do", "about"]
    assert lines[2][:6] == ["main", "pictures", "CLIP", "zero-shot", "6", "6"]
    assert lines[3][:6] == ["main", "pictures", "CAL", "(LV)", "12", "12"]
    assert result.out.splitlines()[-1].startswith("In all about ")
    assert result.out.endswith("on cpu. Nothing was trained.\n")
    assert records(tmp_path) == {}
    assert "sections" not in left_in(tmp_path)
    assert on(bundle, tmp_path, "--methods", "cal-lv", "--trials", 1, "--seeds", "1,2").code == 0
    again = on(bundle, tmp_path, *options, "--dry-run")
    assert again.out.splitlines()[-3].split()[:6] == ["main", "pictures", "CAL", "(LV)", "12", "6"]


def test_precision_of_training(bundle, tmp_path):
    result = on(bundle, tmp_path, "--methods", "coop", "--trials", 1, "--seeds", "1", "--precision", "bfloat16")
    assert result.code == 0, result.err
    assert {record.backbone.precision for record in records(tmp_path).values()} == {"bfloat16"}
    wrong = on(bundle, tmp_path, "--precision", "half")
    assert wrong.code == 2
    assert "--precision half: expected auto, float32, bfloat16, float16" in wrong.err


@pytest.mark.parametrize(("text", "device", "expected"), [
    ("auto", "cpu", None), ("auto", "cuda:1", torch.float16),
    ("float32", "cuda", None), ("float16", "cpu", torch.float16),
])  # fmt: skip
def test_automatic_precision(text, device, expected):
    assert parse_precision(text, device) == expected


def test_a_dry_run_leaves_the_tpe_sampler_as_it_was(bundle, tmp_path):
    import optuna

    result = on(bundle, tmp_path, "--methods", "cal-lv", "--trials", 8, "--seeds", "1", "--sampler", "tpe", "--dry-run")
    assert result.code == 0, result.err
    assert " 24 " in result.out
    (study,) = optuna.get_all_study_summaries(sqlite_url(tmp_path))
    assert study.n_trials <= 1  # the one that the time was taken with


def test_another_database_may_hold_search_and_records(bundle, tmp_path):
    url = f"sqlite:///{tmp_path / 'elsewhere' / 'shared.db'}"
    result = on(bundle, tmp_path / "out", "--methods", "cal-lv", "--trials", 2, "--seeds", "1", "--storage", url)
    assert result.code == 0, result.err
    assert left_in(tmp_path / "out") == ["checkpoints", "sections"]
    assert len(list(Store(url).find())) == 6
    shown = run("records", "--storage", url)
    assert shown.code == 0, shown.err
    assert shown.out.endswith("6 records\n")


def test_too_few_images_are_noted_in_the_section_and_on_the_screen(pictures, tmp_path):
    from bayescal.report import read_sections

    command = bench_command("main", pictures, tmp_path / "out", "--methods", "clip", "--shots", 13, "--val-shots", 2)
    with short_trainings():
        result = run(*command)
    assert result.code == 0, result.err
    assert "Note: pictures, cartoon, seed 1: dog: too few images in photo, sketch" in result.err
    (section,) = read_sections(tmp_path / "out")
    assert len(section.notes) == 1


def test_data_are_found_by_name_however_it_is_spelled(tmp_path):
    from bayescal.benchmark.sources import find_paths

    for name in ("PACS", "Office_Home", "mine"):
        (tmp_path / name).mkdir()
    assert find_paths([str(tmp_path)]) == {"pacs": tmp_path / "PACS", "office-home": tmp_path / "Office_Home"}
    assert find_paths([f"OfficeHome={tmp_path / 'mine'}", f"my own={tmp_path / 'mine'}"]) == {
        "office-home": tmp_path / "mine", "my own": tmp_path / "mine",
    }  # fmt: skip


@pytest.fixture
def turned(tmp_path):
    """class/environment/image, in an archive: the dry run of a bench reads it and trains nothing."""
    folder = make_shapes(tmp_path / "turned", 3, environments=("photo", "sketch", "cartoon"))
    archive = tmp_path / "turned.zip"
    with zipfile.ZipFile(archive, "w") as content:
        for file in folder.rglob("*.png"):
            environment, name, image = file.relative_to(folder).parts
            content.write(file, f"{name}/{environment}/{image}")
    return archive


def test_data_of_ones_own_are_read_as_the_options_say(turned, tmp_path):
    from bayescal import Bench
    from bayescal.data import Reading

    some = ("--methods", "clip", "--quick", "--shots", 1, "--val-shots", 1, "--dry-run", "-o", tmp_path / "out")
    result = bench("main", "--data", f"mine={turned}", "--layout", "class/environment", *some)
    assert result.code == 0, result.err
    assert "read as layout class/environment/image: 2 classes (dog, house), 3 environments" in result.err
    (line,) = [line.split() for line in result.out.splitlines() if line.split()[:1] == ["main"]]
    assert line[:6] == ["main", "mine", "CLIP", "zero-shot", "3", "3"]  # a run for each environment
    options = {"shots": 1, "val_shots": 1, "methods": ["clip"], "quick": True, "output": tmp_path / "out"}
    opened = Bench.open({"mine": turned}, reading=Reading("class/environment"), **options)
    assert opened.sources.dataset("mine").class_words.keys() == {"dog", "house"}
    assert "--layout class/environment" in opened.command("main")


def test_options_of_reading_are_for_data_of_ones_own(bundle, turned, tmp_path):
    refused(on(bundle, tmp_path / "out", "--layout", "class"), "--layout is for data sets under names of your own")
    named = bench("main", "--data", "pacs=s3://bucket/PACS", "-o", tmp_path / "out")
    refused(named, "PACS is read from a disk")
    refused(bench("main", "--data", turned, "-o", tmp_path / "out"), "expected NAME=PATH")
    refused(bench("main", "--data", f"mine={tmp_path}/shard-{{0..3}}.tar"), "shard-0.tar")


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mian"], ["no experiment 'mian'", "Did you mean 'main'?", "all"]),
        (["main", "--methods", "coop,bayes-call"], ["bayes-cal"]),
        (["main", "--methods", ","], ["--methods", "separated by commas"]),
        (["main", "--datasets", "pacs"], ["no path is known for the data set 'pacs'", "--data pacs=PATH"]),
        (["main", "--datasets", "zoo"], ["'zoo'", "Known here: pictures"]),
        (["main", "--seeds", "one"], ["--seeds one"]),
        (["main", "--sampler", "grid"], ["no sampler 'grid'", "random, tpe"]),
        (["main", "--backbone", "RN50:openai"], ["packed with the backbone mini 2"]),
        (["main", "--storage", "nonsense"], ["cannot be opened"]),
        (["instances", "--methods", "erm"], ["none of --methods"]),
        (["base-to-new"], ["names base and new classes"]),
    ],
)
def test_mistakes_are_answered_with_exit_code_2(bundle, tmp_path, arguments, said):
    result = bench(*arguments, "--data", bundle, "-o", tmp_path / "out", "--trials", 1)
    refused(result, *said)
    assert "sections" not in (left_in(tmp_path / "out") if (tmp_path / "out").exists() else [])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "no data: say where"),
        (["--data", "pacs=nowhere"], "there is no folder or file nowhere"),
        (["--data", "nowhere"], "expected NAME=PATH or a folder"),
        (["--data", "."], "holds none of the named data sets"),
    ],
)
def test_data_that_are_not_there_are_said(tmp_path, monkeypatch, data, said):
    monkeypatch.chdir(tmp_path)
    refused(bench("main", *data), said)
    assert left_in(tmp_path) == []


def test_a_damaged_bundle_is_named(bundle, tmp_path):
    (tmp_path / "half.bundle").write_bytes(bundle.read_bytes()[:-5000])
    refused(bench("main", "--data", tmp_path / "half.bundle", "-o", tmp_path / "out"), "half.bundle", "pack it again")


@pytest.mark.parametrize("experiment", ["main", "all"])
def test_an_unreadable_image_stops_the_bench_before_it_begins(tmp_path, experiment):
    folder = make_shapes(tmp_path / "shapes", 4)
    (folder / "photo" / "dog" / "1.png").write_bytes(b"nothing")
    result = bench(experiment, "--data", f"shapes={folder}", "-o", tmp_path / "out", "--shots", 2, "--val-shots", 1)
    refused(result, "photo/dog/1.png", "bayescal data check")
    assert "left out" not in result.err
