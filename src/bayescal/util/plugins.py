"""Methods and data sets that live outside the package, by name.

A name is declared by an installed distribution, as an entry point of a group, or registered in this process. Listing
names imports nothing; looking one up imports what it names and nothing else.
"""

import warnings
from collections.abc import Callable, Collection
from importlib import metadata
from typing import Generic, Protocol, TypeVar

from bayescal.errors import BayescalError, BayescalWarning
from bayescal.util.references import load_reference


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Plugins(Generic[T]):
    """What is known by name from outside, of one kind (`what`, for messages)."""

    def __init__(
        self,
        group: str,
        what: str,
        error: type[BayescalError],
        built_in: Collection[str],
        check: Callable[[object, str], T],
        reference: Callable[[T], str],
    ):
        """`check(thing, where it was found)` gives the thing back or refuses it; `reference` says where one lives."""
        self.group, self.what, self.error, self.built_in = group, what, error, built_in
        self.check, self.reference = check, reference
        self.registered: dict[str, T] = {}
        # To look an entry point up, the metadata of every installed distribution are read: once is enough.
        self._loaded: dict[str, T] = {}

    def names(self) -> list[str]:
        """All names but those of the package's own, which nobody can take over."""
        declared = entry_points(self.group)
        for name in sorted(set(declared) & set(self.built_in)):
            others = ", ".join(map(distribution, declared[name]))
            message = f"the {self.what} {name!r} of {others} is not used: bayescal has one of that name"
            warnings.warn(message, BayescalWarning, stacklevel=3)
        return [name for name in dict.fromkeys([*self.registered, *sorted(declared)]) if name not in self.built_in]

    def register(self, thing: T, where: str = "") -> T:
        """Make something known by its name in this process."""
        thing = self.check(thing, where)
        other = self.registered.get(thing.name, thing)
        # The same again, after a reload or when a notebook's cell is run twice, takes the place of the old one.
        if self.reference(other) != self.reference(thing):
            raise self.taken(thing, self.reference(other))
        for entry in entry_points(self.group).get(thing.name, []):
            if load_reference(_target(entry), self.what, self.error) is not thing:
                raise self.taken(thing, f"{entry.value} of {distribution(entry)}")
        self.registered[thing.name] = thing
        return thing

    def taken(self, thing: T, by: str) -> BayescalError:
        return self.error(f"{self.reference(thing)}: the name {thing.name!r} is that of {by}. Give yours another name")

    def find(self, name: str) -> T | None:
        """The thing of this name; None if nobody outside has it."""
        return self.registered.get(name) or self.declared(name)

    def declared(self, name: str) -> T | None:
        """The thing that an installed distribution declares under this name."""
        if name in self._loaded:
            return self._loaded[name]
        entries = entry_points(self.group).get(name, [])
        if not entries:
            return None
        if len(entries) > 1:
            owners = " and ".join(sorted(f"{distribution(entry)} ({entry.value})" for entry in entries))
            raise self.error(f"the {self.what} {name!r} is declared twice, by {owners}: uninstall one of them")
        self._loaded[name] = self._load(entries[0])
        return self._loaded[name]

    def _load(self, entry: metadata.EntryPoint) -> T:
        try:
            thing = self.check(load_reference(_target(entry), self.what, self.error), entry.value)
        except BayescalError as problem:
            raise self.error(f"{problem} (declared by {distribution(entry)})") from problem
        if thing.name != entry.name:
            raise self.error(
                f"{distribution(entry)} declares the {self.what} {entry.name!r}, but {entry.value} calls itself "
                f"{thing.name!r}: the two names have to be equal"
            )
        return thing


def entry_points(group: str) -> dict[str, list[metadata.EntryPoint]]:
    """What installed distributions declare in this group, by name; more than one where several use the same name."""
    found: dict[str, list[metadata.EntryPoint]] = {}
    for entry in metadata.entry_points(group=group):
        same = found.setdefault(entry.name, [])
        if entry.value not in [other.value for other in same]:  # a distribution may be on the path twice
            same.append(entry)
    return found


def distribution(entry: metadata.EntryPoint) -> str:
    """Where an entry point comes from: "bayescal-kgcoop 1.0"."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


def distribution_of(module_name: str) -> str | None:
    """Name and version of the installed distribution that a module belongs to; None: of none, a loose file."""
    names = metadata.packages_distributions().get(module_name.partition(".")[0], [])
    return f"{names[0]} {metadata.version(names[0])}" if names else None


def _target(entry: metadata.EntryPoint) -> str:
    return entry.value.partition("[")[0].strip()
