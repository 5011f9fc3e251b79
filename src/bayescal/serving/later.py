"""A desk that is made when somebody first opens the page.

An exported model answers programs without torch, which the page needs: a server that nobody looks at stays small and
writes nothing.
"""

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

from bayescal.errors import BayescalError
from bayescal.serving.problems import Problem

if TYPE_CHECKING:
    from bayescal.serving.desk import Desk
    from bayescal.serving.service import Service


class LaterDesk:
    """Has what the desk has that `make` returns."""

    def __init__(self, make: "Callable[[], Desk]"):
        self._make, self._mutex = make, Lock()
        self._desk: Desk | None = None

    def answers_by(self, service: "Service") -> None:
        """An exported model is not taught, so its engine stays."""

    def __getattr__(self, name: str) -> Any:
        with self._mutex:
            if self._desk is None:
                try:
                    self._desk = self._make()
                except BayescalError as error:
                    raise Problem(422, str(error)) from error
        return getattr(self._desk, name)
