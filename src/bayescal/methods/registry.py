"""Methods by name or class, of the package and from outside. Adding one here is a file and a line in BUILT_IN.

    get_method("bayes-cal")                        a method of the package
    get_method(MyMethod)                           a class
    get_method("my_package.my_module:MyMethod")    a class, by where it can be imported
    get_method("kgcoop")                           a name that an installed distribution declares, or register_method

What is saved of a method is `method_reference`: the name of a built-in or declared method, else MODULE:CLASS.
"""

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from bayescal.errors import MethodError
from bayescal.methods.hyperparameters import Param
from bayescal.util.plugins import Plugins
from bayescal.util.references import load_reference, reference_of
from bayescal.util.suggest import did_you_mean

if TYPE_CHECKING:
    from bayescal.methods.contract import Method

GROUP = "bayescal.methods"  # the entry-point group in which distributions declare methods

BUILT_IN = {
    "clip": "text.zero_shot:ZeroShot",
    "coop": "text.coop:CoOp",
    "cal": "text.cal:CAL",
    "bayes-cal": "text.bayes_cal:BayesCAL",
    "cal-lv": "text.lv:CALLV",
    "bayes-cal-lv": "text.lv:BayesCALLV",
    "cal-w2v": "text.w2v:CALW2V",
    "bayes-cal-w2v": "text.w2v:BayesCALW2V",
    "taskres": "text.taskres:TaskRes",
    "bayes-taskres": "text.taskres:BayesTaskRes",
    "cocoop": "text.cocoop:CoCoOp",
    "dplclip": "text.dplclip:DPLCLIP",
    "clip-adapter": "adapters.clip_adapter:CLIPAdapter",
    "tip-adapter": "adapters.tip_adapter:TipAdapter",
    "tip-adapter-f": "adapters.tip_adapter:TipAdapterF",
    "logistic-regression": "adapters.logistic_regression:LogisticRegression",
    "visual-mlp": "domain_generalization.mlp:VisualMLP",
    "erm": "domain_generalization.erm:ERM",
    "irm": "domain_generalization.irm:IRM",
    "vrex": "domain_generalization.vrex:VREx",
    "groupdro": "domain_generalization.groupdro:GroupDRO",
    "andmask": "domain_generalization.andmask:ANDMask",
    "rsc": "domain_generalization.rsc:RSC",
    "mmd": "domain_generalization.mmd:MMD",
    "sagnet": "domain_generalization.sagnet:SagNet",
    "mldg": "domain_generalization.mldg:MLDG",
    "erdg": "domain_generalization.erdg:ERDG",
    "irm-games": "domain_generalization.irm_games:IRMGames",
    "stable": "domain_generalization.stable:StableLearning",
    "jigsaw": "domain_generalization.jigsaw:Jigsaw",
}

_references: "WeakKeyDictionary[type[Method], str]" = WeakKeyDictionary()  # to find one out is costly

_SAID = ("name", "title", "learns", "cost", "citation")  # what every method says of itself, in words
_OPTIMISED = ("learning_rate", "weight_decay", "epochs", "batch_size")  # what training by gradient needs (COMMON)
_NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")

M = TypeVar("M", bound="type[Method]")


def method_names() -> list[str]:
    """The package's methods on frozen features, in the order of the paper's tables."""
    return [name for name in BUILT_IN if find_method(name).on_features]


def outside_names() -> list[str]:
    """Names of methods from outside: registered in this process, or declared by installed distributions."""
    return _outside.names()


def get_method(method: "str | type[Method]") -> "type[Method]":
    """The class of a method that learns on frozen features.

    Parameters
    ----------
    method : str or subclass of Method
        A name (`bayescal methods` lists them), a subclass of `Method`, or "module:Class".

    Returns
    -------
    subclass of Method
        A name that nobody knows, a module that cannot be imported and a class that is not a whole method are a
        `MethodError` that says what to do.

    Examples
    --------
    >>> from bayescal import get_method
    >>> get_method("coop").title
    'CoOp'
    """
    found = find_method(method)
    if not found.on_features:
        raise MethodError(
            f"method {found.name!r} needs the images themselves, not their features: train it end to end, "
            f"bayescal fit DATA --method {method_reference(found)} --end-to-end --vision resnet50"
        )
    return found


def find_method(method: "str | type[Method]") -> "type[Method]":
    """The class of any method, also of one that only trains an image model."""
    if isinstance(method, type):
        return check_method(method)
    if not isinstance(method, str):
        raise MethodError(f"expected a method's name or its class, found {method!r}")
    if method in BUILT_IN:
        return _built_in(method)
    if ":" in method:
        return _by_reference(method)
    found = _outside.find(method)
    if found is None:
        raise MethodError(_unknown(method))
    return found


def _built_in(name: str) -> "type[Method]":
    module, cls = BUILT_IN[name].split(":")
    return getattr(import_module(f"bayescal.methods.{module}"), cls)


def _by_reference(reference: str) -> "type[Method]":
    # A registered class answers to its reference too: one that is defined inside a function has no other way.
    for cls in _outside.registered.values():
        if reference_of(cls) == reference:
            return cls
    return check_method(load_reference(reference, "method", MethodError), reference)


def _unknown(name: str) -> str:
    known = [*BUILT_IN, *outside_names()]
    hint = did_you_mean(name, known)
    if "." in name:
        hint = f" A class is written module:Class, here {':'.join(name.rsplit('.', 1))}."
    return (
        f"there is no method {name!r}.{hint} Known: {', '.join(known)}. A method of your own is module:Class, or the "
        "name that an installed distribution declares for it"
    )


def register_method(cls: M) -> M:
    """Make a method known by its name in this process; also a decorator.

    Parameters
    ----------
    cls : subclass of Method
        Its `name` is one that no other method has.

    Returns
    -------
    subclass of Method
        The class itself.

    Examples
    --------
    >>> from bayescal import get_method, register_method
    >>> from bayescal.methods.text.coop import CoOp
    >>> @register_method
    ... class LongCoOp(CoOp):
    ...     name = "long-coop"
    ...     title = "Long CoOp"
    >>> get_method("long-coop") is LongCoOp
    True
    """
    _outside.register(cls)
    return cls


def method_reference(method: "str | type[Method]") -> str:
    """What others find the method by: its name if it is built in or declared by a distribution, else module:Class."""
    cls = find_method(method)
    if cls not in _references:
        # No other class may have the name of a built-in method (`check_method`).
        by_name = cls.name in BUILT_IN or _outside.declared(cls.name) is cls
        _references[cls] = cls.name if by_name else reference_of(cls)
    return _references[cls]


def method_identity(method: "str | type[Method]") -> str:
    """What stands for the method in the keys of records and checkpoints: its reference, and its version after 1."""
    cls = find_method(method)
    return method_reference(cls) + ("" if cls.version == 1 else f" version {cls.version}")


def check_method(cls: Any, where: str = "") -> "type[Method]":
    """The class itself, if it is a whole method; else a `MethodError` that names what is missing or wrong."""
    from bayescal.methods.contract import Method

    if not isinstance(cls, type) or not issubclass(cls, Method):
        where = f"{where}: " if where else ""
        raise MethodError(f"{where}expected a method, a subclass of bayescal.Method; found {cls!r}")
    if problem := _problem(cls):
        raise MethodError(f"{reference_of(cls)} {problem} (docs/adding-a-method.md)")
    if cls.name in BUILT_IN and cls is not _built_in(cls.name):
        raise _outside.taken(cls, f"bayescal.methods.{BUILT_IN[cls.name]}")
    return cls


def _problem(cls: "type[Method]") -> str:
    """What keeps a class from being a method, as the end of a sentence; "" if nothing does."""
    if missing := [name for name in (*_SAID, "space") if not hasattr(cls, name)]:
        return f"does not say its {', '.join(missing)}: class attributes that every method has"
    if wrong := [name for name in _SAID if not isinstance(getattr(cls, name), str) or not getattr(cls, name)]:
        return f"has a {wrong[0]} of {getattr(cls, wrong[0])!r}: expected some words"
    if not _NAME.fullmatch(cls.name):
        return f"has the name {cls.name!r}: expected lower-case letters and digits, with hyphens between"
    if inspect.isabstract(cls):
        return f"does not define {', '.join(sorted(cls.__abstractmethods__))}, which every method has"
    if not isinstance(cls.space, Mapping) or not all(isinstance(param, Param) for param in cls.space.values()):
        return "has a space that is no search space: expected {name: number(default, draw) or setting(default, draw)}"
    if cls.trained_by_gradient and (lost := [name for name in _OPTIMISED if name not in cls.space]):
        return f"is trained by gradient but has no {', '.join(lost)} in its space: start it with **COMMON"
    if unknown := [name for name in cls.file_options if name not in cls.space]:
        return f"names the file option {unknown[0]!r}, which is not in its space"
    if not (cls.on_features or cls.end_to_end):
        return "learns neither on features nor end to end: one of on_features and end_to_end has to be True"
    if cls.end_to_end and "network" not in inspect.signature(cls).parameters:
        return "says end_to_end, but takes no network: derive it from VisualMethod"
    return ""


_outside: "Plugins[type[Method]]" = Plugins(GROUP, "method", MethodError, BUILT_IN, check_method, reference_of)
