"""Assignment functions by their names: the suite's, and a project's own by its dotted path (U8)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any, Final, NoReturn

import numpy as np
import xxhash

from scrapy_spider_suite.agents.modulo import HostParity, UrlSum
from scrapy_spider_suite.agents.ring import Ring
from scrapy_spider_suite.agents.tables import SETTING, Assignment, Member, Owners
from scrapy_spider_suite.errors import SettingsError
from scrapy_spider_suite.frontier.entries import UNITS
from scrapy_spider_suite.wording import counted

KINDS: Final[dict[str, type[Assignment]]] = {
    "ring": Ring, "url-sum": UrlSum, "host-parity": HostParity,
}  # fmt: skip

_HOSTS: Final = [f"www.sample-{number}.example" for number in range(100)]
_PATHS: Final = ("", "a/page.html", "?q=1")
_MEMBERSHIPS: Final = [
    [Member(f"sample-{number}") for number in range(count)] for count in (1, 2, 5)
]


def assignment_of(name: str) -> Assignment:
    """The assignment function that is called *name*: one of `KINDS`, or a class at a dotted path.

    A class of a project's own is made without arguments, and tried on a sample. Raises
    `SettingsError` if there is none, or if it is not what `Assignment` asks for.
    """
    kind = KINDS.get(name)
    return Own(name) if kind is None else kind()


def fingerprint(assignment: Assignment) -> str:
    """16 hexadecimal digits of what *assignment* makes of a sample.

    Agents that have another function, or another release of a project's own, have other digits; so
    have those of a function that no two processes agree on.
    """
    digest = xxhash.xxh3_64(np.array(_units(assignment), dtype=">u2").tobytes())
    for members in _MEMBERSHIPS:
        digest.update(assignment.table(members).astype(">u2").tobytes())
    return digest.hexdigest()


class Own:
    """`Assignment` by a project's class, of which everything is checked.

    Whatever goes wrong in it, also later, is raised as `SettingsError`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._own = self._made()
        if not isinstance(getattr(self._own, "by_host", None), bool):
            self._refuse("a class with by_host, which is True or False")
        self.by_host: bool = self._own.by_host
        self._try()

    def unit(self, host: str, url: str) -> int:
        """See `Assignment`."""
        try:
            unit = operator.index(self._own.unit(host, url))
        except Exception as error:  # a project's code may raise anything
            self._fail(f"unit({host!r}, {url!r})", error)
        if not 0 <= unit < UNITS:
            self._refuse(f"unit({host!r}, {url!r}) from 0 to {UNITS - 1:,}, not {unit}")
        return unit

    def table(self, members: Sequence[Member]) -> Owners:
        """See `Assignment`."""
        what = f"table() of {counted(len(members), 'member')}"
        try:
            owners = np.asarray(self._own.table(members))
        except Exception as error:  # a project's code may raise anything
            self._fail(what, error)
        if owners.shape != (UNITS,) or owners.dtype.kind not in "iu":
            got = f"{owners.dtype} of shape {owners.shape}"
            self._refuse(f"table() to return an array of {UNITS:,} integers, not {got}")
        if owners.min() < 0 or owners.max() >= len(members):
            self._refuse(f"{what} to hold 0 to {len(members) - 1}")
        return owners.astype(np.uint16)

    def _made(self) -> Any:
        try:
            found = resolve_name(self._path)
        except Exception as error:  # importing a project's module may raise anything
            raise SettingsError(
                f"{SETTING} = {self._path!r}: neither one of {', '.join(KINDS)} nor a class that "
                f"can be imported: {error}"
            ) from error
        if not isinstance(found, type):
            self._refuse("the import path of a class")
        try:
            return found()
        except Exception as error:  # a project's code may raise anything
            self._fail(f"{found.__name__}()", error)

    def _try(self) -> None:
        """See that a second one agrees with the first, and URLs of one host with each other."""
        units, tables = _units(self), [self.table(members) for members in _MEMBERSHIPS]
        self._own = self._made()
        again = [self.table(members) for members in _MEMBERSHIPS]
        if units != _units(self) or not all(map(np.array_equal, tables, again)):
            self._refuse("a function that says the same of the same, whenever it is asked")
        groups = (units[start : start + len(_PATHS)] for start in range(0, len(units), len(_PATHS)))
        if self.by_host and any(len(set(group)) > 1 for group in groups):
            self._refuse("by_host = False for URLs of a host that lie in different units")

    def _fail(self, what: str, error: Exception) -> NoReturn:
        raise SettingsError(f"{SETTING} = {self._path!r}: {what} failed: {error!r}") from error

    def _refuse(self, allowed: str) -> NoReturn:
        raise SettingsError.of(SETTING, self._path, allowed)


def _units(assignment: Assignment) -> list[int]:
    """The units of the sample, URLs of a host together."""
    return [
        assignment.unit(host, f"https://{host}/{path}") for host in _HOSTS for path in _PATHS
    ]
