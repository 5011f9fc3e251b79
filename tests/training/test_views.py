"""Augmented views: which one of an image's views each epoch trains on."""

from dataclasses import replace

import torch

import tiny
from bayescal.methods import get_method
from bayescal.methods.contract import Batch
from bayescal.methods.hyperparameters import default_config
from bayescal.methods.text.coop import CoOp
from bayescal.training.stack import train_runs

EPOCHS = 60


def views_seen(monkeypatch, n_views: int, seeds: tuple[int, ...]) -> list[torch.Tensor]:
    """The view of each training image in each of EPOCHS epochs, (EPOCHS, n) per run; every batch is looked at."""
    problem = tiny.tiny_problem()
    # A feature that says which image and which view it is; the first of 12 coordinates is enough of a feature.
    names = torch.arange(120.0)[:, None] * 100 + torch.arange(float(n_views))
    views = torch.stack([names, *[torch.randn(120, n_views)] * 11], dim=-1)
    problem = replace(problem, views=views, view_rows=torch.arange(120))
    made = default_config(get_method("coop").space, tiny.Defaults, epochs=EPOCHS)
    runs = [tiny.tiny_run(made, seed) for seed in seeds]
    n = len(runs[0].train)
    seen = [{(epoch, int(image)): set() for epoch in range(EPOCHS) for image in run.train} for run in runs]
    loss = CoOp.loss

    def watched(self, params, batch: Batch):
        epoch = int(batch.step) // -(-n // min(made["batch_size"], n))
        for row, found in enumerate(batch.features[:, :, 0].long().tolist()):
            for name in found:
                seen[row][epoch, name // 100].add(name % 100)
        return loss(self, params, batch)

    monkeypatch.setattr(CoOp, "loss", watched)
    train_runs("coop", problem, runs)
    assert all(len(views) == 1 for row in seen for views in row.values())  # one view of an image in an epoch
    return [torch.tensor([v.pop() for v in row.values()]).view(EPOCHS, n) for row in seen]


def test_as_many_views_as_epochs_are_a_fresh_one_in_every_epoch(monkeypatch):
    """Of 30 views, 30 epochs use 30, in an order of each image's own; the next 30 epochs use them in another order."""
    for seen in views_seen(monkeypatch, 30, seeds=(1, 2)):
        first, second = seen[:30], seen[30:]
        for part in (first, second):
            assert torch.equal(part.sort(dim=0).values, torch.arange(30)[:, None].expand_as(part))
        assert not torch.equal(first, second)
        assert len(set(map(tuple, first.T.tolist()))) == seen.shape[1]


def test_a_stack_uses_the_views_that_its_runs_use_alone(monkeypatch):
    together = views_seen(monkeypatch, 7, seeds=(1, 2))
    monkeypatch.undo()
    assert torch.equal(together[1], views_seen(monkeypatch, 7, seeds=(2,))[0])
    assert not torch.equal(*together)


def test_fewer_views_than_epochs_come_back_only_after_all_the_others(monkeypatch):
    (seen,) = views_seen(monkeypatch, 7, seeds=(3,))
    for start in range(0, EPOCHS - 6, 7):
        part = seen[start : start + 7]
        assert torch.equal(part.sort(dim=0).values, torch.arange(7)[:, None].expand_as(part))
