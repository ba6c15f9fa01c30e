"""What a started in-vitro web tells whoever started it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ready:
    """Where everything is, once it is up.

    ``ports`` is the one HTTP port of all addresses, or, where there is one address only, the port
    of each of the ``addresses`` "addresses" in turn. ``notes`` are lines for people.
    """

    ports: tuple[int, ...]
    dns_port: int
    hosts: int
    addresses: int
    first_address: str
    last_address: str
    seeds: tuple[str, ...]
    log: str | None
    notes: tuple[str, ...]

    @property
    def http_port(self) -> int:
        """The HTTP port (of the first host)."""
        return self.ports[0]

    @property
    def settings(self) -> dict[str, Any]:
        """Settings with which the suite crawls this web."""
        return {
            "SUITE_DNS_SERVERS": f"127.0.0.1:{self.dns_port}",
            "SUITE_ALLOW_PRIVATE_ADDRESSES": ["127.0.0.0/8"],
        }

    def to_json(self) -> str:
        """One line of JSON: the fields, and with them ``http_port`` and ``settings``."""
        more = {"http_port": self.http_port, "settings": self.settings}
        return json.dumps(dataclasses.asdict(self) | more)

    @classmethod
    def from_json(cls, line: str) -> Ready:
        """Read what :meth:`to_json` wrote; raises ``ValueError`` if it is something else."""
        values = json.loads(line)
        names = [each.name for each in dataclasses.fields(cls)]
        if not isinstance(values, dict) or not set(names) <= values.keys():
            raise ValueError("not a ready line of the in-vitro web")
        for name in ("ports", "seeds", "notes"):
            values[name] = tuple(values[name])
        return cls(**{name: values[name] for name in names})
