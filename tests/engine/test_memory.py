"""Memory decides how names are divided into blocks and runs into stacks, and never what comes out."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from speed.measure import ROOT

import tiny
from bayescal.engine import memory
from bayescal.methods import get_method, method_names
from bayescal.methods.hyperparameters import default_config
from bayescal.text.prompt_layout import Layout
from bayescal.text.prompt_tree import PromptTree
from bayescal.text.tower import TextTower
from bayescal.training import stack
from bayescal.training.gradient_norms import term_gradient_norms
from bayescal.training.loop import evaluate, gather_batch, training_samples
from bayescal.training.stack import group_runs, train_runs
from bayescal.util import free_memory

GB = 2**30
NAMES = [[i % 17, *range(2, 2 + i % 4)] for i in range(13)]
LAYOUTS = [Layout(4, position, own) for position in ("end", "middle") for own in (False, True)]


def config(name: str = "bayes-cal", **changes) -> dict:
    return default_config(get_method(name).space, tiny.Defaults, **changes)


@pytest.mark.parametrize("own_names", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_names_in_blocks_have_the_same_features_and_gradients(layout, own_names):
    tower = tiny.tiny_tower(torch.float64)
    tree = PromptTree(tower, [NAMES, NAMES[::-1]] if own_names else [NAMES], layout, [1])
    g = torch.Generator().manual_seed(0)
    shape = layout.context_shape(len(NAMES), tower.width)
    context = torch.randn(2, 3, *shape, generator=g, dtype=torch.float64).requires_grad_()
    weights = torch.randn(len(NAMES), tower.dim, generator=g, dtype=torch.float64)
    found = []
    whole = 6 * tower.kept_bytes(tree.n_tokens)
    for budget, blocks in ((whole, 1), (whole * 2 // 3, range(2, 5)), (1, len(NAMES))):
        tree.budget = budget
        assert tree.n_blocks(6) in (blocks if isinstance(blocks, range) else [blocks])
        features = tree(context)
        found.append((features, torch.autograd.grad((features * weights).sum(), context)[0]))
        with torch.no_grad():
            torch.testing.assert_close(tree(context), features.detach(), rtol=1e-10, atol=1e-10)
    for features, gradient in found[1:]:
        torch.testing.assert_close(features, found[0][0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-9, atol=1e-9)


def test_a_method_in_blocks_has_the_same_terms_gradients_and_norms():
    """Probes go backward through one graph several times."""
    problem, runs = tiny.tiny_problem(dtype=torch.float64), [tiny.tiny_run(config(), seed) for seed in (1, 2)]
    bound, data, _ = stack.bind_stack(get_method("bayes-cal"), problem, runs)
    batch = gather_batch(data, torch.arange(8).expand(2, -1), None, 0)
    params = bound.init(training_samples(data))
    compute = lambda: (*bound.gradients(params, batch), term_gradient_norms(bound, params, batch))  # noqa: E731
    expected = compute()
    for branch in bound.branches.values():
        branch.tree.budget = 1
        assert branch.tree.n_blocks(2) > 1
    for ours, plain in zip(compute(), expected, strict=True):
        assert ours.keys() == plain.keys()
        for name in ours:
            torch.testing.assert_close(ours[name], plain[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_estimate_of_what_autograd_keeps(layout):
    tower = TextTower(vocab_size=20, width=64, heads=2, layers=6, dim=64, start_token=18, end_token=19)
    tree = PromptTree(tower, [NAMES * 4], layout, [1])
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    fixed = {tensor.untyped_storage().data_ptr() for tensor in (*tower.parameters(), *tree.buffers())}
    context = torch.zeros(1, 1, *layout.context_shape(tree.n_names, tower.width), requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        features = tree(context)
    measured = sum(size for pointer, size in kept.items() if pointer not in fixed)
    assert 0.5 < measured / tower.kept_bytes(tree.n_tokens) < 1.3
    assert features.requires_grad


def test_a_thousand_names_train_in_little_memory():
    """In a process of its own, whose peak it is: 50 MB for activations that would take 300 MB."""
    code = """
import torch
from speed.pacs import peak_memory
from bayescal.text.tower import TextTower
from bayescal.text.prompt_layout import Layout
from bayescal.text.prompt_tree import PromptTree
tower = TextTower(vocab_size=20, width=64, heads=2, layers=4, dim=64, start_token=18, end_token=19)
few, half, tree = (PromptTree(tower, [[[2, 3]] * k], Layout(16, "middle"), [1]) for k in (9, 500, 1000))
size = lambda tree: sum(buffer.nbytes for buffer in tree.buffers())
context = torch.zeros(1, 1, 16, 64, requires_grad=True)
few(context).sum().backward()
before = peak_memory()
tree.budget = 50_000_000
tree(context).sum().backward()
blocks = peak_memory()
tree.budget = 10**10
tree(context).sum().backward()
print(blocks - before, peak_memory() - before, size(tree) / size(half))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    blocks, whole, growth = map(float, done.stdout.split())
    assert blocks < 0.13 < 0.2 < whole
    assert growth < 2.1  # nothing is quadratic in the number of names


@pytest.mark.parametrize(
    ("fit", "sizes"), [(0.5, [1] * 7), (1.5, [1] * 7), (3.9, [2, 2, 2, 1]), (6.9, [4, 3]), (7, [7])]
)
def test_stacks_are_cut_so_that_they_fit(monkeypatch, fit, sizes):
    problem, runs = tiny.tiny_problem(), [tiny.tiny_run(config(), seed) for seed in range(7)]
    method = get_method("bayes-cal")
    bound, data, _ = stack.bind_stack(method, problem, runs[:1])
    row = bound.run_bytes(training_samples(data))
    monkeypatch.setattr(stack, "activation_budget", lambda device: int(fit * row))
    groups = list(group_runs(method, problem, runs, 256))
    assert [len(rows) for rows in groups] == sizes
    assert sorted(i for rows in groups for i in rows) == list(range(7))
    assert max(len(rows) for rows in group_runs(method, problem, runs, 3)) == (3 if fit > 3 else 1)  # an upper bound


@pytest.mark.parametrize("name", ["bayes-cal", "erm", "cocoop"])
def test_results_do_not_depend_on_the_cut(monkeypatch, name):
    problem, runs = tiny.tiny_problem(gentle=True), [tiny.tiny_run(config(name), seed) for seed in range(4)]
    whole = train_runs(name, problem, runs)
    monkeypatch.setattr(stack, "activation_budget", lambda device: 1)
    for a, b in zip(whole, train_runs(name, problem, runs), strict=True):
        for parameter in a.params:
            torch.testing.assert_close(a.params[parameter], b.params[parameter], rtol=1e-4, atol=1e-5)
        assert a.curves["val"] == b.curves["val"]


@pytest.mark.parametrize("name", [name for name in method_names() if "w2v" not in name])
def test_every_method_says_what_a_row_takes(name):
    """Roughly linear in what is learned, and more with more samples."""
    problem, method = tiny.tiny_problem(), get_method(name)
    bound, data, _ = stack.bind_stack(method, problem, [tiny.tiny_run(config(name), 1)])
    row = bound.run_bytes(training_samples(data))
    learned = bound.parameter_count(bound.init(training_samples(data)))
    assert 4 * 4 * learned <= row < GB
    if "train_samples" in method.space and hasattr(bound.branches["class"], "tree"):
        more, _, _ = stack.bind_stack(method, problem, [tiny.tiny_run(config(name, train_samples=3), 1)])
        assert 2 * row < more.run_bytes(training_samples(data)) < 3 * row


def test_accuracies_do_not_depend_on_how_many_images_are_evaluated_at_once(monkeypatch):
    problem, runs = tiny.tiny_problem(), [tiny.tiny_run(config(), seed) for seed in (1, 2)]
    bound, data, _ = stack.bind_stack(get_method("bayes-cal"), problem, runs)
    params = bound.init(training_samples(data))
    whole = evaluate(bound, params, data)
    assert bound.images_at_once(100) > 100
    monkeypatch.setattr(type(bound), "predict_chunk", 14)
    assert bound.images_at_once(100) == 7
    assert bound.images_at_once(100, samples=20) == 1
    parts = evaluate(bound, params, data)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def files(monkeypatch, **contents: str) -> None:
    """What the system says about memory, by the last part of the file's name."""
    monkeypatch.setattr(free_memory, "_read", lambda path: contents.get(Path(path).name.removeprefix("memory."), ""))


def test_free_memory_is_what_system_and_container_leave(monkeypatch):
    cpu = torch.device("cpu")
    system = f"MemTotal: 9999999 kB\nMemAvailable:   {8 * 2**20} kB\n"
    files(monkeypatch, meminfo=system)
    assert memory.free_memory(cpu) == 8 * GB
    files(monkeypatch, meminfo=system, max="max\n", current="7\n")
    assert memory.free_memory(cpu) == 8 * GB
    files(monkeypatch, meminfo=system, max=f"{4 * GB}\n", current=f"{3 * GB}\n", stat=f"anon 1\ninactive_file {GB}\n")
    assert memory.free_memory(cpu) == 2 * GB
    assert memory.activation_budget(cpu) == memory.SHARE * 2 * GB
    files(monkeypatch, meminfo=system, max=f"{GB}\n", current=f"{3 * GB}\n")
    assert memory.free_memory(cpu) == 0
    files(monkeypatch)  # a system that says nothing
    assert 0 < memory.activation_budget(cpu) <= memory.ENOUGH["cpu"]
