"""The stacked loop: resume after a kill, rows that fail, checkpoints, determinism, sampling."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import tiny
from bayescal import stacks, training
from bayescal.errors import MethodError
from bayescal.methods import get_method
from bayescal.space import default_config
from bayescal.stacks import stack_data, train_runs
from bayescal.training import epoch_order, gather_batch, train


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
        probs = r.predict(problem, problem.features, draws=0, best=True).probs[0]
        run = tiny.tiny_run(r.config, r.seed)
        rows = run.judged["val"]
        assert float((probs.argmax(-1) == problem.labels)[rows].float().mean()) == pytest.approx(best)


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
    problem = stacks.replace(problem, views=views, view_rows=rows)
    data = stack_data(problem, [run], [[0, 2]])
    seeds = torch.tensor([1])
    batch = gather_batch(data, seeds, torch.arange(18)[None], epoch=0, step=0)
    assert torch.equal(batch.labels[0], problem.labels[run.train])
    assert torch.equal(batch.environments[0], problem.environments[run.train] // 2)  # 0, 2 → 0, 1
    drawn = batch.features[0, :, 0].long()
    assert torch.equal(drawn // 4, torch.arange(18))  # a view of the right image
    assert len(set((drawn % 4).tolist())) > 1
    swapped = gather_batch(data, seeds, torch.arange(18).flip(0)[None], epoch=0, step=0)
    assert torch.equal(swapped.features.flip(1), batch.features)  # the view goes with the image, not with the place
    later = gather_batch(data, seeds, torch.arange(18)[None], epoch=1, step=0)
    assert not torch.equal(later.features, batch.features)


def test_settings_that_differ_make_separate_stacks():
    problem = tiny.tiny_problem()
    runs = [tiny.tiny_run(config(position=p), s) for p in ("end", "middle") for s in (1, 2)]
    runs.append(tiny.tiny_run(config(), 3, n=12))
    groups = list(stacks.group_runs(get_method("bayes-cal"), problem, runs, max_rows=8))
    assert groups == [[0, 1], [2, 3], [4]]
    assert list(stacks.group_runs(get_method("bayes-cal"), problem, runs[:2], max_rows=1)) == [[0], [1]]


@pytest.mark.parametrize("bad", [{"epochs": 0}, {"batch_size": 0}])
def test_nonsense_is_refused(bad):
    with pytest.raises(MethodError, match="at least 1"):
        train_runs("coop", tiny.tiny_problem(), [tiny.tiny_run(default_config(get_method("coop").space, tiny.Defaults, **bad), 1)])  # fmt: skip  # noqa: E501


def test_interrupted_training_continues(tmp_path, monkeypatch):
    """Stop after some epochs by an exception; the second call starts from the checkpoint and ends up the same."""
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    problem = tiny.tiny_problem()
    runs = [tiny.tiny_run(config(epochs=6), seed) for seed in (1, 2)]
    whole = train_runs("bayes-cal", problem, runs)
    steps = []
    epoch_of = training._train_epoch

    def stop_at(method, data, state, epoch, decay):
        if epoch == 4 and len(steps) < 5:
            raise KeyboardInterrupt
        steps.append(epoch)
        return epoch_of(method, data, state, epoch, decay)

    monkeypatch.setattr(training, "_train_epoch", stop_at)
    with pytest.raises(KeyboardInterrupt):
        train_runs("bayes-cal", problem, runs, checkpoints=tmp_path)
    steps += [None]  # the second call may run to the end
    again = train_runs("bayes-cal", problem, runs, checkpoints=tmp_path)
    assert steps == [0, 1, 2, 3, None, 4, 5]
    for a, b in zip(whole, again, strict=True):
        assert all(torch.equal(a.params[n], b.params[n]) for n in a.params)
        assert a.curves == b.curves
        assert a.best_epoch == b.best_epoch


def test_checkpoint_of_something_else_is_not_continued(tmp_path):
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config(), 1)
    method = get_method("bayes-cal")
    bound = method(problem.task([("photo", "sketch")]), stacks.Runs.stack(method.space, [run.config], [1]))
    data = stack_data(problem, [run], [[0, 1]])
    path = tmp_path / "c.safetensors"
    first = train(bound, data, checkpoint=path, identity="a")
    same = train(bound, data, checkpoint=path, identity="b")
    assert all(torch.equal(first.params[n], same.params[n]) for n in first.params)
    path.write_bytes(path.read_bytes()[:100])  # cut short: ignored, trained anew
    train(bound, data, checkpoint=path, identity="b")


KILLED = """
import sys; sys.path.insert(0, {tests!r})
import tiny, torch
from pathlib import Path
from bayescal import training
from bayescal.methods import get_method
from bayescal.space import default_config
from bayescal.stacks import train_runs
training.CHECKPOINT_SECONDS = 0.0
config = default_config(get_method("bayes-cal").space, tiny.Defaults, epochs=2000)
train_runs("bayes-cal", tiny.tiny_problem(), [tiny.tiny_run(config, 1)], checkpoints=Path({folder!r}))
"""


def test_kill_9_leaves_a_whole_checkpoint(tmp_path):
    from safetensors import safe_open

    script = KILLED.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
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
    original = training._State.load

    def load(self, *args):
        original(self, *args)
        state["epoch"] = self.epoch
        self.epoch = 2000 if self.epoch else 0  # enough: it was found and belongs to this training

    training._State.load = load
    try:
        train_runs("bayes-cal", tiny.tiny_problem(), [tiny.tiny_run(full, 1)], checkpoints=tmp_path)
    finally:
        training._State.load = original
    assert state["epoch"] == epoch


def test_another_validation_set_is_another_training(tmp_path):
    """A checkpoint holds validation curves and the best epoch: with other judged images it must not be continued."""
    problem = tiny.tiny_problem()
    run = tiny.tiny_run(config(), 1)
    train_runs("bayes-cal", problem, [run], checkpoints=tmp_path)
    other = stacks.replace(run, judged={**run.judged, "val": run.judged["val"][:3]})
    resumed = train_runs("bayes-cal", problem, [other], checkpoints=tmp_path)[0]
    fresh = train_runs("bayes-cal", problem, [other])[0]
    assert resumed.curves["val"] == fresh.curves["val"]
