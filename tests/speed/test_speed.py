"""The benchmarks' plain loop computes the same loss and takes the same step as the package; results are kept well."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from open_clip.model import CLIP
from speed.measure import Result
from torch import Tensor, nn

from bayescal.engine.linear import linear
from bayescal.methods.contract import Runs
from bayescal.training.loop import train
from features.test_features_bank import make_images, small_backbone
from speed import bank, compare, extraction, imports, manifests, measure, names, pacs, stack, step

WORDS = {"X": 1, ".": 2, "dog": 3, "cat": 4, "guitar": 5, "art": 6, "painting": 7, "photo": 8}
CLASSES, ENVIRONMENTS = ("dog", "cat", "guitar"), ("art painting", "photo")
SIDE, BATCH, CONTEXT, START, END = 32, 8, 16, 49406, 49407

# Exact in float32, which a run's numbers are: what is left is the difference of the two computations.
WEIGHTS = {"lambda_env": 0.75, "lambda_irm": 0.375, "lambda_orth": 0.875}
METHODS = {
    "coop": {},
    "cal": WEIGHTS,
    "bayes-cal": {**WEIGHTS, "beta": 0.5, "prior_scale": 0.25, "initial_scale": 0.75},
}


def tokenize(texts: list[str]) -> Tensor:
    """open_clip's convention: start token, words, end token (the largest id), zeros up to the context length."""
    rows = [[START, *(WORDS[word] for word in text.replace(".", " .").split()), END] for text in texts]
    return torch.tensor([row + [0] * (CONTEXT - len(row)) for row in rows])


@pytest.fixture(scope="module")
def tiny_clip() -> nn.Module:
    """An open_clip ResNet model with random weights in float64, small enough for a test."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        text = {"context_length": CONTEXT, "vocab_size": END + 1, "width": 16, "heads": 2, "layers": 2}
        vision = {"image_size": SIDE, "layers": [1, 1, 1, 1], "width": 4}
        model = CLIP(embed_dim=12, vision_cfg=vision, text_cfg=text, quick_gelu=True)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
    nn.init.constant_(model.logit_scale, 3.0)
    return model.double().requires_grad_(False).eval()


@pytest.fixture
def make(tiny_clip: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], step.Setting]:
    """Both sides of a method on n images, in float64 throughout."""
    in_float32 = Runs.stack

    def in_float64(*arguments) -> Runs:
        runs = in_float32(*arguments)
        return Runs(runs.seeds, {name: value.double() for name, value in runs.numbers.items()}, runs.settings)

    monkeypatch.setattr(Runs, "stack", in_float64)

    def make_setting(method: str, n: int) -> step.Setting:
        generator = torch.Generator().manual_seed(1)
        normal = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
        pixels = 3 * normal(n, 3, 1, 1) + normal(n, 3, SIDE, SIDE)
        with torch.no_grad():
            features = tiny_clip.encode_image(pixels)
        return step.make_setting(
            tiny_clip, tokenize, method, CLASSES, ENVIRONMENTS, pixels, features,
            batch_size=BATCH, n_context=4, learning_rate=0.125, weight_decay=0.25, **METHODS[method],
        )  # fmt: skip

    return make_setting


@pytest.mark.parametrize("method", METHODS)
def test_plain_loop_computes_our_loss(make, method: str):
    setting = make(method, 3 * BATCH)
    ours, plain = setting.our_terms(), setting.plain_terms()
    assert ours.keys() == plain.keys()
    for name in ours:
        assert abs(float(plain[name].detach())) > 1e-4, f"{name} vanishes: nothing would be compared"
        torch.testing.assert_close(ours[name], plain[name].detach(), rtol=1e-9, atol=0.0, msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_plain_loop_takes_our_step(make, method: str):
    setting = make(method, BATCH)  # an epoch of one step
    learned = train(setting.method, setting.data).params
    setting.plain_step()
    for branch, key in step.branch_keys(learned).items():
        moved = (setting.plain.prior_mean[branch] - setting.plain.branches[branch].context).abs().max()
        assert moved > 1e-3
        torch.testing.assert_close(learned[key][0], setting.plain.branches[branch].context.detach(), rtol=0, atol=1e-10)
        if method == "bayes-cal":
            rho = setting.plain.rho[branch].detach()
            assert rho.std() > 1e-5
            torch.testing.assert_close(learned[f"{branch}.rho"][0], rho, rtol=0, atol=1e-10)


def test_different_losses_are_noticed(make):
    setting = make("cal", BATCH)
    step.check_losses(setting)
    setting.plain.config = {**setting.plain.config, "lambda_env": 0.76}
    with pytest.raises(AssertionError, match="same loss"):
        step.check_losses(setting)


def test_names_are_complete():
    assert len(set(names.OFFICE_HOME_CLASSES)) == 65
    assert len(set(names.PACS_CLASSES + names.PACS_ENVIRONMENTS)) == 11


def test_stack_benchmark_runs_and_agrees():
    (result,) = stack.run(singles=2, trials=1, epochs=2)
    assert result.notes["single runs timed"] == 2
    assert result.notes["largest difference of final parameters"] < 1e-5
    assert result.plain > 0.0


def test_importing_the_package_is_light():
    _, loaded = imports.import_once()
    assert loaded == []


def test_peak_memory_is_of_the_process_alone():
    code = "from speed.pacs import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=measure.ROOT)
    assert 0.005 < float(done.stdout) < 0.1 < pacs.peak_memory()  # GB; this process holds torch and a model


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux tells it")
def test_generated_bank_is_resumed_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    images, dim = 3000, 8
    assert bank.write_part(tmp_path, images, dim, 1, 2)["written"] == 1472  # 23 of 47 blocks
    assert bank.write_part(tmp_path, images, dim, 0, 1)["written"] == images - 1472
    assert bank.write_part(tmp_path, images, dim, 0, 1)["written"] == 0
    assert bank.read_part(tmp_path, images, dim)["rows"] == images
    monkeypatch.setattr(bank, "CLASSES", 10)
    assert bank.draws_part(tmp_path, images, dim)["training images"] == 160
    with pytest.raises(AssertionError, match="64 rows are not in the bank"):
        bank.read_part(tmp_path, images + 64, dim)


def test_extraction_is_taken_apart(tmp_path: Path):
    for i, path in enumerate(make_images(tmp_path / "dog", 24)):
        path.rename(path.with_name(f"{i}.png"))
    fed, model, free = extraction.run(tmp_path, small_backbone(seconds_per_call=0.05), 24, workers=2)
    assert fed.notes["images per second"] == pytest.approx(1 / fed.ours)
    assert model.ours > 0
    assert 20 < 100 * free.notes["share inside the model"] == pytest.approx(100 - free.ours)
    assert free.notes["workers"] == 2


@pytest.mark.parametrize(
    ("result", "met"),
    [
        (Result("a ratio that is large enough", 0.1, 3.0, target=25.0), True),
        (Result("one that is not", 0.1, 2.0, target=25.0), False),
        (Result("a time that is short enough", 15.0, target=20.0), True),
        (Result("one that is not", 25.0, target=20.0), False),
        (Result("no target", 25.0), None),
    ],
)
def test_targets(result: Result, met: bool | None):
    assert result.met is met


def test_rivals_take_turns():
    calls: list[str] = []
    ticks = iter(range(100))
    functions = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    times = measure.interleaved(functions, repeats=2, warmup=1, clock=lambda: float(next(ticks)))
    assert calls == ["a", "b"] * 3
    assert times == {"a": [1.0, 1.0], "b": [1.0, 1.0]}


def test_records_are_kept_and_compared(tmp_path: Path):
    path = tmp_path / "results" / "cpu.jsonl"
    measure.write_record([Result("step", 0.2, 5.0, 25.0), Result("gone", 1.0)], path, clock="wall")
    measure.write_record([Result("step", 0.1, 5.0, 25.0), Result("new", 2.0, unit="GB")], path)
    records = measure.read_records(path)
    assert [json.loads(line)["results"][0]["ratio"] for line in path.read_text().splitlines()] == [25.0, 50.0]
    assert {"commit", "date", "torch", "cpus", "command"} <= records[0].keys()
    rows = compare.compare(records[0], records[1])
    assert rows == [
        ["step", "200 ms", "25.0×", "100 ms", "50.0×", "2.00×"],
        ["gone", "1 s", "", "–", "", ""],
        ["new", "–", "", "2 GB", "", ""],
    ]


def test_records_are_found_by_commit_or_number():
    records = [{"commit": c, "n": n} for n, c in enumerate(["12340a", "12340b", "12340b+", None])]
    assert compare.find_record(records, "12340a")["n"] == 0
    assert compare.find_record(records, "12340b")["n"] == 2
    assert compare.find_record(records, "1")["n"] == 1
    assert compare.find_record(records, "-1")["n"] == 3
    with pytest.raises(LookupError, match="can mean 12340a, 12340b"):
        compare.find_record(records, "1234")
    for missing in ("f00d", "4", "-5"):
        with pytest.raises(LookupError, match=f"no record of '{missing}'"):
            compare.find_record(records, missing)


def test_operations_are_counted():
    """Forward and backward, also where torch's counter has gaps: products in place."""
    x, w = torch.randn(3, 5, requires_grad=True), torch.randn(5, 7)
    assert measure.operations_by_kind(lambda: (x @ w).sum().backward()) == {"products": 4 * 3 * 5 * 7, "attention": 0}
    assert measure.count_operations(lambda: torch.zeros(3, 7).addmm_(x.detach(), w)) == 2 * 3 * 5 * 7
    many = torch.randn(2, 512, 5, requires_grad=True)  # enough rows for oneDNN's product, where `engine` takes it
    assert measure.count_operations(lambda: linear(many, w.t().contiguous()).sum().backward()) == 4 * 1024 * 5 * 7
    q = torch.randn(2, 4, 6, 8)
    attention = lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q)  # noqa: E731
    assert measure.operations_by_kind(attention) == {"products": 0, "attention": 2 * 2 * 2 * 4 * 6 * 6 * 8}


def test_the_gpu_benchmark_says_when_there_is_no_gpu(monkeypatch, capsys):
    from speed import gpu

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2
    assert "there is no GPU that torch can use" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_long_lists_and_large_folders_are_made_and_read(tmp_path):
    manifests.write_table(tmp_path / "table.csv", 300)
    manifests.write_folder(tmp_path / "images", 800)
    table, folder = manifests.read(tmp_path / "table.csv"), manifests.read(tmp_path / "images")
    assert (table["images"], folder["images"]) == (300, 800)
    assert all(found["memory MB"] >= 0 for found in (table, folder))
