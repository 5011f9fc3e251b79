"""A checksum inside a JSON object: content that is not as it was written is found out."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

KEY = "checksum"


def checksum(content: Mapping[str, Any]) -> str:
    """SHA-256 of an object without its own checksum; blanks and the order of names make no difference."""
    rest = {name: value for name, value in content.items() if name != KEY}
    text = json.dumps(rest, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The object with its checksum."""
    return {**content, KEY: checksum(content)}


def check_seal(content: Mapping[str, Any], required: bool) -> bool:
    """Whether the object has a checksum; a `ValueError` where it is wrong, or missing although it is `required`.

    Content of before there were checksums has none and can only be believed.
    """
    if KEY not in content:
        if required:
            raise ValueError("it has no checksum")
        return False
    if content[KEY] != checksum(content):
        raise ValueError("it is not as it was written (its checksum is another one)")
    return True
