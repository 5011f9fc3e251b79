"""The README's table of methods, out of what the classes say of themselves."""

import re

from bayescal.methods.contract import Method
from bayescal.methods.registry import find_method, method_names

HEADER = "| name | what it learns | from |\n|---|---|---|"


def methods_table() -> str:
    """Every method of the package on frozen features, as a Markdown table."""
    return "\n".join([HEADER, *(method_row(find_method(name)) for name in method_names())])


def method_row(method: type[Method]) -> str:
    return f"| `{method.name}` | {method.learns} | {source(method.citation)} |"


def source(citation: str) -> str:
    """ "Zhou et al., Learning to Prompt …, IJCV 2022" → "Zhou et al. 2022"; of several works, the last."""
    last = citation.rsplit("; ", 1)[-1]
    authors, years = last.split(",", 1)[0], re.findall(r"\b(?:19|20)\d\d\b", last)
    return f"{authors} {years[-1]}" if years else authors
