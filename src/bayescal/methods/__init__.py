"""Every method, by name. Adding one is a file here and a line in REGISTRY (see docs/adding-a-method.md)."""

import difflib
from importlib import import_module
from typing import TYPE_CHECKING

from bayescal.errors import MethodError

if TYPE_CHECKING:
    from bayescal.methods.base import Method

REGISTRY = {
    "clip": "zero_shot.ZeroShot",
    "coop": "coop.CoOp",
    "cal": "cal.CAL",
    "bayes-cal": "bayes_cal.BayesCAL",
    "cal-lv": "lv.CALLV",
    "bayes-cal-lv": "lv.BayesCALLV",
    "cal-w2v": "w2v.CALW2V",
    "bayes-cal-w2v": "w2v.BayesCALW2V",
    "cocoop": "cocoop.CoCoOp",
    "dplclip": "dplclip.DPLCLIP",
    # on the image side (methods/adapters, methods/visual)
    "clip-adapter": "adapters.clip_adapter.CLIPAdapter",
    "tip-adapter": "adapters.tip_adapter.TipAdapter",
    "tip-adapter-f": "adapters.tip_adapter.TipAdapterF",
    "visual-mlp": "visual.mlp.VisualMLP",
    "erm": "visual.erm.ERM",
    "irm": "visual.irm.IRM",
    "vrex": "visual.vrex.VREx",
    "groupdro": "visual.groupdro.GroupDRO",
    "andmask": "visual.andmask.ANDMask",
    "rsc": "visual.rsc.RSC",
    "mmd": "visual.mmd.MMD",
    "sagnet": "visual.sagnet.SagNet",
    "mldg": "visual.mldg.MLDG",
    "erdg": "visual.erdg.ERDG",
    "irm-games": "visual.irm_games.IRMGames",
    "stable": "visual.stable.StableLearning",
}
# These learn from pixels, so they exist end to end alone (bayescal.end_to_end).
PIXEL_METHODS = {"jigsaw": "visual.jigsaw.Jigsaw"}


def method_names() -> list[str]:
    return list(REGISTRY)


def get_method(name: str) -> "type[Method]":
    """The method class of this name; an unknown name is answered with the nearest one."""
    if name in PIXEL_METHODS:
        raise MethodError(
            f"method {name!r} needs the images themselves, not their features: train it end to end, "
            f"bayescal fit DATA --method {name} --end-to-end --vision resnet50"
        )
    if name not in REGISTRY:
        near = difflib.get_close_matches(name.lower().replace("_", "-"), REGISTRY, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise MethodError(f"there is no method {name!r}.{hint} Known: {', '.join(REGISTRY)}")
    module, cls = REGISTRY[name].rsplit(".", 1)
    return getattr(import_module(f"bayescal.methods.{module}"), cls)
