"""Where the context vectors of a prompt stand."""

from dataclasses import dataclass

from bayescal.errors import BackboneError

POSITIONS = ("end", "middle")


@dataclass(frozen=True)
class Layout:
    """Where the context vectors stand.

    `end`: [V]1 … [V]M name "."        `middle`: half of the vectors before the name, half after.
    `class_specific`: every name has context vectors of its own instead of sharing one set.
    """

    n_context: int = 16
    position: str = "end"
    class_specific: bool = False

    def __post_init__(self) -> None:
        if self.position not in POSITIONS:
            raise BackboneError(f"position is {self.position!r}, expected one of {', '.join(POSITIONS)}")
        if self.n_context < 1:
            raise BackboneError(f"n_context is {self.n_context}, expected at least 1")

    @property
    def n_before(self) -> int:
        return self.n_context if self.position == "end" else self.n_context // 2

    def context_shape(self, n_names: int, width: int) -> tuple[int, ...]:
        """Shape of one run's context: (M, W), or (K, M, W) when class-specific."""
        shared = (self.n_context, width)
        return (n_names, *shared) if self.class_specific else shared
