"""Pulses of the agents of a crawl in Redis, rolled up to rows of seconds, minutes, hours and days.

Each agent sends its counters once a second, as totals of its process: what a lost pulse had is in
the next one. One agent at a time has a lease, and rolls up: the whole crawl in all tiers, and each
agent in minutes, hours and days. Pulses that are handed out stay until their rows are written, so
that another agent goes on where one was killed.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgpack  # type: ignore[import-untyped]
import msgspec
import numpy as np
from xxhash import xxh3_64_hexdigest

from scrapy_spider_suite.analysis.time_series import (
    POINTS_MAX,
    TIERS,
    Array,
    Columns,
    OpenRows,
    RollUp,
    Rows,
    Tier,
    finest_tier,
    merge_rows,
    row_width,
)
from scrapy_spider_suite.cluster.redis_server import RedisKeys, RedisServer, load_script
from scrapy_spider_suite.crawl.pulse import COLUMNS
from scrapy_spider_suite.errors import RegistryError
from scrapy_spider_suite.runtime.tasks import WarnOnce

if TYPE_CHECKING:
    from scrapy_spider_suite.cluster.agent import Agent
    from scrapy_spider_suite.crawl.pulse import Pulses

logger = logging.getLogger(__name__)

AGENT_TIERS: Final = (
    Tier("minute", 60, 1_440),  # 1 day
    Tier("hour", 3_600, 720),  # 30 days
    Tier("day", 86_400, 400),
)
AGENT_COLUMNS: Final = Columns(
    ("pages", "failed", "bytes", "new_urls"), ("pending", "under_way", "hosts", "memory")
)
"""The history of one agent, in some 400 KB."""
AGENTS_MAX: Final = 100  # agents with a history; the whole crawl has that of all

_PERIOD: Final = 1.0
_TIMEOUT: Final = 3.0
_LEASE: Final = 5_000  # milliseconds for which an agent rolls up without a pulse
_BYTES_MAX: Final = 64 << 20  # of the pulses of all agents
_RECENT: Final = 5.0  # seconds for which the gauges of an agent count without a new pulse
_SILENCE: Final = 60.0  # seconds without any pulse after which the crawl stood still
_ALL: Final = ""  # the aggregate of all agents
_HEAD: Final = struct.Struct(">Q16s")
"""Before the values: incarnation, id of the columns. Redis puts its time before that."""
_ID: Final = slice(23, 39)  # its place in a pulse with its time


class AgentPulse(NamedTuple):
    """The last pulse of an agent; *when*: seconds since the epoch, by Redis."""

    when: float
    incarnation: int
    columns: Columns
    counters: Array
    gauges: Array


def columns_id(columns: Columns) -> str:
    return xxh3_64_hexdigest(msgspec.json.encode(columns))


def pack_pulse(incarnation: int, id: str, counters: Array, gauges: Array) -> bytes:
    return _HEAD.pack(incarnation, id.encode()) + counters.tobytes() + gauges.tobytes()


class _Decoder:
    """Reads pulses and rows, whose columns are known by an id. What is damaged is left out."""

    def __init__(self) -> None:
        self._columns: dict[bytes, Columns] = {}

    def learn(self, flat: Sequence[bytes]) -> None:
        for id, text in _pairs(flat):
            with suppress(msgspec.DecodeError, msgspec.ValidationError):
                self._columns.setdefault(id, msgspec.json.decode(text, type=Columns))

    def knows(self, pulses: Iterable[bytes]) -> bool:
        return all(each[_ID] in self._columns for each in pulses)

    def pulses(self, flat: Sequence[bytes]) -> dict[str, AgentPulse]:
        """The pulses of names and bytes in turns."""
        by_id: dict[bytes, dict[str, bytes]] = {}
        for name, packed in _pairs(flat):
            if name:
                by_id.setdefault(packed[_ID], {})[name.decode("utf-8", "replace")] = packed
        found: dict[str, AgentPulse] = {}
        for id, pulses in by_id.items():
            if (columns := self._columns.get(id)) is not None:
                found |= _read_pulses(columns, pulses)
        return found

    def rows(self, packed: Iterable[bytes], columns: Columns | None) -> tuple[Array, Columns]:
        """The rows, by time, with *columns*, or with all that they have."""
        by_id: dict[bytes, list[bytes]] = {}
        for each in packed:
            by_id.setdefault(each[:16], []).append(each[16:])
        found = []
        for id, datas in by_id.items():
            if (own := self._columns.get(id)) is not None:
                fitting = b"".join(data for data in datas if len(data) == 8 * own.size)
                found.append((np.frombuffer(fitting).reshape(-1, own.size), own))
        if columns is None:
            columns = Columns((), ())
            for _, own in found:
                columns = columns.joined(own)
        parts = [columns.convert(rows, own) for rows, own in found]
        rows = np.concatenate(parts) if parts else np.empty((0, columns.size))
        return rows[np.argsort(rows[:, 0], kind="stable")], columns


def _read_pulses(columns: Columns, packed: Mapping[str, bytes]) -> dict[str, AgentPulse]:
    form = np.dtype([
        ("when", "S15"), ("incarnation", ">u8"), ("id", "S16"),
        ("counters", np.float64, len(columns.counters)),
        ("gauges", np.float64, len(columns.gauges)),
    ])  # fmt: skip
    fitting = {name: each for name, each in packed.items() if len(each) == form.itemsize}
    pulses = np.frombuffer(b"".join(fitting.values()), form)
    sound = np.isfinite(pulses["counters"]).all(axis=1) & np.char.isdigit(pulses["when"])
    pulses = pulses[sound]
    names = (name for name, fine in zip(fitting, sound.tolist(), strict=True) if fine)
    return {
        name: AgentPulse(when, incarnation, columns, counters, gauges)
        for name, when, incarnation, counters, gauges in zip(
            names, (pulses["when"].astype(np.float64) / 1_000).tolist(),
            pulses["incarnation"].tolist(), np.ascontiguousarray(pulses["counters"]),
            np.ascontiguousarray(pulses["gauges"]), strict=True,
        )
    }  # fmt: skip


def _unpack(packed: bytes) -> list[bytes]:
    """The list that a script has packed; Lua has one kind of empty table."""
    found = msgpack.unpackb(packed, raw=True)
    return found if isinstance(found, list) else []


def _pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=False)


class _Series:
    """Calls of the scripts. Its methods raise `RegistryError`."""

    def __init__(self, url: str, crawl: str) -> None:
        keys = RedisKeys(crawl)
        self._server = RedisServer(url, _TIMEOUT)
        self._prefix = f"{keys.prefix}series:"
        self._scripts = {
            name: load_script("world", name)
            for name in ("pulse", "roll_up", "series", "last_pulses")
        }
        self.decoder = _Decoder()

    async def close(self) -> None:
        await self._server.close()

    def key(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def row_key(self, aggregate: str, tier: Tier) -> str:
        return self.key(f"{tier.name}:{aggregate}")

    async def run(self, script: str, keys: Sequence[str], *arguments: str | bytes) -> list[Any]:
        names = [each if each.startswith(self._prefix) else self.key(each) for each in keys]
        return await self._server.run(self._scripts[script], names, *arguments)

    async def read(self, wanted: Mapping[str, str]) -> tuple[float, list[list[bytes]]]:
        """Redis's time, and the rows at the places of each key; "": all."""
        now, columns, found = await self.run("series", ["columns", *wanted], *wanted.values())
        self.decoder.learn(columns)
        return now / 1_000, found


@dataclass(slots=True)
class _Base:
    """The last totals of an agent that are in rows."""

    incarnation: int
    counters: Array


class PulseRollUp:
    """Rolls the pulses of all agents up, while it has the lease."""

    def __init__(self, series: _Series, token: str) -> None:
        self._series = series
        self._token = token
        self._bases: dict[str, _Base] = {}
        self._last: dict[str, AgentPulse] = {}
        self._stored: dict[tuple[str, str, float], Array] = {}
        self._open: dict[str, OpenRows] = {}
        self._rows: list[str | bytes] = []  # of the pulses that were handed out last
        self._keys: list[str] = []
        self._number = b""
        self._rolled = 0.0

    async def step(self) -> bool:
        """Write the rows of the last step, and make those of the next pulses; False: no lease."""
        first = not self._open
        answer = await self._series.run(
            "roll_up", ["roller", "pulses", "taken", "rolled", *self._keys],
            self._token, self._number, "1" if first else "0", *self._rows,
        )  # fmt: skip
        if not answer:
            self.forget()
            return False
        self._rows, self._keys, self._number = [], [], b""
        milliseconds, number, *packed = answer
        taken, rolled = map(_unpack, packed)
        handed_out = [packed for name, packed in _pairs(taken + rolled) if name]
        if not self._series.decoder.knows(handed_out):
            await self._series.read({})
        now = milliseconds / 1_000
        for name, pulse in self._series.decoder.pulses(rolled).items():
            self._bases[name] = _Base(pulse.incarnation, pulse.counters)
            if now - pulse.when < _SILENCE:
                self._rolled = max(self._rolled, pulse.when)
        pulses = self._series.decoder.pulses(taken)
        if number:
            await self._load(now, pulses)
            self._number = number
            await asyncio.to_thread(self._make_rows, now, pulses)
        return True

    def forget(self) -> None:
        """Another agent rolls up now."""
        self._bases.clear()
        self._last.clear()
        self._open.clear()
        self._rows, self._keys, self._number = [], [], b""
        self._rolled = 0.0

    async def _load(self, now: float, pulses: Mapping[str, AgentPulse]) -> None:
        """Read the stored rows that the pulses of *now* belong to."""
        for name in (_ALL, *sorted(pulses)):
            if name not in self._open and len(self._open) <= AGENTS_MAX:
                self._open[name] = self._open_rows(name)
        starts = {
            (name, tier): _middle(now) // tier.width * tier.width
            for name, rows in self._open.items() for tier in _tiers(name)
            if not rows.has(tier, _middle(now))
        }  # fmt: skip
        wanted = {
            self._series.row_key(*place): str(_slot(place[1], start))
            for place, start in starts.items()
        }
        self._stored.clear()
        if wanted:
            _, found = await self._series.read(wanted)
            for ((name, tier), start), packed in zip(starts.items(), found, strict=True):
                rows, _ = self._series.decoder.rows(packed, _columns(name))
                for row in rows[rows[:, 0] == start]:
                    self._stored[name, tier.name, start] = row.copy()

    def _open_rows(self, name: str) -> OpenRows:
        tiers = _tiers(name)

        def load(number: int, start: float) -> Array | None:
            return self._stored.get((name, tiers[number].name, start))

        return OpenRows(_columns(name), load, tiers)

    def _make_rows(self, now: float, pulses: dict[str, AgentPulse]) -> None:
        names, increases = list(pulses), []
        for name, pulse in pulses.items():
            base, counters = self._bases.get(name), pulse.counters
            if base is not None and base.incarnation == pulse.incarnation:
                counters = np.maximum(counters - base.counters, 0.0)
            increases.append(_converted(counters, pulse.columns.counters, COLUMNS.counters, 0.0))
            self._bases[name] = _Base(pulse.incarnation, pulse.counters)
        self._last |= pulses
        self._last = {
            name: pulse for name, pulse in self._last.items() if now - pulse.when < _RECENT
        }
        seconds = max(0.0, now - self._rolled) if self._rolled else _PERIOD
        self._rolled = now
        counters = np.array(increases).reshape(len(names), len(COLUMNS.counters))
        total = RollUp([range(len(names))], len(names)).add_counters(counters)[0]
        self._add(_ALL, now, seconds, total, all_gauges(self._last.values()))
        for name, increase in zip(names, counters, strict=True):
            if name in self._open:
                own = _converted(increase, COLUMNS.counters, AGENT_COLUMNS.counters, 0.0)
                pulse = pulses[name]
                gauges = _converted(
                    pulse.gauges, pulse.columns.gauges, AGENT_COLUMNS.gauges, np.nan
                )
                self._add(name, now, seconds, own, gauges)

    def _add(self, name: str, now: float, seconds: float, increase: Array, gauges: Array) -> None:
        id = _IDS[_columns(name)].encode()
        changed = self._open[name].add(_middle(now), seconds, increase, gauges)
        for tier, row in zip(_tiers(name), changed, strict=True):
            kept = tier.width * tier.kept
            self._keys.append(self._series.row_key(name, tier))
            self._rows += [str(kept), str(_slot(tier, row[0])), id + row.tobytes()]


_IDS: Final = {columns: columns_id(columns) for columns in (COLUMNS, AGENT_COLUMNS)}


def _columns(name: str) -> Columns:
    return AGENT_COLUMNS if name else COLUMNS


def _tiers(name: str) -> tuple[Tier, ...]:
    return AGENT_TIERS if name else TIERS


def _middle(now: float) -> float:
    return now - _PERIOD / 2


def _slot(tier: Tier, start: float) -> int:
    return int(start // tier.width) % tier.kept


def _converted(values: Array, old: Sequence[str], new: Sequence[str], missing: float) -> Array:
    if old == new:
        return values
    known = dict(zip(old, values, strict=True))
    return np.array([known.get(name, missing) for name in new], np.float64)


def all_gauges(pulses: Iterable[AgentPulse]) -> Array:
    """The gauges of the whole crawl: sums over its agents; the least free space; no phase."""
    found = np.array(
        [_converted(each.gauges, each.columns.gauges, COLUMNS.gauges, np.nan) for each in pulses]
    ).reshape(-1, len(COLUMNS.gauges))
    sums, counts, _ = RollUp([range(len(found))], len(found)).add_gauges(found)
    total = np.where(counts[0] > 0, sums[0], np.nan)
    disk = COLUMNS.gauges.index("disk_free")
    if counts[0][disk]:
        total[disk] = np.nanmin(found[:, disk])
    total[COLUMNS.gauges.index("phase")] = np.nan
    return total


class PulseSender:
    """Sends the pulses of *agent*, and rolls up if no other agent does."""

    def __init__(self, agent: Agent, url: str) -> None:
        self._agent = agent
        self._series = _Series(url, agent.crawl_name)
        self._token = f"{agent.incarnation:016x}"
        self._roll_up = PulseRollUp(self._series, self._token)
        self._warn = WarnOnce(logger, "pulses of this agent")
        self.stats: dict[str, int | float] = {}

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(_PERIOD)
                await self._try_to_send()
        finally:
            await asyncio.shield(asyncio.ensure_future(self._finish()))

    async def _try_to_send(self) -> None:
        try:
            await self._send()
        except RegistryError as error:  # the next pulse has all that this one has
            self._warn.say(error.kind, error)
        else:
            self._warn.over("away")

    async def _send(self) -> None:
        if await self._post():
            await self._roll_up.step()
        else:
            self._roll_up.forget()

    async def _post(self, lease: int = _LEASE) -> bool:
        """Send the last pulse; return whether this agent rolls up, for *lease* milliseconds."""
        pulses, names = self._pulses, list[str | bytes]()
        pulse = pack_pulse(self._agent.incarnation, _IDS[COLUMNS], pulses.counted, pulses.gauges)
        for _ in range(2):
            taken, rolls_up = await self._series.run(
                "pulse", ["pulses", "columns", "roller"], self._agent.name, self._token, pulse,
                _IDS[COLUMNS], str(lease), str(_BYTES_MAX), *names,
            )  # fmt: skip
            if taken:
                break
            for columns, id in _IDS.items():
                names += [id, msgspec.json.encode(columns)]
        return bool(rolls_up)

    @property
    def _pulses(self) -> Pulses:
        parts = self._agent.crawl.parts
        assert parts is not None
        return parts.pulses

    async def _finish(self) -> None:
        with suppress(RegistryError):
            self._pulses.take()
            await self._send()
            await self._roll_up.step()  # writes the rows of what `_send` has handed out
            await self._post(lease=0)
        await self._series.close()


class SeriesClient:
    """Reads the series of *crawl* at *url*. Raises `ValueError`; its methods `RegistryError`."""

    def __init__(self, url: str, crawl: str) -> None:
        self._series = _Series(url, crawl)

    async def close(self) -> None:
        await self._series.close()

    async def read(self, start: float, end: float, points: int, agent: str = "") -> Rows:
        """As `SeriesReader.read`, of the whole crawl or of one agent."""
        now, _ = await self._series.read({})
        start, end, points = max(0.0, start), min(end, now + 1), min(points, POINTS_MAX)
        tier = finest_tier(start, now, _tiers(agent))
        width = row_width(tier, start, end, points)
        first = start // width * width
        places = ""
        if (end - first) / tier.width < tier.kept:
            starts = np.arange(first, end, tier.width)
            places = " ".join(str(_slot(tier, each)) for each in starts.tolist()) or "-"
        _, [packed] = await self._series.read({self._series.row_key(agent, tier): places})
        rows, columns = self._series.decoder.rows(packed, None)
        rows = rows[(rows[:, 0] >= first) & (rows[:, 0] < end)]
        return merge_rows(rows, columns, width, first, end)

    async def totals(self) -> dict[str, int]:
        """The counters of the whole crawl since it began."""
        _, [packed] = await self._series.read({self._series.row_key(_ALL, TIERS[-1]): ""})
        rows, columns = self._series.decoder.rows(packed, None)
        return {
            name: int(rows[:, columns.places(name)[0]].sum()) for name in columns.counters
        }

    async def last_pulses(self) -> dict[str, AgentPulse]:
        """The last pulse of each agent."""
        found: dict[str, AgentPulse] = {}
        _, columns, maps = await self._series.run(
            "last_pulses", ["columns", "rolled", "taken", "pulses"]
        )
        self._series.decoder.learn(columns)
        for packed in maps:
            found |= self._series.decoder.pulses(_unpack(packed))
        return found
