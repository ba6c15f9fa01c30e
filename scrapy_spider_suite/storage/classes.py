"""Which classes stored bytes may name, and how a class is found again by its name.

Bytes from the disk or from a peer can carry the name of a class. Looking a class up is the only
thing that imports a module here, so it is fenced in: the name has to lie under an allowed prefix,
the module is looked into without running its ``__getattr__``, and what is found has to be a class
that says itself that it has this name (so ``project.jobs:subprocess.Popen`` leads nowhere although
``project.jobs`` imports ``subprocess``).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType

from scrapy_spider_suite.errors import CodecError

_NAME = re.compile(r"(?P<module>\w+(\.\w+)*):(?P<path>\w+(\.\w+)*)")


class ClassList:
    """The classes whose names may be written and read.

    A name is ``package.module:Class`` or ``package.module:Outer.Inner``. *allowed* holds dotted
    prefixes of it (``package``, ``package.module``, ``package.module.Class``). *aliases* gives
    classes a short name and allows them whatever the prefixes say.

    Modules under an allowed prefix are imported when a name asks for them, except ``__main__``
    modules, whose import would run a program.
    """

    def __init__(
        self, allowed: Iterable[str] = (), aliases: Mapping[str, type] | None = None
    ) -> None:
        self.allowed = tuple(dict.fromkeys(allowed))
        self._by_name: dict[str, type] = dict(aliases or {})
        self._names: dict[type, str] = {cls: name for name, cls in self._by_name.items()}

    def __repr__(self) -> str:
        return f"<ClassList: {', '.join(self.allowed) or 'nothing allowed'}>"

    def name_of(self, cls: type) -> str:
        """Return the name by which :meth:`find` finds *cls*; raise CodecError if there is none."""
        name = self._names.get(cls)
        if name is None:
            name = f"{cls.__module__}:{cls.__qualname__}"
            if self.find(name) is not cls:
                raise CodecError(f"{name} is another class of the same name")
            self._names[cls] = name
        return name

    def find(self, name: str) -> type:
        """Return the class called *name*; raise CodecError if it is not allowed or not there."""
        cls = self._by_name.get(name)
        if cls is None:
            cls = self._by_name[name] = self._look_up(name)
        return cls

    def _look_up(self, name: str) -> type:
        match = _NAME.fullmatch(name)
        if match is None:
            raise CodecError(f"class {name!r} cannot be imported by name")
        module, path = match["module"], match["path"]
        dotted = f"{module}.{path}."
        if not any(dotted.startswith(f"{prefix}.") for prefix in self.allowed):
            raise CodecError(f"class {name} is not on the list of storable classes")
        found: object = _import(module)
        for part in path.split("."):
            found = vars(found).get(part) if isinstance(found, (ModuleType, type)) else None
        if not isinstance(found, type) or (found.__module__, found.__qualname__) != (module, path):
            raise CodecError(f"there is no class {name}")
        return found


def _import(module: str) -> ModuleType:
    loaded = sys.modules.get(module)
    if loaded is not None:
        return loaded
    if "__main__" in module.split("."):
        raise CodecError(f"module {module} is a program, it is not imported for a class")
    try:
        return import_module(module)
    except Exception as error:  # a module's own code runs here and may raise anything
        raise CodecError(f"module {module} cannot be imported: {error!r}") from error
