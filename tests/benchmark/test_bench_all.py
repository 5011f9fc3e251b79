"""Every experiment from image files to tables, figures and the report's page, as `bayescal bench all` runs them."""

import json
import shutil

import pytest

from bayescal.benchmark.experiments import EXPERIMENTS
from bayescal.benchmark.results import Value
from bayescal.benchmark.store import Store, sqlite_url
from bayescal.evaluation.selection import get_rule
from bayescal.report import read_sections
from benches import CLASSES, ENVIRONMENTS, EPOCHS, IMAGES
from command_line import run

pytestmark = pytest.mark.xdist_group("bench")
POSSIBLE = [name for name in EXPERIMENTS if name != "base-to-new"]


@pytest.fixture(scope="module")
def sections(bench_all):
    output, result = bench_all
    assert result.code == 0, result.err
    return {section.experiment: section for section in read_sections(output)}


@pytest.fixture(scope="module")
def records(bench_all):
    return list(Store(sqlite_url(bench_all[0])).find())


def table(section, key):
    return next(table for table in section.tables if table.key == key)


def row(table, label):
    return next(row for row in table.rows if row.label == label).cells


def test_every_experiment_is_run_but_the_one_the_data_do_not_allow(bench_all, sections):
    assert list(sections) == POSSIBLE
    assert "Note: base-to-new is left out: base-to-new needs a data set that names base and new" in bench_all[1].err
    assert bench_all[1].err.endswith("makes a page of it\n")


def test_tables_are_printed_with_room_between_them_and_fit_the_screen(bench_all, sections):
    shown = bench_all[1].out
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 100
    printed = [table.title for section in sections.values() for table in section.tables]
    assert len(printed) > 8
    at = -1
    for title in printed:
        at = next(i for i in range(at + 1, len(lines)) if lines[i].startswith(title))
        assert at == 0 or not lines[at - 1].strip()


def test_sections_are_strict_json_with_the_command_and_the_versions(bench_all):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    for path in (bench_all[0] / "sections").glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
        assert content["command"].startswith("bayescal bench all --data pictures=")
        assert {"bayescal", "torch", "python", "device", "backbone"} <= set(content["versions"])
        assert content["lead"]
        assert content["limits"].startswith("This was a quick look: 2 trials and seeds 1, 2.")


@pytest.mark.parametrize(("form", "file"), [("html", "report.html"), ("markdown", "report.md")])
def test_the_report_shows_every_section(bench_all, sections, tmp_path, form, file):
    shutil.copytree(bench_all[0] / "sections", tmp_path / "results" / "sections")
    result = run("report", tmp_path / "results", "--format", form)
    assert result.code == 0, result.err
    page = (tmp_path / "results" / file).read_text(encoding="utf-8")
    for section in sections.values():
        assert section.title in page
    assert "Bayes-CAL" in page


def test_no_run_was_trained_twice_for_two_experiments(records):
    assert len({record.key for record in records}) == len(records)
    plain = [r for r in records if r.variant == "bayes-cal" and not r.purpose]
    assert len(plain) == 2 * 3 * 2  # of main, ablation, adapters, epochs and wilcoxon alike


# --- numbers in tables are those of the records ----------------------------------------------------------------------


def mean_and_error(by_seed):
    mean = sum(by_seed) / len(by_seed)
    return mean, (sum((v - mean) ** 2 for v in by_seed) / (len(by_seed) - 1) / len(by_seed)) ** 0.5


@pytest.mark.parametrize(
    ("variant", "title"), [("coop", "CoOp"), ("bayes-cal", "Bayes-CAL"), ("clip", "CLIP zero-shot")]
)
@pytest.mark.parametrize("rule", ["training-domain", "test-domain"])
def test_accuracies_are_means_over_seeds_of_the_mean_over_folds(sections, records, variant, title, rule):
    mine = [r for r in records if r.variant == variant and not r.purpose]
    by_seed = []
    for seed in (1, 2):
        chosen = [r for r in get_rule(rule).choose(mine) if r.seed == seed]
        assert [r.fold for r in chosen] == list(ENVIRONMENTS)
        checkpoint = "val" if rule == "training-domain" else "last"
        by_seed.append(sum(r.scores[checkpoint].accuracy for r in chosen) / 3)
    mean, error = mean_and_error(by_seed)
    cell = row(table(sections["main"], "rules"), title)[f"pictures/{rule}"]
    assert (cell.mean, cell.error, cell.n) == (pytest.approx(mean), pytest.approx(error), 2)
    if rule == "training-domain":
        assert row(table(sections["main"], "accuracy"), title)["pictures"] == cell
        for metric in ("accuracy", "ece", "nll", "coverage"):
            assert row(table(sections["main"], "dataset/pictures"), title)[metric].mean is not None


def test_a_rule_without_images_has_no_column(sections):
    keys = [column.key for column in table(sections["main"], "rules").columns]
    assert keys == ["pictures/training-domain", "pictures/test-domain"]


def test_held_out_environments_stand_side_by_side_with_the_worst(sections, records):
    cells = row(table(sections["main"], "dataset/pictures"), "CoOp")
    rule = get_rule("training-domain")
    chosen = rule.choose([r for r in records if r.variant == "coop" and not r.purpose])
    for fold in ENVIRONMENTS:
        scores = [rule.score(r) for r in chosen if r.fold == fold]
        assert cells[f"fold/{fold}"].mean == pytest.approx(sum(scores) / 2)
    worst = [min(rule.score(r) for r in chosen if r.seed == seed) for seed in (1, 2)]
    assert cells["worst"].mean == pytest.approx(sum(worst) / 2)


def test_figures_of_the_main_experiment_have_every_method(sections):
    figures = {figure.key: figure for figure in sections["main"].figures}
    assert set(figures) == {"reliability/pictures", "risk-coverage/pictures", "trials/pictures"}
    titles = ["CLIP zero-shot", "CoOp", "CAL", "Bayes-CAL"]
    for key in ("reliability/pictures", "risk-coverage/pictures"):
        assert [series["name"] for series in figures[key].data["panels"][0]["series"]] == titles
    for series in figures["reliability/pictures"].data["panels"][0]["series"]:
        assert sum(series["count"]) == 3 * 2 * 3 * IMAGES  # folds × seeds × images of the held-out environment
    points = {panel["title"]: panel["points"] for panel in figures["trials/pictures"].data["panels"]}
    assert {"lambda_env", "lambda_irm", "lambda_orth"} <= set(points)
    assert [point["name"] for point in points["lambda_irm"]] == ["CAL", "CAL", "Bayes-CAL", "Bayes-CAL"]


# --- ablation --------------------------------------------------------------------------------------------------------


def test_the_environment_term_has_no_gradient_on_the_class_prompt(sections, records):
    found = table(sections["ablation"], "gradients")
    assert [r.label for r in found.rows] == ["Bayes-CAL, chosen runs", "Bayes-CAL, all trials"]
    for line in found.rows:
        assert line.cells["pictures/env"].mean == 0.0
        assert line.cells["pictures/env"].error == 0.0
        assert line.cells["pictures/irm"].mean > 0
        assert line.cells["pictures/orth"].mean > 0
    mine = [r for r in records if r.variant == "bayes-cal" and not r.purpose]
    by_seed = []
    for seed in (1, 2):
        shares = [
            r.config["lambda_irm"] * sum(r.gradient_norms["irm"]) / sum(r.gradient_norms["ce"])
            for r in mine
            if r.seed == seed
        ]
        by_seed.append(sum(shares) / len(shares))
    mean, error = mean_and_error(by_seed)
    assert found.rows[1].cells["pictures/irm"] == Value(pytest.approx(mean), pytest.approx(error), 2, seeds=(1, 2))
    figure = sections["ablation"].figures[0]
    assert [s["name"] for s in figure.data["panels"][0]["series"]][:3] == ["cross-entropy", "λ2·L_IRM", "λ3·L_orth"]


def test_leaving_a_term_out_leaves_the_other_numbers_of_each_trial(records):
    configs = {
        (r.variant, r.trial): r.config
        for r in records
        if r.variant in ("bayes-cal", "without-env", "without-irm", "without-orth") and not r.purpose
    }
    assert len(configs) == 4 * 2
    for trial in (0, 1):
        whole = configs["bayes-cal", trial]
        for term in ("env", "irm", "orth"):
            assert configs[f"without-{term}", trial] == {**whole, f"lambda_{term}": 0.0}
            assert whole[f"lambda_{term}"] > 0


# --- instances and landscapes ----------------------------------------------------------------------------------------


def test_the_target_loss_is_the_lowest_point_of_the_landscape(sections, records):
    mine = [r for r in records if r.purpose.startswith("instances")]
    assert {r.variant for r in mine} == {"instance-coop", "instance-pl", "instance-lv", "instance-visual"}
    assert len(mine) == 4 * 3 * 2
    for r in mine:
        found = r.landscape
        assert len(found.z) == len(found.z[0]) == 5
        assert found.target_loss <= found.z[2][2] + 1e-5  # the end of training is the middle of the grid
        assert found.target_loss == pytest.approx(min(map(min, found.z)), abs=1e-5)
        assert found.path[-1] == [0.0, 0.0]
        assert len(found.path) == 5  # four epochs and the start
        assert r.config["epochs"] == 4
    pl = [r.config for r in mine if r.variant == "instance-pl"]
    assert {(c["lambda_env"], c["lambda_irm"], c["lambda_orth"]) for c in pl} == {(0.1, 0.0, 0.1)}
    cells = row(table(sections["instances"], "instances/pictures"), "LV")
    lv = [r for r in mine if r.variant == "instance-lv"]
    assert cells["final"].mean == pytest.approx(sum(r.landscape.final_loss for r in lv) / 6)
    assert cells["target"].mean == pytest.approx(sum(r.landscape.target_loss for r in lv) / 6)
    assert cells["epoch"].mean == pytest.approx(sum(r.curves["ce"][-1] for r in lv) / 6)
    assert cells["parameters"].mean == lv[0].parameters


def test_final_and_target_loss_are_one_quantity(sections, records):
    """Both at the posterior mean: the final loss is a point of the plane that the target loss is the lowest of."""
    for r in records:
        if r.purpose.startswith("instances"):
            assert r.landscape.final_loss == pytest.approx(r.landscape.z[2][2], abs=1e-5)
            assert r.landscape.target_loss <= r.landscape.final_loss
    found = table(sections["instances"], "instances/pictures")
    assert "at the posterior mean" in found.note


def test_what_is_no_prompt_has_one_learning_rate(records):
    rates = {r.variant: r.config["learning_rate"] for r in records if r.purpose.startswith("instances")}
    assert rates["instance-lv"] == rates["instance-visual"] == 0.002


def test_landscapes_show_one_run_of_each_instance(sections):
    (figure,) = sections["landscape"].figures
    assert [panel["title"] for panel in figure.data["panels"]] == ["PL (Bayes-CAL)", "LV", "visual"]
    assert figure.note == "Held out: cartoon, seed 1."


def test_what_was_left_out_is_said(bench_all, sections):
    assert sections["instances"].notes == ("W2V was left out: it needs word vectors, --word-vectors FILE",)
    assert sections["main"].notes == ()


# --- curves, points, tests -------------------------------------------------------------------------------------------


def test_accuracy_over_epochs_is_that_of_the_chosen_runs(sections, records):
    panels = sections["epochs"].figures[0].data["panels"]
    assert [panel["title"].split()[0] for panel in panels] == ["test", "validation"]
    assert {panel["chance"] for panel in panels} == {1 / 3}
    coop = next(series for series in panels[0]["series"] if series["name"] == "CoOp")
    chosen = get_rule("training-domain").choose([r for r in records if r.variant == "coop" and not r.purpose])
    assert coop["x"] == list(range(1, EPOCHS + 1))
    assert coop["y"] == pytest.approx([sum(r.curves["test"][e] for r in chosen) / 6 for e in range(EPOCHS)])


def test_points_are_the_images_with_their_pictures(sections):
    data = sections["tsne"].figures[0].data
    n = len(CLASSES) * len(ENVIRONMENTS) * IMAGES
    assert len(data["x"]) == len(data["y"]) == len(data["thumbnails"]) == n
    assert data["classes"] == list(CLASSES)
    assert sorted(data["class"]) == sorted([0, 1, 2] * (n // 3))
    assert all(uri.startswith("data:image/jpeg;base64,") for uri in data["thumbnails"])


def test_the_signed_rank_test_says_n_and_what_p_could_be_at_all(bench_all, sections, records):
    over_data, over_folds = (table(sections["wilcoxon"], f"wilcoxon/{unit}") for unit in ("datasets", "environments"))
    assert [r.label for r in over_data.rows] == ["CLIP zero-shot", "CoOp", "CAL"]
    assert "the smallest two-sided p that 1 pairs allow is 1." in sections["wilcoxon"].lead
    for found, most in ((over_data, 1), (over_folds, 3)):
        for line in found.rows:
            n = line.cells["n"].mean
            assert 0 <= n <= most
            if n:
                assert line.cells["floor"].mean == 2.0 ** (1 - n)
                assert line.cells["floor"].mean <= line.cells["p"].mean <= 1
            assert line.cells["wins"].endswith(f" of {most}")
    assert "smallest p for" in bench_all[1].out
