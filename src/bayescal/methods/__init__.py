"""Every method: the contract, the hyper-parameters, and who is known by which name (see docs/adding-a-method.md)."""

from bayescal.methods.registry import (
    find_method,
    get_method,
    method_identity,
    method_names,
    method_reference,
    outside_names,
    register_method,
)

__all__ = [
    "find_method",
    "get_method",
    "method_identity",
    "method_names",
    "method_reference",
    "outside_names",
    "register_method",
]
