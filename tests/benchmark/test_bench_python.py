"""A bench from Python: opened in one call, tables as rows, and nothing trained by reading."""

import doctest
import re
from dataclasses import replace
from pathlib import Path

import pytest

import bayescal.benchmark.bench as module
from bayescal.benchmark import runner, sources
from bayescal.benchmark.bench import Bench, MissingRecordsError
from bayescal.benchmark.experiments import EXPERIMENTS, base_to_new, get_experiment, instances, main
from bayescal.benchmark.results import Column, Row, Table, Value
from bayescal.benchmark.searches import Search
from bayescal.benchmark.store import Store, sqlite_url
from bayescal.benchmark.variants import get_variant
from bayescal.errors import BayescalError, DataError
from bayescal.report import read_sections
from benches import open_bench, short_trainings, trained
from command_line import make_shapes, run

pytestmark = pytest.mark.xdist_group("bench")
DOCS = Path(__file__).parents[2] / "docs" / "experiments.md"


# --- the examples in the documentation -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shapes(tmp_path_factory, _own_cache) -> Path:
    """A folder with a folder `shapes` in it: enough images for sixteen shots."""
    folder = tmp_path_factory.mktemp("python")
    make_shapes(folder / "shapes", 20, ("dog", "house"), ("cartoon", "photo", "sketch"))
    return folder


def test_the_example_in_the_docs_runs(shapes, monkeypatch, capsys):
    monkeypatch.chdir(shapes)
    (block,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    assert len(block.strip().splitlines()) <= 10
    names: dict = {}
    with short_trainings():
        exec(compile(block, "experiments.md", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["CoOp", "Bayes-CAL"]
    assert names["rows"] == names["result"].tables["accuracy"].to_records()
    assert all(0 <= row["shapes"] <= 1 for row in names["rows"])
    (section,) = read_sections(shapes / "results")  # as `bayescal report results` finds it
    assert section == names["result"].section


def test_the_example_in_the_docstring_runs_and_trains_nothing_again(shapes, monkeypatch):
    monkeypatch.chdir(shapes)
    monkeypatch.setattr(runner, "_train", lambda *_: pytest.fail("trains again what is recorded"))
    (example,) = [
        found for found in doctest.DocTestFinder(recurse=False).find(Bench, "Bench", module=module) if found.examples
    ]
    report: list[str] = []
    with short_trainings():
        results = doctest.DocTestRunner().run(example, out=report.append)
    assert results.attempted == 4
    assert not results.failed, "".join(report)


# --- opening ---------------------------------------------------------------------------------------------------------


def test_a_quick_bench_is_the_beginning_of_the_whole(bundle, tmp_path):
    quick = Bench.open([str(bundle)], output=tmp_path, quick=True)
    assert (quick.options.trials, quick.options.seeds, quick.options.methods) == (3, (1,), None)
    whole = Bench.open({"pictures": bundle}, output=tmp_path, methods=["coop", "coop"], seeds=[4])
    assert (whole.options.trials, whole.options.seeds, whole.options.methods) == (20, (4,), ("coop",))
    assert whole.options.datasets == ("pictures",)


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        ({}, {}, r'data=\{"pacs": PATH\}'),
        ({"pacs": "nowhere"}, {}, r"data\['pacs'\]: there is no folder or file nowhere"),
        ({"pictures": None}, {"methods": ["bayes-call"]}, "bayes-cal"),
        ({"pictures": None}, {"datasets": ["zoo"]}, "'zoo'.*Known here: pictures"),
    ],
)
def test_mistakes_are_said_before_anything_is_made(bundle, tmp_path, data, options, said):
    given = {name: bundle if path is None else path for name, path in data.items()}
    with pytest.raises(BayescalError, match=said):
        Bench.open(given, output=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_what_is_known_about_a_data_set_does_not_need_its_features(pictures, bundle, tmp_path, monkeypatch):
    for name in ("prepare_dataset", "load_bundle"):
        monkeypatch.setattr(sources, name, lambda *_, **__: pytest.fail("asks for features"))
    bench = Bench.open({"mine": pictures, "pictures": bundle, "pacs": tmp_path}, output=tmp_path / "out")
    assert [bench.dataset(name).title for name in ("mine", "pictures", "pacs")] == ["mine", "pictures", "PACS"]
    assert bench.dataset("pictures").selection == "training-domain"
    assert bench.dataset("pacs").new_classes == ("house", "person")


# --- selection never trains ------------------------------------------------------------------------------------------


def test_a_missing_record_is_an_error_that_names_the_command(bundle, tmp_path, monkeypatch):
    bench = Bench.open({"pictures": bundle}, output=tmp_path / "out", trials=2, seeds=(1, 2), quick=True)
    search = Search("pictures", get_variant("coop"))
    monkeypatch.setattr(runner, "_train", lambda *_: pytest.fail("trains"))
    with pytest.raises(MissingRecordsError, match="CoOp on pictures: 12 of 12 runs have no record") as error:
        bench.records(search)
    command = re.search("`bayescal (.*?)`", str(error.value)).group(1).split()
    monkeypatch.undo()
    with short_trainings():
        result = run(*command)  # the very command that the message names
        assert result.code == 0, result.err
        assert len(bench.records(search)) == 12


def test_a_section_is_read_off_records_alone(prepared, tmp_path, monkeypatch):
    options = {"methods": ("clip", "coop"), "trials": 1, "seeds": (1,)}
    first = open_bench({"pictures": prepared}, tmp_path, **options)
    section = first.run("main").section
    monkeypatch.setattr(runner, "_train", lambda *_: pytest.fail("trains"))
    reader = open_bench({"pictures": prepared}, tmp_path, **options)  # has trained nothing itself
    again = main.section(reader)
    assert replace(again, made=section.made) == section
    more = open_bench({"pictures": prepared}, tmp_path, **options | {"methods": ("clip", "erm")})
    with pytest.raises(MissingRecordsError, match="ERM on pictures: 3 of 3 runs"):
        main.section(more)


def test_a_tpe_search_with_other_shots_is_another_search(prepared, tmp_path):
    """What came out with these shots says nothing of what to try with others; random trials are the same ones."""
    search, asked = Search("pictures", get_variant("irm")), {}
    for sampler in ("tpe", "random"):
        for shots in (2, 3):
            own = replace(prepared, shots=shots, _splits={})
            study = open_bench({"pictures": own}, tmp_path, sampler=sampler).study(search)
            trials = study.ask(12)
            for trial in trials:
                study.tell(trial.number, shots * trial.config["learning_rate"] * (-1) ** shots)
            asked[sampler, shots] = [trial.config for trial in study.ask(24)]
    assert asked["tpe", 2][12:] != asked["tpe", 3][12:]  # the first ones are random
    assert asked["random", 2] == asked["random", 3]


def test_a_missing_record_names_the_database_where_it_is_not_in_the_output_folder(prepared, tmp_path):
    bench = open_bench({"pictures": prepared}, tmp_path, methods=("coop",))
    elsewhere = replace(bench, store=Store(sqlite_url(tmp_path / "elsewhere")))
    search = Search("pictures", get_variant("coop"))
    with pytest.raises(MissingRecordsError, match="--storage sqlite:///"):
        elsewhere.records(search)
    with pytest.raises(MissingRecordsError) as error:
        bench.records(search)
    assert "--storage" not in str(error.value)


def test_a_tpe_search_that_is_not_finished_is_missing_the_rest(prepared, tmp_path):
    search, options = Search("pictures", get_variant("cal-lv")), {"sampler": "tpe", "seeds": (1,)}
    records = trained(open_bench({"pictures": prepared}, tmp_path, trials=5, **options), search)
    assert open_bench({"pictures": prepared}, tmp_path, trials=5, **options).records(search) == records
    with pytest.raises(MissingRecordsError, match="3 of 18 runs"):
        open_bench({"pictures": prepared}, tmp_path, trials=6, **options).records(search)


@pytest.mark.parametrize("experiment", [base_to_new, instances])
def test_the_command_of_a_search_with_a_purpose_is_its_experiments(prepared, tmp_path, experiment):
    named = replace(prepared, dataset=replace(prepared.dataset, base_classes=("dog", "house"), new_classes=("guitar",)))
    bench = open_bench({"pictures": named}, tmp_path, methods=("coop",))
    with pytest.raises(MissingRecordsError, match=f"`bayescal bench {experiment.EXPERIMENT.name} --data pictures="):
        bench.records(experiment.searches(bench)[0])


# --- experiments -----------------------------------------------------------------------------------------------------


def test_the_list_of_experiments_stands_once():
    """The table in the docs and the command's help follow it, and every one of them knows its name."""
    assert [get_experiment(name).name for name in EXPERIMENTS] == list(EXPERIMENTS)
    rows = re.findall(r"^\| `([a-z-]+)` \| .+ \| .+ \|$", DOCS.read_text(encoding="utf-8"), re.M)
    assert tuple(rows) == EXPERIMENTS
    shown = " ".join(run("bench", "--help").out.replace("│", " ").split())
    assert f"{', '.join(EXPERIMENTS)}, or all." in shown


def test_searches_are_asked_for_once(prepared, tmp_path):
    asked = []
    experiment = get_experiment("main")
    counted = replace(experiment, searches=lambda bench: asked.append(1) or experiment.searches(bench))
    open_bench({"pictures": prepared}, tmp_path, methods=("clip",), trials=1, seeds=(1,)).run(counted)
    assert asked == [1]


def test_the_command_that_repeats_a_bench_is_in_its_result(bundle, tmp_path):
    bench = Bench.open({"pictures": bundle}, output=tmp_path / "out", methods=["clip"], trials=1, seeds=[1], shots=2)
    section = bench.run("main").section
    words = section.command.split()
    assert words[:3] == ["bayescal", "bench", "main"]
    result = run(*words[1:], "--quiet")
    assert result.code == 0, result.err
    assert len(list(bench.store.find())) == 3  # trained by the first, read by the second
    (again,) = read_sections(tmp_path / "out")
    assert again.tables == section.tables


def test_a_table_is_rows_as_pandas_takes_them():
    columns = (Column("pacs", "PACS"), Column("why", "reason"), Column("seconds", "s", unit="s"))
    rows = (
        Row("CoOp", {"pacs": Value(0.9, 0.01, 3), "why": "a word"}, group="prompts"),
        Row("ERM", {"pacs": Value(None, why="no run finished"), "seconds": Value(2.0)}),
    )
    assert Table("t", "T", columns, rows).to_records() == [
        {"group": "prompts", "label": "CoOp", "pacs": 0.9, "pacs_error": 0.01, "why": "a word", "seconds": None},
        {"group": "", "label": "ERM", "pacs": None, "pacs_error": None, "why": None, "seconds": 2.0},
    ]


def test_an_unknown_experiment_is_answered_with_the_nearest(prepared, tmp_path):
    with pytest.raises(BayescalError, match="Did you mean 'main'"):
        open_bench({"pictures": prepared}, tmp_path).run("mian")
    with pytest.raises(DataError, match="names base and new classes"):
        open_bench({"pictures": prepared}, tmp_path).run("base-to-new")
