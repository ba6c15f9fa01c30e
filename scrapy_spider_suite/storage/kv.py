"""The small store that persistent parts are given: bytes in, bytes out.

Robots verdicts, cookie jars and spider state each need a few keys that outlive the process.
They ask for a `KV` and do not care what stands behind it: a column family of the job's
database, or `MemoryKV` where there is no job. Every implementation passes the contract in
``tests/storage/test_kv.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class KV(Protocol):
    """An ordered map from bytes to bytes.

    Keys are not empty. Values may be empty, and an empty value is not a missing one. A value
    comes back as it was stored; whoever reads it treats it as data, never as code.
    """

    def get(self, key: bytes) -> bytes | None:
        """Return the value stored under *key*, or None if there is none."""
        ...

    def put(self, key: bytes, value: bytes) -> None:
        """Store *value* under *key*, replacing what was there."""
        ...

    def delete(self, key: bytes) -> None:
        """Forget *key*. Forgetting an unknown key is not an error."""
        ...

    def items(self, prefix: bytes = b"", since: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs whose key begins with *prefix*, in byte order of the keys.

        Of those only the ones whose rest is at least *since*. They are the pairs of the moment of
        the call: the caller may put and delete meanwhile.
        """
        ...


class MemoryKV:
    """A `KV` in a dict, for crawls without a job directory; it ends with the process.

    Nothing bounds it: a caller that stores without end keeps its own bound.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<MemoryKV: {len(self._rows)} keys>"

    def get(self, key: bytes) -> bytes | None:
        """Return the value stored under *key*, or None if there is none."""
        return self._rows.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Store *value* under *key*, replacing what was there."""
        self._rows[key] = value

    def delete(self, key: bytes) -> None:
        """Forget *key*. Forgetting an unknown key is not an error."""
        self._rows.pop(key, None)

    def items(self, prefix: bytes = b"", since: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Return the pairs whose key begins with *prefix* now, in byte order of the keys."""
        first = prefix + since
        found = sorted(key for key in self._rows if key.startswith(prefix) and key >= first)
        return iter([(key, self._rows[key]) for key in found])


class PrefixedKV:
    """The keys of a larger map that begin with *prefix*, without it.

    *get*, *change* (to None: delete) and *scan*, from a key on, are the map's.
    """

    def __init__(
        self, prefix: bytes, get: Callable[[bytes], bytes | None],
        change: Callable[[bytes, bytes | None], None],
        scan: Callable[[bytes], Iterator[tuple[bytes, bytes]]],
    ) -> None:  # fmt: skip
        self._prefix = prefix
        self._get = get
        self._change = change
        self._scan = scan

    def get(self, key: bytes) -> bytes | None:
        """The value of *key*, or None."""
        return self._get(self._prefix + key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set *key*."""
        self._change(self._prefix + key, value)

    def delete(self, key: bytes) -> None:
        """Remove *key*."""
        self._change(self._prefix + key, None)

    def items(self, prefix: bytes = b"", since: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """All keys that begin with *prefix*, in order, with their values."""
        begin = self._prefix + prefix
        n = len(self._prefix)
        for key, value in self._scan(begin + since):
            if not key.startswith(begin):
                return
            yield key[n:], value
