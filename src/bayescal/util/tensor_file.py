"""A safetensors file written whole or not at all; what the disk refuses is an `OSError`, as of every other file."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bayescal.util.atomic import folder_beside, replaceable, sync, sync_folder

if TYPE_CHECKING:
    from torch import Tensor

_REFUSED = re.compile(r"\(os error (\d+)\)")  # how Rust says it


def write_tensors(path: Path, tensors: "dict[str, Tensor]", metadata: Mapping[str, str]) -> None:
    """The folder is made where there is none; an earlier file is replaced.

    The library writes a temporary file of its own beside the one it is told. In a draft's folder it goes with the
    draft, whoever is killed.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path = replaceable(path)
    with folder_beside(path) as folder:
        draft = folder / path.name
        try:
            save_file(tensors, draft, metadata=dict(metadata))
        except SafetensorError as error:
            raise refused_by_disk(error, path) or error from error
        (folder / "plain").touch()
        shutil.copymode(folder / "plain", draft)  # the library's own files are for their owner alone
        sync(draft)
        os.replace(draft, path)
    sync_folder(path.parent)


def refused_by_disk(error: Exception, path: Path | None = None) -> OSError | None:
    """What the disk said, where an error of the library is about that."""
    if found := _REFUSED.search(str(error)):
        number = int(found[1])
        return OSError(number, os.strerror(number), *([str(path)] if path else []))
    return None
