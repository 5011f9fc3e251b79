"""The method of a saved model: what is written of it, and how it is found again.

A model names its method, it does not hold it. Built-in methods are named by their name; others also by their class and
the distribution they come from, so that whoever lacks it is told what to install. Reading a model imports nothing but
the module of a method: the package's own, what an installed distribution declares under the name, or a module whose
source defines the class that is named. A model that came from elsewhere cannot have anything else run.
"""

import warnings
from typing import Any

from bayescal.errors import ArtifactError, BayescalError, BayescalWarning
from bayescal.methods import find_method, method_reference, outside_names
from bayescal.methods.contract import Method
from bayescal.methods.registry import BUILT_IN
from bayescal.util.plugins import distribution_of
from bayescal.util.references import check_defines_class, is_reference, reference_of


def saved_method(method: str | type[Method]) -> dict[str, Any]:
    """The entries of a model's config.json that name its method."""
    method = find_method(method)
    reference, cls = method_reference(method), reference_of(method)
    if reference in BUILT_IN:
        return {"method": reference}
    if "<locals>" in cls:
        raise ArtifactError(
            f"the method {method.name!r} is defined inside a function ({cls}), where no one who loads the model would "
            "find it: move the class to the top level of a module"
        )
    if method.__module__ == "__main__":
        warnings.warn(
            f"the method {method.name!r} is defined in a script or notebook, so only there the model can be loaded: "
            "move the class into a module",
            BayescalWarning,
            stacklevel=3,
        )
    return {"method": reference, "method_from": {"class": cls, "distribution": distribution_of(method.__module__)}}


def restored_method(config: dict[str, Any]) -> type[Method]:
    """The class that a model's config names; if it is not here, an `ArtifactError` says what to install."""
    reference, source = str(config["method"]), config.get("method_from") or {}
    try:
        if is_reference(reference):
            check_defines_class(reference, "the method", ArtifactError)
        return find_method(reference)
    except BayescalError as error:
        if reference in BUILT_IN:
            raise
        raise ArtifactError(_missing(reference, source, error)) from error


def _missing(reference: str, source: dict[str, Any], error: BayescalError) -> str:
    """What is missing, and where it came from when the model was made."""
    name, _, version = (source.get("distribution") or "").partition(" ")
    said = f"this model was made with the method {reference!r}, which is not part of bayescal"
    if is_reference(reference) or reference in outside_names():
        said += f". {str(error)[0].upper()}{str(error)[1:]}"
    else:
        said += f" ({source.get('class', 'of unknown class')}): nothing that is installed here declares it"
    return f"{said}. Install what the model was made with: pip install {name}=={version}" if name else said
