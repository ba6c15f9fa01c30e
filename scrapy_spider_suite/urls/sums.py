"""The seeds' hash sums: which node, phase, terminal or thread a URL falls to (K1, K4, T8).

KSpider adds up the characters of the whole URL for a node, and of the host for a phase (§2.1,
§2.2). Tarantula adds up every other character of the host for a terminal and for a thread of it
(§5.1). Both of its equations are printed with the same modulus, "total number of threads per
crawler system", while its text has them tell terminals and threads; and "even" and "odd"
characters are not said to count from 0 or from 1. Here each has a modulus of its own, and the first
character is an even one.

URLs are in normal form, and so are hosts: of characters that are no ASCII their bytes in UTF-8
count. Each function raises `ValueError` if there is none to fall to.
"""

from __future__ import annotations


def node_of(url: str, nodes: int) -> int:
    """The node, from 0, that is responsible for *url* (KSpider, figure 2)."""
    return _bucket(url.encode(), nodes)


def phase_of(host: str, phases: int) -> int:
    """The phase, from 0, in which the pages of *host* are fetched (KSpider, figure 4)."""
    return _bucket(host.encode(), phases)


def terminal_of(host: str, terminals: int) -> int:
    """The terminal, from 0, that has the URLs of *host* (Tarantula, equation 1)."""
    return _bucket(host.encode()[::2], terminals)


def thread_of(host: str, threads: int) -> int:
    """The thread of its terminal, from 0, whose trie holds *host* (Tarantula, equation 2)."""
    return _bucket(host.encode()[1::2], threads)


def _bucket(text: bytes, count: int) -> int:
    if count < 1:
        raise ValueError(f"{count} is no number to divide by: expected at least 1")
    return sum(text) % count
