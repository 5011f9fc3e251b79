"""What prediction needs and no image changes, as a saved model keeps it: tensors by name, and the form they stand in.

`Method.prepare` returns tensors in dictionaries, lists and tuples. The form is the same tree in JSON, with the name of
each tensor in its place:

    {"weights": Tensor, "parts": (Tensor, 2)}
    {"dict": {"weights": {"tensor": "weights"}, "parts": {"tuple": [{"tensor": "parts/0"}, {"value": 2}]}}}
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from bayescal.errors import ArtifactError

Form = dict[str, Any]


class NotKept(Exception):
    """Something is there that is neither a tensor nor plain data: it has to be computed again."""


def taken_apart(value: Any) -> tuple[dict[str, Tensor], Form]:
    """Tensors by name, and the form to put them together again."""
    tensors: dict[str, Tensor] = {}
    form = _form(value, "", tensors)
    return tensors, form


def _form(value: Any, path: str, tensors: dict[str, Tensor]) -> Form:
    if isinstance(value, Tensor):
        if path in tensors:
            raise NotKept(f"two tensors of the name {path!r}")
        tensors[path] = value
        return {"tensor": path}
    below = f"{path}/" if path else ""
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _form(part, f"{below}{key}", tensors) for key, part in value.items()}}
    if type(value) in (list, tuple):
        parts = [_form(part, f"{below}{i}", tensors) for i, part in enumerate(value)]
        return {type(value).__name__: parts}
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return {"value": value}
    raise NotKept(f"a {type(value).__name__}")


def put_together(form: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `taken_apart` was given."""
    kind, content = next(iter(form.items())) if isinstance(form, dict) and len(form) == 1 else (None, None)
    if kind == "tensor" and isinstance(content, str) and content in tensors:
        return tensors[content]
    if kind == "value" and not isinstance(content, dict | list):
        return content
    if kind == "dict" and isinstance(content, dict):
        return {key: put_together(part, tensors) for key, part in content.items()}
    makers: dict[Any, Callable[[list[Any]], Any]] = {"list": list, "tuple": tuple}
    if kind in makers and isinstance(content, list):
        return makers[kind]([put_together(part, tensors) for part in content])
    raise ArtifactError(f"what the model keeps for prediction is described in a way that is unknown: {str(form)[:200]}")
