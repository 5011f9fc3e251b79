"""The stacked loop: resume after a kill, rows that fail, checkpoints, determinism, sampling."""

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tiny
from bayescal.errors import BayescalWarning, MethodError
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import default_config
from bayescal.training import loop, stack
from bayescal.training.loop import epoch_order, epoch_views, gather_batch, train
from bayescal.training.stack import stack_data, train_runs


def config(**options):
    return default_config(get_method("bayes-cal").space, tiny.Defaults, **options)


def test_same_seed_same_result():
    problem = tiny.tiny_problem()
    a, b = (train_runs("bayes-cal", problem, [tiny.tiny_run(config(), 1)])[0] for _ in range(2))
    assert all(torch.equal(a.params[n], b.params[n]) for n in a.params)
    assert a.curves == b.curves
    other = train_runs("bayes-cal", problem, [tiny.tiny_run(config(), 2)])[0]
    assert not torch.equal(a.params["class.context"], other.params["class.context"])


def test_a_row_that_fails_stops_alone():
    problem = tiny.tiny_problem(dtype=torch.float64)
    good = [tiny.tiny_run(config(), seed) for seed in (1, 2)]
    bad = tiny.tiny_run(config(learning_rate=float("inf")), 3)
    mixed = train_runs("bayes-cal", problem, [good[0], bad, good[1]])
    assert "not finite" in mixed[1].stopped
    assert mixed[0].stopped is None
    alone = train_runs("bayes-cal", problem, [good[1]])[0]
    assert torch.allclose(mixed[2].params["class.context"], alone.params["class.context"], atol=1e-10)


def test_a_run_without_validation_images_beside_others_keeps_its_last_epoch():
    problem = tiny.tiny_problem()
    runs = [tiny.tiny_run(config(), seed) for seed in (1, 2)]
    none = {**runs[1].eval_sets, "val": runs[1].eval_sets["val"][:0]}
    results = train_runs("bayes-cal", problem, [runs[0], replace(runs[1], eval_sets=none)])
    assert results[1].best_epoch == len(results[1].curves["val"])
    assert torch.equal(results[1].params["class.context"], results[1].params_at("last")["class.context"])


def test_runs_with_other_evaluation_sets_are_stacks_of_their_own():
    problem = tiny.tiny_problem()
    both, one = tiny.tiny_run(config(), 1), tiny.tiny_run(config(), 2)
    one = replace(one, eval_sets={"val": one.eval_sets["val"]})
    for runs in ([both, one], [one, both]):
        curves = {result.seed: set(result.curves) for result in train_runs("bayes-cal", problem, runs)}
        assert {"val", "test"} <= curves[1]
        assert "val" in curves[2]
        assert "test" not in curves[2]


def test_best_checkpoint_is_the_best_on_validation():
    problem = tiny.tiny_problem()
    results = train_runs("coop", problem, [
        tiny.tiny_run(default_config(get_method("coop").space, tiny.Defaults, epochs=12, learning_rate=0.3), seed)
        for seed in range(4)
    ])  # fmt: skip
    for r in results:
        val = r.curves["val"]
        best = max(val)
        assert r.best_epoch == max(i + 1 for i, v in enumerate(val) if v == best)  # ties: the later epoch
        probs = r.predict(problem, problem.features, samples=0, checkpoint="val").probs[0]
        run = tiny.tiny_run(r.config, r.seed)
        rows = run.eval_sets["val"]
        assert float((probs.argmax(-1) == problem.labels)[rows].float().mean()) == pytest.approx(best)


def with_ood_val(run):
    """The run, evaluated on images of the third environment too: four of "ood_val", so that epochs tie and differ."""
    return replace(run, eval_sets={**run.eval_sets, "ood_val": run.eval_sets["test"][:4]})


def test_each_chooser_has_its_own_checkpoint():
    problem = tiny.tiny_problem()
    coop = default_config(get_method("coop").space, tiny.Defaults, epochs=12, learning_rate=0.3)
    runs = [with_ood_val(tiny.tiny_run(coop, seed)) for seed in range(4)]
    results = train_runs("coop", problem, runs)
    for run, result in zip(runs, results, strict=True):
        assert set(result.best) == {"val", "ood_val"}  # "test" is evaluated but chooses nothing
        for metric, best in result.best.items():
            curve = result.curves[metric]
            assert best.epoch == max(i + 1 for i, v in enumerate(curve) if v == max(curve))
            probs = result.predict(problem, problem.features, samples=0, checkpoint=metric).probs[0]
            right = (probs.argmax(-1) == problem.labels)[run.eval_sets[metric]]
            assert float(right.float().mean()) == pytest.approx(max(curve))
        assert result.best_epoch == result.best["val"].epoch
        assert result.best_params is result.best["val"].params
    assert any(r.best["val"].epoch != r.best["ood_val"].epoch for r in results)
    # A second metric changes neither the training nor what the first one chose.
    fewer = train_runs("coop", problem, [tiny.tiny_run(coop, seed) for seed in range(4)])
    for plain, result in zip(fewer, results, strict=True):
        assert set(plain.best) == {"val"}
        assert plain.best_epoch == result.best_epoch
        assert torch.equal(plain.best_params["context"], result.best_params["context"])


def test_without_validation_images_the_last_epoch_is_best():
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config(), 1)
    bad = tiny.tiny_run(config(learning_rate=float("inf")), 2)
    for eval_sets in ({}, {"test": run.eval_sets["test"]}):
        result, dead = train_runs("bayes-cal", problem, [replace(r, eval_sets=eval_sets) for r in (run, bad)])
        assert set(result.best) == {"val"}
        assert result.best_epoch == tiny.Defaults.epochs
        assert all(torch.equal(result.best_params[n], result.params[n]) for n in result.params)
        assert dead.best_epoch == 1  # the warm-up epoch, the only one it finished


def test_a_stopped_row_offers_nothing_to_any_chooser():
    problem = tiny.tiny_problem()
    bad = with_ood_val(tiny.tiny_run(config(learning_rate=float("inf")), 3))
    (result,) = train_runs("bayes-cal", problem, [bad], trajectory=True)
    for best in result.best.values():
        assert best.epoch == 1  # the warm-up epoch
        assert all(torch.equal(best.params[n][0], path[1]) for n, path in result.trajectory.items())
    assert not torch.isfinite(result.params["class.context"]).all()


def test_checkpoints_that_a_run_does_not_have_are_refused_by_name():
    problem = tiny.tiny_problem()
    (result,) = train_runs("bayes-cal", problem, [tiny.tiny_run(config(), 1)])
    with pytest.raises(MethodError, match=r"no checkpoint 'ood_val'; it has 'last', 'val'$"):
        result.predict(problem, problem.features, samples=0, checkpoint="ood_val")
    last = result.predict(problem, problem.features, samples=0, checkpoint="last")
    assert torch.equal(last.probs, result.predict(problem, problem.features, samples=0).probs)


def test_what_validation_chooses_is_in_every_checkpoint():
    """Tip-Adapter-F: α and β are searched after training, for the last parameters and for each metric's."""
    problem = tiny.tiny_problem()
    noise = torch.randn(120, 12, generator=torch.Generator().manual_seed(1))
    problem = replace(problem, features=problem.features + 3 * noise)
    small = {"epochs": 6, "learning_rate": 0.1, "alpha_steps": 4, "beta_steps": 5}
    run = with_ood_val(tiny.tiny_run(default_config(get_method("tip-adapter-f").space, tiny.Defaults, **small), 2))
    (result,) = train_runs("tip-adapter-f", problem, [run])
    method = result.bind(problem)
    data = stack_data(problem, [run], [[0, 1]])
    val = loop.validation_samples(data)
    for params in (result.params, *(best.params for best in result.best.values())):
        start = {**params, "alpha": method.runs["alpha"], "beta": method.runs["beta"]}
        searched = method.finish(start, val)
        assert torch.equal(params["alpha"], searched["alpha"])
        assert torch.equal(params["beta"], searched["beta"])
    assert any(float(best.params["alpha"]) != 1.0 for best in result.best.values())


def test_trajectory_is_every_epoch_from_the_start_to_the_end():
    problem = tiny.tiny_problem(dtype=torch.float64)
    runs = [tiny.tiny_run(config(epochs=4), seed) for seed in (1, 2)]
    plain = train_runs("bayes-cal", problem, runs)
    results = train_runs("bayes-cal", problem, runs, trajectory=True)
    method = get_method("bayes-cal")
    bound = method(problem.task([("photo", "sketch")]), stack.Runs.stack(method.space, [runs[1].config], [2]))
    data = stack_data(problem, runs[1:], [[0, 1]])
    seen = {}
    train(bound, data, observe=lambda epoch, params: seen.update({epoch: stack.copies(params, ())}))
    assert list(seen) == [0, 1, 2, 3, 4]
    start = bound.init(loop.training_samples(data))
    for name, path in results[1].trajectory.items():
        assert path.shape == (5, *start[name].shape[1:])
        assert torch.equal(path[0], start[name][0])
        assert torch.equal(path[-1], results[1].params[name][0])
        assert not torch.equal(path[0], path[1])
        for epoch, params in seen.items():
            assert torch.allclose(path[epoch], params[name][0], rtol=0, atol=1e-10)
    for a, b in zip(plain, results, strict=True):
        assert a.trajectory is None
        assert all(torch.equal(a.params[n], b.params[n]) for n in a.params)  # looking on changes nothing


def test_trajectory_holds_what_is_learned_alone():
    problem = tiny.tiny_problem()
    for name, learned in (("cal-lv", {"class.vectors", "environment.vectors"}), ("clip", set())):
        made = default_config(get_method(name).space, tiny.Defaults)
        (result,) = train_runs(name, problem, [tiny.tiny_run(made, 1)], trajectory=True)
        assert set(result.trajectory) == learned


def test_trajectory_and_checkpoints_exclude_each_other(tmp_path):
    """A finished checkpoint would give an empty trajectory: it is not read, and none is written."""
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config(), 1)
    train_runs("bayes-cal", problem, [run], checkpoints=tmp_path)
    (result,) = train_runs("bayes-cal", problem, [run], checkpoints=tmp_path, trajectory=True)
    assert len(result.trajectory["class.context"]) == tiny.Defaults.epochs + 1
    train_runs("bayes-cal", problem, [run], checkpoints=tmp_path / "none", trajectory=True)
    assert not (tmp_path / "none").exists()


def test_features_are_hashed_for_checkpoints_alone(tmp_path, monkeypatch):
    asked = []
    real = stack.stack_identity
    monkeypatch.setattr(stack, "stack_identity", lambda *given: asked.append(1) or real(*given))
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config(epochs=1), 1)
    train_runs("bayes-cal", problem, [run])
    assert not asked
    train_runs("bayes-cal", problem, [run], checkpoints=tmp_path)
    assert asked


def test_epoch_visits_every_image():
    order = epoch_order(torch.tensor([1, 2]), 0, 19, 8)
    assert order.shape == (2, 3, 8)
    for row in order.flatten(1):
        assert set(row.tolist()) == set(range(19))
    assert epoch_order(torch.tensor([1]), 0, 5, 8).shape == (1, 1, 5)
    assert not torch.equal(epoch_order(torch.tensor([1]), 0, 19, 8), epoch_order(torch.tensor([1]), 1, 19, 8))


def test_batches_hold_the_right_images_and_views():
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config(), 1, environments=(0, 2))
    rows = torch.full((120,), -1)
    rows[run.train] = torch.arange(len(run.train))
    views = torch.arange(len(run.train) * 4).view(-1, 4, 1).expand(-1, -1, 12).float()  # each view names itself
    problem = replace(problem, views=views, view_rows=rows)
    data = stack_data(problem, [run], [[0, 2]])
    seeds = torch.tensor([1])
    batch = gather_batch(data, torch.arange(18)[None], epoch_views(data, seeds, 0), step=0)
    assert torch.equal(batch.labels[0], problem.labels[run.train])
    assert torch.equal(batch.environments[0], problem.environments[run.train] // 2)  # 0, 2 → 0, 1
    drawn = batch.features[0, :, 0].long()
    assert torch.equal(drawn // 4, torch.arange(18))  # a view of the right image
    assert len(set((drawn % 4).tolist())) > 1
    swapped = gather_batch(data, torch.arange(18).flip(0)[None], epoch_views(data, seeds, 0), step=0)
    assert torch.equal(swapped.features.flip(1), batch.features)  # the view goes with the image, not with the position
    later = gather_batch(data, torch.arange(18)[None], epoch_views(data, seeds, 1), step=0)
    assert not torch.equal(later.features, batch.features)


def test_settings_that_differ_make_separate_stacks():
    problem = tiny.tiny_problem()
    runs = [tiny.tiny_run(config(position=p), s) for p in ("end", "middle") for s in (1, 2)]
    runs.append(tiny.tiny_run(config(), 3, n=12))
    groups = list(stack.group_runs(get_method("bayes-cal"), problem, runs, max_runs=8))
    assert groups == [[0, 1], [2, 3], [4]]
    assert list(stack.group_runs(get_method("bayes-cal"), problem, runs[:2], max_runs=1)) == [[0], [1]]


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"batch_size": 0}])
def test_nonsense_is_refused(bad):
    with pytest.raises(MethodError, match="at least 1"):
        train_runs("coop", tiny.tiny_problem(), [tiny.tiny_run(default_config(get_method("coop").space, tiny.Defaults, **bad), 1)])  # fmt: skip  # noqa: E501


def test_interrupted_training_continues(tmp_path, monkeypatch):
    """Stop after some epochs by an exception; the second call starts from the checkpoint and ends up the same."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    problem = tiny.tiny_problem()
    rates = {3: 1.0, 1: 0.3}
    runs = [with_ood_val(tiny.tiny_run(config(epochs=6, learning_rate=rate), seed)) for seed, rate in rates.items()]
    whole = train_runs("bayes-cal", problem, runs, gradient_norms_every=2)
    chosen = [(r.best["val"].epoch, r.best["ood_val"].epoch) for r in whole]
    assert any(val < 4 for val, _ in chosen)  # before the interruption: what is continued must remember it
    assert any(ood < 4 for _, ood in chosen)
    steps = []
    epoch_of = loop._train_epoch

    def stop_at(method, data, state, epoch, decay):
        if epoch == 4 and len(steps) < 5:
            raise KeyboardInterrupt
        steps.append(epoch)
        return epoch_of(method, data, state, epoch, decay)

    monkeypatch.setattr(loop, "_train_epoch", stop_at)
    with pytest.raises(KeyboardInterrupt):
        train_runs("bayes-cal", problem, runs, checkpoints=tmp_path, gradient_norms_every=2)
    steps += [None]  # the second call may run to the end
    again = train_runs("bayes-cal", problem, runs, checkpoints=tmp_path, gradient_norms_every=2)
    assert steps == [0, 1, 2, 3, None, 4, 5]
    for a, b in zip(whole, again, strict=True):
        assert all(torch.equal(a.params[n], b.params[n]) for n in a.params)
        assert a.curves == b.curves
        assert a.best_epoch == b.best_epoch
        assert a.best.keys() == b.best.keys() == {"val", "ood_val"}
        for metric, best in a.best.items():
            assert best.epoch == b.best[metric].epoch
            assert all(torch.equal(value, b.best[metric].params[n]) for n, value in best.params.items())
        assert a.gradient_norms == b.gradient_norms
        assert a.gradient_norms["epoch"] == [0, 2, 4]


def test_other_gradient_norms_are_another_training(tmp_path):
    """A finished checkpoint without gradient_norms cannot answer a call that asks for them."""
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config(), 1)
    plain, measured_parameters, rarely = (
        train_runs("bayes-cal", problem, [run], checkpoints=tmp_path, gradient_norms_every=every)[0]
        for every in (0, 1, 2)
    )
    assert plain.gradient_norms == {}
    assert measured_parameters.gradient_norms["epoch"] == [0, 1, 2]
    assert rarely.gradient_norms["epoch"] == [0, 2]


def test_checkpoint_of_an_older_format_is_not_continued(tmp_path):
    """The file of an earlier version has the same name and the same identity, but other tensors."""
    from safetensors.torch import save_file

    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config(), 1)
    identity = stack.stack_identity("bayes-cal", problem, [run])
    old = {"best/class.context": torch.zeros(1, 4, 16), "rows/best_epoch": torch.tensor([1])}
    metadata = {"epoch": "2", "identity": identity}
    save_file(old, tmp_path / f"{identity[:24]}.safetensors", metadata=metadata)
    with pytest.warns(BayescalWarning, match="no checksum"):
        (anew,) = train_runs("bayes-cal", problem, [run], checkpoints=tmp_path)
    (fresh,) = train_runs("bayes-cal", problem, [run])
    assert anew.curves == fresh.curves


def test_checkpoint_of_something_else_is_not_continued(tmp_path):
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config(), 1)
    method = get_method("bayes-cal")
    bound = method(problem.task([("photo", "sketch")]), stack.Runs.stack(method.space, [run.config], [1]))
    data = stack_data(problem, [run], [[0, 1]])
    path = tmp_path / "c.safetensors"
    first = train(bound, data, checkpoint=path, identity="a")
    same = train(bound, data, checkpoint=path, identity="b")
    assert all(torch.equal(first.params[n], same.params[n]) for n in first.params)


def test_a_damaged_checkpoint_is_never_continued_and_says_so(tmp_path):
    """A byte changed, cut out or added anywhere: the model is the one that a training from the beginning gives."""
    problem, run = tiny.tiny_problem(), tiny.tiny_run(config(epochs=1), 1)

    def trained() -> list[torch.Tensor]:
        (result,) = train_runs("bayes-cal", problem, [run], checkpoints=tmp_path)
        return [*result.params.values(), *result.best["val"].params.values()]

    fresh = trained()
    (path,) = tmp_path.glob("*.safetensors")
    whole, r = path.read_bytes(), random.Random(0)
    for _ in range(16):
        damaged = bytearray(whole)
        at = r.choice([r.randrange(1200), r.randrange(len(whole))])  # the header is small, and all of it matters
        kind = r.choice(("flip", "cut", "add"))
        if kind == "flip":
            damaged[at] ^= 1 << r.randrange(8)
        elif kind == "cut":
            del damaged[at:]
        else:
            damaged[at:at] = bytes(8)
        path.write_bytes(damaged)
        with pytest.warns(BayescalWarning, match="is not continued, the training starts anew"):
            again = trained()
        assert all(torch.equal(a, b) for a, b in zip(fresh, again, strict=True)), (kind, at)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained()  # the last training wrote a whole one


KILLED = """
import sys; sys.path.insert(0, {tests!r})
import tiny, torch
from pathlib import Path
from bayescal.methods import get_method
from bayescal.methods.hyperparameters import default_config
from bayescal.training import loop
from bayescal.training.stack import train_runs
loop.CHECKPOINT_SECONDS = 0.0
config = default_config(get_method("bayes-cal").space, tiny.Defaults, epochs=2000)
train_runs("bayes-cal", tiny.tiny_problem(), [tiny.tiny_run(config, 1)], checkpoints=Path({folder!r}))
"""


def test_kill_9_leaves_a_whole_checkpoint(tmp_path):
    from safetensors import safe_open

    script = KILLED.format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("*.safetensors")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    (path,) = tmp_path.glob("*.safetensors")
    with safe_open(path, framework="pt") as file:
        epoch = int(file.metadata()["epoch"])
    assert 0 < epoch < 2000
    full = config(epochs=2000)
    state = {}
    original = loop.State.load

    def load(self, *args):
        original(self, *args)
        state["epoch"] = self.epoch
        self.epoch = 2000 if self.epoch else 0  # enough: it was found and belongs to this training

    loop.State.load = load
    try:
        train_runs("bayes-cal", tiny.tiny_problem(), [tiny.tiny_run(full, 1)], checkpoints=tmp_path)
    finally:
        loop.State.load = original
    assert state["epoch"] == epoch


def test_another_validation_set_is_another_training(tmp_path):
    """A checkpoint holds validation curves and the best epoch: with other evaluated images it must not be continued."""
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config(), 1)
    train_runs("bayes-cal", problem, [run], checkpoints=tmp_path)
    other = replace(run, eval_sets={**run.eval_sets, "val": run.eval_sets["val"][:3]})
    resumed = train_runs("bayes-cal", problem, [other], checkpoints=tmp_path)[0]
    fresh = train_runs("bayes-cal", problem, [other])[0]
    assert resumed.curves["val"] == fresh.curves["val"]
