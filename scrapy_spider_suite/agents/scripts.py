"""The Lua scripts of `registry` and others, each atomic in Redis; they lie in ``lua/``."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

NAMES: Final = ("join", "renew", "leave", "move", "look", "order", "meet")


def _read(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")


WORLD: Final = _read("world")
"""Where scripts get the time from. It is text and no argument, so that no caller can set it."""


class Script(NamedTuple):
    """One script."""

    text: str
    sha: str
    """By which Redis knows it."""


def _script(text: str) -> Script:
    # The digest is Redis's own, and protects nothing.
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def alone(name: str) -> Script:
    """The script *name*, which needs nothing of the registry's."""
    return _script(_read(name))


def timed(name: str) -> Script:
    """The script *name*, which is told the time and the run of the server, and nothing else."""
    return _script(WORLD + _read(name))


def fenced(name: str) -> Script:
    """The script *name*, which does nothing for a process that is not the member any more."""
    return _script(WORLD + _read("rows") + _read("fence") + _read(name))


def load() -> dict[str, Script]:
    """All scripts of the registry by their names."""
    common = WORLD + _read("rows") + _read("common")
    return {name: _script(common + _read(name)) for name in NAMES}
