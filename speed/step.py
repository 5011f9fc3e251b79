"""One training step and its text part on a model of CLIP RN50's size, ours against the plain loop.

    python -m speed.step [--repeats 5] [--profile]

The weights are random: speed does not depend on them. Both sides start from the same parameters, see the same 32
images and draw the same noise; their losses must agree before anything is timed. `--profile` says where the time of our
step goes, and what 16-bit text layers (`bench --precision`) would make of it.
"""

import argparse
import copy
import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from bayescal.backbones.defaults import CLIP
from bayescal.backbones.inference import fast_for_inference
from bayescal.methods import get_method
from bayescal.methods.contract import Method, Runs
from bayescal.methods.hyperparameters import default_config
from bayescal.text.open_clip_tower import text_tower_from_open_clip
from bayescal.text.prompt_layout import Layout
from bayescal.text.prompt_tree import PromptTree
from bayescal.text.tower import TextTower
from bayescal.training.loop import StackData, epoch_order, epoch_views, gather_batch, train, training_samples
from bayescal.training.problem import Problem
from bayescal.training.runs import Run
from bayescal.training.stack import stack_data
from speed.measure import (
    CLOCKS,
    Clock,
    Result,
    count_operations,
    interleaved,
    medians,
    peak_memory,
    print_results,
    spread,
)
from speed.names import OFFICE_HOME_CLASSES, OFFICE_HOME_ENVIRONMENTS, PACS_CLASSES, PACS_ENVIRONMENTS
from speed.reference import PlainRun, PromptLearner, Tokenize, random_clip

BATCH, SIDE, SHOTS, SEED = 32, 224, 16, 1
CONTEXT_LENGTH = 77
TOLERANCE = 1e-4
STEP_TARGET, TEXT_TARGET = 25.0, 15.0


@dataclass(frozen=True)
class Setting:
    """The same run on both sides, and the batch that step 0 sees."""

    method: Method
    data: StackData
    plain: PlainRun
    pixels: Tensor
    labels: Tensor
    environments: Tensor

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return epoch_order(self.method.runs.seeds, 0, self.data.train.shape[1], BATCH).shape[1]

    def our_terms(self) -> dict[str, Tensor]:
        batch = first_batch(self.method, self.data)
        terms = self.method.loss(self.method.init(training_samples(self.data)), batch)
        return {name: value.detach()[0] for name, value in terms.items()}

    def plain_terms(self) -> dict[str, Tensor]:
        return self.plain.loss(self.pixels, self.labels, self.environments, 0)

    def our_epoch(self) -> None:
        """An epoch of one run with all that belongs to it: initialisation, batches, gradients, checks, updates."""
        train(self.method, self.data)

    def plain_step(self) -> None:
        self.plain.step(self.pixels, self.labels, self.environments, 0)


def first_batch(method: Method, data: StackData):
    order = epoch_order(method.runs.seeds, 0, data.train.shape[1], method.runs["batch_size"])
    return gather_batch(data, order[:, 0], epoch_views(data, method.runs.seeds, 0), 0)


def make_setting(
    model: nn.Module,
    tokenize: Tokenize,
    method_name: str,
    classes: Sequence[str],
    environments: Sequence[str],
    pixels: Tensor,
    image_features: Tensor,
    *,
    batch_size: int = BATCH,
    **options,
) -> Setting:
    """Bind `method_name` to N images on both sides: image i has class i mod C and environment i mod E."""
    n, config_of, device = len(pixels), get_method(method_name).space, pixels.device
    numbers = torch.arange(n, device=device)
    labels, environment_ids = numbers % len(classes), numbers % len(environments)
    tower = text_tower_from_open_clip(model)
    problem = Problem(
        tower, plain_ids(tokenize, tower), float(model.logit_scale.exp()), image_features, labels, environment_ids,
        tuple(classes), tuple(environments),
    )  # fmt: skip
    config = default_config(config_of, CLIP, batch_size=batch_size, epochs=1, **options)
    run = Run(config, SEED, numbers)
    method = get_method(method_name)(
        problem.task([problem.environment_words]), Runs.stack(config_of, [run.config], [run.seed], device)
    )
    data = stack_data(problem, [run], [list(range(len(environments)))])
    images = data.train[0, epoch_order(method.runs.seeds, 0, n, batch_size)[0, 0]]
    start = method.init(training_samples(data))
    initial = {b: start[key][0] for b, key in branch_keys(start).items()}
    names = {"class": classes, "environment": environments}
    plain = PlainRun(method_name, model, tokenize, names, initial, config, SEED, n)
    return Setting(method, data, plain, pixels[images], labels[images], environment_ids[images])


def branch_keys(params: dict[str, Tensor]) -> dict[str, str]:
    """Where a method keeps the context of each branch: CoOp has one branch and does not name it."""
    keys = {"class": "context"} if "context" in params else {}
    return keys | {key.removesuffix(".context"): key for key in params if key.endswith(".context")}


def plain_ids(tokenize: Tokenize, tower: TextTower):
    """Token ids without start, end and padding, from open_clip's padded ones."""

    def ids(text: str) -> list[int]:
        padded = tokenize([text])[0].tolist()
        return padded[1 : padded.index(tower.end_token)]

    return ids


def check_losses(setting: Setting, tolerance: float = TOLERANCE) -> float:
    """The largest relative difference of any term; an error above `tolerance`."""
    ours, plain = setting.our_terms(), setting.plain_terms()
    if ours.keys() != plain.keys():
        raise AssertionError(f"the two sides have different terms: {sorted(ours)} and {sorted(plain)}")
    gaps = {name: float((ours[name] - plain[name].detach()).abs() / plain[name].detach().abs()) for name in ours}
    if gaps["total"] > tolerance:
        raise AssertionError(f"the two sides do not compute the same loss; relative differences: {gaps}")
    return gaps["total"]


def lively_images(model: nn.Module, n: int) -> Tensor:
    """Random images, and batch norms set to their statistics: else a random tower gives all the same feature."""
    generator = torch.Generator().manual_seed(SEED)
    pixels = torch.randn(n, 3, 1, 1, generator=generator) + torch.randn(n, 3, SIDE, SIDE, generator=generator)
    pixels = pixels.to(next(model.parameters()).device)
    for module in model.visual.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            module.momentum = 1.0  # running statistics become this batch's
    with torch.no_grad():
        model.visual.train()(pixels[:BATCH])
    model.visual.eval()
    return pixels


def step_benchmark(model: nn.Module, tokenize: Tokenize, repeats: int, clock: Clock) -> Result:
    """Bayes-CAL on 7 classes and 4 environments, 16 context vectors, 32 images."""
    pixels = lively_images(model, SHOTS * len(PACS_CLASSES))
    visual = fast_for_inference(copy.deepcopy(model.visual))
    with torch.inference_mode():
        features = torch.cat([visual(part) for part in pixels.split(BATCH)])
    features = features.clone()  # outside inference mode: an ordinary tensor
    setting = make_setting(model, tokenize, "bayes-cal", PACS_CLASSES, PACS_ENVIRONMENTS, pixels, features)
    gap = check_losses(setting)
    times = interleaved({"ours": setting.our_epoch, "plain": setting.plain_step}, repeats, clock=clock)
    times["ours"] = [seconds / setting.steps for seconds in times["ours"]]
    middle = medians(times)
    start = setting.method.init(training_samples(setting.data))
    batch = first_batch(setting.method, setting.data)
    notes = {
        "relative difference of the losses": gap,
        "tokens of the plain loop": CONTEXT_LENGTH * (len(PACS_CLASSES) + len(PACS_ENVIRONMENTS)),
        "operations of the plain loop": count_operations(setting.plain_step),
        **spread(times),
    }
    what = "training step, 11 prompts, 32 images, RN50 size"
    return Result(
        what, middle["ours"], middle["plain"], STEP_TARGET, notes=notes, tokens=len(setting.method.read.packed.mask),
        operations=count_operations(lambda: setting.method.gradients(start, batch)), memory=peak_memory(),
    )  # fmt: skip


def text_benchmark(model: nn.Module, tokenize: Tokenize, repeats: int, clock: Clock) -> Result:
    """Text features of 65 classes and 4 environments and their gradient."""
    tower = text_tower_from_open_clip(model)
    ids = plain_ids(tokenize, tower)
    context = 0.02 * torch.randn(16, tower.width, generator=torch.Generator().manual_seed(SEED))
    context.requires_grad_()
    branches = (OFFICE_HOME_CLASSES, OFFICE_HOME_ENVIRONMENTS)
    trees = [PromptTree(tower, [[ids(name) for name in names]], Layout(len(context)), ids(".")) for names in branches]
    learners = [PromptLearner(model, tokenize, names, context.detach()) for names in branches]
    directions = torch.randn(sum(map(len, branches)), tower.dim, generator=torch.Generator().manual_seed(SEED))

    def ours() -> tuple[Tensor, Tensor]:
        features = torch.cat([tree(context[None, None])[0, 0] for tree in trees])
        return features, torch.autograd.grad((features * directions).sum(), context)[0]

    def plain_features() -> Tensor:
        return torch.cat([learner(context) for learner in learners])

    def plain() -> tuple[Tensor, Tensor]:
        features = plain_features()
        return features, torch.autograd.grad((features * directions).sum(), context)[0]

    gaps = [float((a - b).detach().abs().max() / b.detach().abs().max()) for a, b in zip(ours(), plain(), strict=True)]
    if max(gaps) > TOLERANCE:
        raise AssertionError(f"the two sides differ: features by {gaps[0]:.1e}, gradient by {gaps[1]:.1e}")
    gc.collect()
    times = interleaved({"ours": ours, "plain": plain}, repeats, warmup=0, clock=clock)  # warmed up by the comparison
    middle = medians(times)
    notes = {
        "relative difference of features, gradient": gaps,
        "tokens of the plain loop": CONTEXT_LENGTH * sum(map(len, branches)),
        # torch's counter follows modules, and then knows `backward` only
        "operations of the plain loop": count_operations(lambda: (plain_features() * directions).sum().backward()),
        **spread(times),
    }
    what = "text part, 65 classes + 4 environments, RN50 size"
    return Result(
        what, middle["ours"], middle["plain"], TEXT_TARGET, notes=notes, tokens=sum(tree.n_tokens for tree in trees),
        operations=count_operations(ours), memory=peak_memory(),
    )  # fmt: skip


def run(repeats: int = 5, clock: Clock = time.perf_counter) -> list[Result]:
    torch.manual_seed(SEED)
    model, tokenize = random_clip()
    return [
        step_benchmark(model, tokenize, repeats, clock),
        text_benchmark(model, tokenize, repeats // 2 + 1, clock),
    ]


PRODUCTS = ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm")


def account(repeats: int) -> list[Result]:
    """Where the time of our step goes, in percent of it, and the same step with bfloat16 layers."""
    from torch.profiler import ProfilerActivity, profile

    torch.manual_seed(SEED)
    model, tokenize = random_clip()
    features = torch.randn(SHOTS * len(PACS_CLASSES), 1024)
    images = torch.zeros(len(features), 3, 1, 1)  # which our side never reads
    setting = make_setting(model, tokenize, "bayes-cal", PACS_CLASSES, PACS_ENVIRONMENTS, images, features)
    task = setting.method.task
    lower = replace(task, text=task.text.in_precision(torch.bfloat16))
    rivals = {"float32": setting.method, "bfloat16": type(setting.method)(lower, setting.method.runs)}
    calls = {name: partial(train, method, setting.data) for name, method in rivals.items()}
    middle = medians(interleaved(calls, repeats))
    with profile(activities=[ProfilerActivity.CPU]) as found:
        setting.our_epoch()
    events = found.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    share = lambda wanted: 100 * sum(e.self_cpu_time_total for e in events if wanted(e.key)) / total  # noqa: E731
    return [
        Result("our step, float32", middle["float32"] / setting.steps),
        Result("our step, bfloat16 layers", middle["bfloat16"] / setting.steps),
        Result("share of products, float32", share(lambda key: key in PRODUCTS), unit="%"),
        Result("share of attention, float32", share(lambda key: "scaled_dot_product" in key), unit="%"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    arguments = parser.parse_args()
    print_results(account(arguments.repeats) if arguments.profile else run(arguments.repeats, CLOCKS[arguments.clock]))


if __name__ == "__main__":
    main()
