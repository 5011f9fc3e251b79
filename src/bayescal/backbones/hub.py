"""Published weights: where they are, whether this machine has them, and fetching them."""

import os
import socket
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayescal.errors import BackboneError

_PROBE_SECONDS = 5.0  # the hub's client alone retries for most of a minute when there is no network


@dataclass(frozen=True)
class Published:
    """One set of published weights, and the settings they were trained with."""

    architecture: str
    tag: str
    url: str  # direct address, or ""
    repository: str  # on the Hugging Face hub, or ""
    filenames: tuple[str, ...]  # in the repository; any one of them will do
    settings: dict[str, Any]  # open_clip's entry: quick_gelu, mean, std, interpolation, resize_mode …

    @property
    def quick_gelu(self) -> bool:
        return bool(self.settings.get("quick_gelu", False))

    @property
    def origin(self) -> str:
        return f"hf-hub {self.repository}" if self.repository else self.url

    def cached(self) -> Path | None:
        """The weights file, where this machine already has it."""
        if self.repository:
            from huggingface_hub import try_to_load_from_cache

            for filename in self.filenames:
                found = try_to_load_from_cache(self.repository, filename)
                if isinstance(found, str):
                    return Path(found)
        if self.url:  # where open_clip and OpenAI's own package put what they download
            path = Path("~/.cache/clip").expanduser() / self.url.rsplit("/", 1)[-1]
            if path.is_file():
                return path
        return None

    def fetch(self) -> Path:
        """The weights file, downloaded if need be; without network a `BackboneError` that says what to do."""
        if (path := self.cached()) is not None:
            return path
        from open_clip.pretrained import download_pretrained

        server = _hub_address() if self.repository else self.url
        if not _reachable(server):
            raise BackboneError(self._by_hand(f"{urllib.parse.urlsplit(server).hostname} cannot be reached"))
        try:
            return Path(download_pretrained(self.settings))
        except Exception as error:  # network libraries raise everything from OSError to their own kinds
            raise BackboneError(self._by_hand(str(error).splitlines()[0][:200])) from error

    def _by_hand(self, reason: str) -> str:
        lines = [
            f"the weights of {self.architecture}:{self.tag} are not on this machine and could not be "
            f"downloaded ({reason}). Without network: download a file where there is one, copy it here and name it:"
        ]
        name = f"{self.architecture}:{self.tag}"
        if self.url:
            # OpenAI's archives are recognised by their content; other files do not say what they need
            plain = self.architecture if self.tag == "openai" else name
            lines.append(f'  {self.url}\n    --backbone "{plain}:/path/to/{self.url.rsplit("/", 1)[-1]}"')
        if self.repository:
            lines.append(
                f"  {' or '.join(self.filenames)} from {_hub_address()}/{self.repository}\n"
                f'    --backbone "{name}:/path/to/{self.filenames[0]}"'
            )
        lines.append('Or use the backbone that comes with the package: --backbone "mini"')
        return "\n".join(lines)


def published(architecture: str) -> dict[str, Published]:
    """The weights that open_clip knows for an architecture, by tag."""
    from open_clip.pretrained import get_pretrained_cfg, list_pretrained_tags_by_model

    tags = list_pretrained_tags_by_model(architecture)
    return {tag: _published(architecture, tag, get_pretrained_cfg(architecture, tag)) for tag in tags}


def _published(architecture: str, tag: str, settings: dict[str, Any]) -> Published:
    # open_clip writes "org/name/" for its usual file names and "org/name/file" for others
    repository, filename = os.path.split(settings.get("hf_hub", ""))
    filenames: tuple[str, ...] = ()
    if repository:
        plain = filename or "open_clip_pytorch_model.bin"
        safe = os.path.splitext(filename)[0] + ".safetensors" if filename else "open_clip_model.safetensors"
        filenames = tuple(dict.fromkeys((safe, plain)))
    return Published(architecture, tag, settings.get("url", ""), repository, filenames, settings)


def _hub_address() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _reachable(address: str) -> bool:
    """Whether a server answers at all, within seconds. Behind a proxy this cannot be told: assume so."""
    if urllib.request.getproxies().keys() & {"https", "http", "all"}:
        return True
    parts = urllib.parse.urlsplit(address)
    try:
        port = parts.port or (80 if parts.scheme == "http" else 443)
        with socket.create_connection((parts.hostname or "", port), timeout=_PROBE_SECONDS):
            return True
    except OSError:
        return False
