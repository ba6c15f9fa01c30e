"""A filter expression as a tree, and back as text."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Constant:
    """``TRUE`` or ``FALSE``."""

    value: bool

    def __str__(self) -> str:
        return "TRUE" if self.value else "FALSE"


@dataclass(frozen=True, slots=True)
class Atom:
    """``Name(argument)``; *argument* is what stands between the parentheses, without outer spaces.

    *line* and *column*, from 1, are where it stands, *inside* where its argument does; they say
    nothing of what it is.
    """

    name: str
    argument: str
    line: int = field(default=0, compare=False)
    column: int = field(default=0, compare=False)
    inside: tuple[int, int] = field(default=(0, 0), compare=False)

    def __str__(self) -> str:
        return f"{self.name}({self.argument})"


@dataclass(frozen=True, slots=True)
class Not:
    """``not …``."""

    inner: Node

    def __str__(self) -> str:
        return f"not {_within(self.inner, And, Or)}"


@dataclass(frozen=True, slots=True)
class And:
    """``… and …``: two parts or more, in the order in which they are asked."""

    parts: tuple[Node, ...]

    def __str__(self) -> str:
        return " and ".join(_within(part, And, Or) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    """``… or …``: two parts or more, in the order in which they are asked."""

    parts: tuple[Node, ...]

    def __str__(self) -> str:
        return " or ".join(_within(part, Or) for part in self.parts)


Node = Constant | Atom | Not | And | Or


def _within(part: Node, *looser: type) -> str:
    """*part* as it is written where those that bind *looser* need parentheses."""
    return f"({part})" if isinstance(part, looser) else str(part)
