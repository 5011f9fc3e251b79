"""Tip-Adapter and Tip-Adapter-F: logits, the search on validation images, and the choice of the epoch."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import tiny
from bayescal.errors import MethodError
from bayescal.methods import get_method
from bayescal.methods.contract import Samples, predict
from bayescal.methods.hyperparameters import default_config
from bayescal.training.stack import train_runs

torch.set_num_threads(1)

SCALE = 10.0  # of the tiny problem
SMALL = {"beta_steps": 12, "alpha_steps": 7}


def config(name: str, **options):
    return default_config(get_method(name).space, tiny.Defaults, **{**SMALL, **options})


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def tip_logits(problem, keys, labels, images, alpha, beta):
    """The published formula, one image at a time."""
    texts = unit(problem.text.encode([tiny.tokenize(f"a photo of a {name}.") for name in tiny.CLASSES]).numpy())
    out = SCALE * unit(images) @ texts.T
    for i, image in enumerate(unit(images)):
        for key, label in zip(keys, labels, strict=True):
            out[i, label] += alpha * np.exp(-beta * (1 - image @ key))
    return out


def grid(steps: int) -> list[float]:
    return [0.1 + i * 19.9 / steps for i in range(steps)]


def test_cache_and_logits_against_numpy():
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config("tip-adapter", alpha=2.5, beta=3.5), 1)
    run = type(run)(run.config, run.seed, run.train, {})  # without validation images nothing is searched
    (result,) = train_runs("tip-adapter", problem, [run])
    assert (float(result.params["alpha"]), float(result.params["beta"])) == (2.5, 3.5)
    keys, labels = unit(problem.features[run.train].numpy()), problem.labels[run.train].numpy()
    np.testing.assert_allclose(result.params["keys"][0].numpy(), keys, rtol=1e-5)
    method = result.bind(problem)
    logits = method.logits(method.prepare(result.params, 0), problem.features)[0, 0]
    expected = tip_logits(problem, keys, labels, problem.features.numpy(), 2.5, 3.5)
    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert method.parameter_count(result.params) == 0


def test_one_image_alone_gets_the_logits_it_gets_among_others():
    """Alone, it adds up its likeness to the keys by their labels; padding, a key without a class, adds nothing."""
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config("tip-adapter"), 1)
    (result,) = train_runs("tip-adapter", problem, [type(run)(run.config, run.seed, run.train, {})])
    method, params = result.bind(problem), dict(result.params)
    params["values"] = params["values"].clone()
    params["values"][0, 1] = 0.0
    prepared = method.prepare(params, 0)
    together = method.logits(prepared, problem.features[:4])
    assert not torch.equal(together, method.logits(method.prepare(result.params, 0), problem.features[:4]))
    for i in range(4):
        alone = method.logits(prepared, problem.features[i : i + 1])
        torch.testing.assert_close(alone, together[:, :, i : i + 1], rtol=1e-5, atol=1e-5)
        read = method.logits({**prepared, "values": torch.full_like(params["values"], torch.nan)}, problem.features[:1])
        assert bool(read.isfinite().all())  # the large matrix of the labels is not read for it


def reference_search(problem, keys, labels, images, targets, alpha, beta):
    """Every setting in turn; one must be strictly better to replace the best so far."""
    right = lambda a, b: int((tip_logits(problem, keys, labels, images, a, b).argmax(1) == targets).sum())  # noqa: E731
    best = right(alpha, beta)
    for b in grid(12):
        for a in grid(7):
            if (score := right(a, b)) > best:
                best, alpha, beta = score, a, b
    return alpha, beta, best / len(targets)


def hard_problem():
    """So much noise that the settings differ in accuracy."""
    problem = tiny.tiny_problem()
    g = torch.Generator().manual_seed(4)
    noisy = problem.features + 3.0 * torch.randn(problem.features.shape, generator=g)
    return type(problem)(**{**problem.__dict__, "features": noisy})


def test_search_against_a_loop_with_rows_of_different_validation_sets():
    problem = hard_problem()
    runs = [tiny.tiny_run(config("tip-adapter"), seed) for seed in (1, 2, 3)]
    shorter = {**runs[1].eval_sets, "val": runs[1].eval_sets["val"][:9]}  # this row's padding must not count
    runs[1] = type(runs[1])(runs[1].config, 2, runs[1].train, shorter)
    results = train_runs("tip-adapter", problem, runs)
    chosen = set()
    for run, result in zip(runs, results, strict=True):
        keys, labels = unit(problem.features[run.train].numpy()), problem.labels[run.train].numpy()
        val = run.eval_sets["val"]
        alpha, beta, accuracy = reference_search(
            problem, keys, labels, problem.features[val].numpy(), problem.labels[val].numpy(), 1.0, 5.0
        )
        assert float(result.params["alpha"]) == pytest.approx(alpha, rel=1e-5)
        assert float(result.params["beta"]) == pytest.approx(beta, rel=1e-5)
        # The curves speak of the method as it predicts, after the search.
        assert result.curves["val"] == [pytest.approx(accuracy, abs=1e-6)]
        chosen.add((round(alpha, 3), round(beta, 3)))
    assert len(chosen - {(1.0, 5.0)}) > 1  # the rows chose, and not all the same


def test_images_that_only_fill_up_a_row_do_not_count():
    """A hundred masked images with wrong labels would outvote fifteen real ones."""
    problem = hard_problem()
    (result,) = train_runs("tip-adapter", problem, [run := tiny.tiny_run(config("tip-adapter"), 1)])
    method, val = result.bind(problem), run.eval_sets["val"]
    start = {**result.params, "alpha": torch.ones(1), "beta": torch.full((1,), 5.0)}
    images = torch.cat([val, torch.arange(100)])[None]
    labels = torch.cat([problem.labels[val], (problem.labels[:100] + 1) % 3])[None]
    chosen = {}
    for name, counted in (("masked", len(val)), ("all", 115)):
        mask = torch.arange(115)[None] < counted
        chosen[name] = method.finish(
            start, Samples(problem.features[images], labels, problem.environments[images], mask)
        )
    assert all(float(chosen["masked"][n]) == float(result.params[n]) for n in ("alpha", "beta"))
    assert any(float(chosen["all"][n]) != float(result.params[n]) for n in ("alpha", "beta"))


def test_search_in_parts_is_the_same_search(monkeypatch):
    problem = hard_problem()
    runs = [tiny.tiny_run(config("tip-adapter"), seed) for seed in (1, 2, 3)]
    whole = train_runs("tip-adapter", problem, runs)
    monkeypatch.setattr("bayescal.methods.adapters.tip_adapter.SEARCH_MEMORY", 2 * 15 * 18)  # two rows at a time
    for a, b in zip(whole, train_runs("tip-adapter", problem, runs), strict=True):
        assert (float(a.params["alpha"]), float(a.params["beta"])) == (
            float(b.params["alpha"]),
            float(b.params["beta"]),
        )


def test_test_images_are_never_searched():
    problem = hard_problem()
    runs = [tiny.tiny_run(config("tip-adapter"), seed) for seed in (1, 2, 3)]
    swapped = [type(r)(r.config, r.seed, r.train, {**r.eval_sets, "test": torch.arange(40)}) for r in runs]
    for a, b in zip(train_runs("tip-adapter", problem, runs), train_runs("tip-adapter", problem, swapped), strict=True):
        assert float(a.params["alpha"]) == float(b.params["alpha"])
        assert float(a.params["beta"]) == float(b.params["beta"])


def test_default_grid_is_the_published_one():
    cls = get_method("tip-adapter")
    problem = tiny.tiny_problem()
    (result,) = train_runs("tip-adapter", problem, [tiny.tiny_run(default_config(cls.space, tiny.Defaults), 1)])
    method = result.bind(problem)
    betas, alphas = method.grid("beta"), method.grid("alpha")
    assert (len(betas), len(alphas)) == (200, 20)
    assert (betas[0], alphas[0]) == (0.1, 0.1)
    assert betas[1] - betas[0] == pytest.approx(19.9 / 200)
    assert alphas[-1] == pytest.approx(0.1 + 19 * 19.9 / 20)


@pytest.mark.parametrize("option", [{"alpha_steps": 0}, {"beta_steps": 0}, {"alpha_max": 1e308}, {"beta_max": 1e30}])
def test_a_grid_without_values_or_with_endless_ones_is_refused(option):
    """Each ended in an error of torch."""
    config = default_config(get_method("tip-adapter").space, tiny.Defaults, **option)
    with pytest.raises(MethodError, match=r"Tip-Adapter: expected .*_steps of 1 or more"):
        train_runs("tip-adapter", tiny.tiny_problem(), [tiny.tiny_run(config, 1)])


def test_keys_are_trained_as_by_torch():
    """Five full-batch epochs of AdamW (eps 1e-4) on a cosine, keys free and values fixed."""
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config("tip-adapter-f", epochs=5, learning_rate=0.01), 1)
    (result,) = train_runs("tip-adapter-f", problem, [run])
    x, y = F.normalize(problem.features[run.train], dim=1), problem.labels[run.train]
    texts = F.normalize(problem.text.encode([tiny.tokenize(f"a photo of a {name}.") for name in tiny.CLASSES]), dim=1)
    keys = x.clone().requires_grad_()
    adam = torch.optim.AdamW([keys], lr=0.01, eps=1e-4, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 5)
    for _ in range(5):
        logits = SCALE * x @ texts.T + torch.exp(-5.0 * (1 - x @ keys.T)) @ F.one_hot(y, 3).float()
        adam.zero_grad()
        F.cross_entropy(logits, y).backward()
        adam.step()
        schedule.step()
    torch.testing.assert_close(result.params["keys"][0], keys.detach(), rtol=1e-3, atol=1e-4)
    assert float((keys.detach() - x).abs().max()) > 0.01
    assert torch.equal(result.params["values"][0], F.one_hot(y, 3).float())


def test_the_epoch_is_chosen_on_validation_images_before_the_search():
    problem = hard_problem()
    run = tiny.tiny_run(config("tip-adapter-f", epochs=8, learning_rate=0.1), 7)
    (result,) = train_runs("tip-adapter-f", problem, [run])
    val = result.curves["val"]
    before_last = val[:-1]  # the last entry is the finished method
    assert result.best_epoch < 8
    assert before_last[result.best_epoch - 1] == max(before_last) > before_last[-1]
    assert not torch.equal(result.best_params["keys"], result.params["keys"])
    probs = predict(result.bind(problem), result.params, problem.features[run.eval_sets["val"]]).probs[0]
    accuracy = (probs.argmax(-1) == problem.labels[run.eval_sets["val"]]).float().mean()
    assert float(accuracy) == pytest.approx(val[-1])


@pytest.mark.parametrize("name", ["clip-adapter", "tip-adapter", "tip-adapter-f"])
def test_stack_equals_single_runs(name):
    problem = hard_problem()
    space = get_method(name).space
    options = {"epochs": 3, "batch_size": 8, **SMALL}
    options = {n: v for n, v in options.items() if n in space}
    rates = {"learning_rate": (0.01, 0.001, 0.1)} if "learning_rate" in space else {"alpha": (1.0, 2.0, 3.0)}
    ((key, values),) = rates.items()
    runs = [
        tiny.tiny_run(default_config(space, tiny.Defaults, **{**options, key: value}), seed, environments)
        for value, seed, environments in zip(values, (1, 2, 3), ((0, 1), (1, 2), (0, 1)), strict=True)
    ]
    for run, stacked in zip(runs, train_runs(name, problem, runs), strict=True):
        (alone,) = train_runs(name, problem, [run])
        for entry, value in alone.params.items():
            torch.testing.assert_close(stacked.params[entry], value, rtol=1e-5, atol=1e-5)
        for entry, value in alone.best_params.items():
            torch.testing.assert_close(stacked.best_params[entry], value, rtol=1e-5, atol=1e-5)
        assert alone.curves["val"] == stacked.curves["val"]


def test_training_the_cache_model_itself_is_refused():
    problem = tiny.tiny_problem()
    (result,) = train_runs("tip-adapter", problem, [tiny.tiny_run(config("tip-adapter"), 1)])
    with pytest.raises(MethodError, match="tip-adapter-f trains the keys"):
        result.bind(problem).loss(result.params, None)


def test_other_classes_are_refused():
    problem = tiny.tiny_problem()
    (result,) = train_runs("tip-adapter", problem, [tiny.tiny_run(config("tip-adapter"), 1)])
    with pytest.raises(MethodError, match="knows the 3 classes it was trained with"):
        predict(result.bind(problem, classes=("photo", "sketch")), result.params, problem.features)


def test_masked_training_rows_hold_no_values():
    method = train_runs("tip-adapter", tiny.tiny_problem(), [tiny.tiny_run(config("tip-adapter"), 1)])[0]
    bound = method.bind(tiny.tiny_problem())
    mask = torch.tensor([[True, False]])
    samples = Samples(torch.ones(1, 2, 12), torch.tensor([[0, 2]]), torch.zeros(1, 2, dtype=torch.long), mask)
    assert bound.init(samples)["values"].tolist() == [[[1, 0, 0], [0, 0, 0]]]
