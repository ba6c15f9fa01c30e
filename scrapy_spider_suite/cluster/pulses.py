"""Pulses of the agents of a crawl in Redis, rolled up to rows of seconds, minutes, hours and days.

Each process sends its counters once a second, as totals since its start: what a lost pulse had is
in the next one. A fetcher of a shared queue sends further ones, of what it has done for each queue.
One agent at a time has a lease, and rolls up: the whole crawl in all tiers, each phase, agent and
queue in minutes, hours and days. Pulses that are handed out stay until their rows
are written, so that another agent goes on where one was killed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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
    from scrapy_spider_suite.cluster.agent import ClusterAgent

logger = logging.getLogger(__name__)

PART_TIERS: Final = (
    Tier("minute", 60, 1_440),  # 1 day
    Tier("hour", 3_600, 720),  # 30 days
    Tier("day", 86_400, 400),
)
PART_COLUMNS: Final = Columns(
    ("pages", "failed", "bytes", "new_urls"), ("pending", "under_way", "hosts", "memory")
)
"""The history of one agent, phase or queue, in some 400 KB."""
PARTS_MAX: Final = 100  # agents, and phases, with a history; the whole crawl has that of all
AGENT: Final = "agent:"
PHASE: Final = "phase:"
QUEUE: Final = "queue:"

_PERIOD: Final = 1.0
_TIMEOUT: Final = 3.0
_LEASE: Final = 5_000  # milliseconds for which an agent rolls up without a pulse
_POLL: Final = 0.5  # seconds between questions whether the last pulse is rolled up
_STEPS: Final = 10  # for others that end now, too
_GOES_ON: Final = 1  # the lease is the one that this agent had
_BYTES_MAX: Final = 64 << 20  # of the pulses of all processes
_RECENT: Final = 5.0  # seconds for which the gauges of a process count without a new pulse
_SILENCE: Final = 60.0  # seconds without a pulse after which a process, or the crawl, is away
_ALL: Final = ""  # the aggregate of all agents
_ID: Final = slice(15, 31)  # the id of the columns, after Redis's time and before the values


class AgentPulse(NamedTuple):
    """The last pulse of a process; *when*: seconds since the epoch, by Redis."""

    when: float
    columns: Columns
    counters: Array
    gauges: Array


_OF_QUEUE: Final = "\n"  # between a process and a queue: no name of an agent has it


def process_id(agent: str, incarnation: int, queue: str = "") -> str:
    """The key of a pulse: of a process, or of what it has done for a *queue*."""
    return f"{incarnation:016x}{agent}" + (f"{_OF_QUEUE}{queue}" if queue else "")


def columns_id(columns: Columns) -> str:
    return xxh3_64_hexdigest(msgspec.json.encode(columns))


def pack_pulse(id: str, counters: Array, gauges: Array) -> bytes:
    return id.encode() + counters.tobytes() + gauges.tobytes()


class _Decoder:
    """Reads pulses and rows, whose columns are known by an id. What is damaged is left out."""

    def __init__(self) -> None:
        self._columns: dict[bytes, Columns] = {}

    def learn(self, flat: Sequence[bytes]) -> None:
        for id, text in _pairs(flat):
            if id not in self._columns:
                with suppress(ValueError, RecursionError):
                    self._columns[id] = msgspec.json.decode(text, type=Columns)

    def pulses(self, packed: bytes) -> dict[str, AgentPulse]:
        """The pulses of processes and bytes in turns, which a script has packed."""
        by_id: dict[bytes, dict[str, bytes]] = {}
        for process, pulse in _pairs(_unpack(packed)):
            if process:
                by_id.setdefault(pulse[_ID], {})[process.decode("utf-8", "replace")] = pulse
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
        ("when", "S15"), ("id", "S16"),
        ("counters", np.float64, len(columns.counters)),
        ("gauges", np.float64, len(columns.gauges)),
    ])  # fmt: skip
    fitting = {name: each for name, each in packed.items() if len(each) == form.itemsize}
    pulses = np.frombuffer(b"".join(fitting.values()), form)
    sound = np.isfinite(pulses["counters"]).all(axis=1) & np.char.isdigit(pulses["when"])
    pulses = pulses[sound]
    names = (name for name, fine in zip(fitting, sound.tolist(), strict=True) if fine)
    return {
        name: AgentPulse(when, columns, counters, gauges)
        for name, when, counters, gauges in zip(
            names, (pulses["when"].astype(np.float64) / 1_000).tolist(),
            np.ascontiguousarray(pulses["counters"]), np.ascontiguousarray(pulses["gauges"]),
            strict=True,
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
            for name in ("pulse", "series", "last_pulses")
        }
        self._scripts["roll_up"] = load_script("world", "rows", "roll_up")
        self.members = keys.members
        self.decoder = _Decoder()

    async def close(self) -> None:
        await self._server.close()

    def key(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def row_key(self, aggregate: str, tier: Tier) -> str:
        return self.key(f"{tier.name}:{aggregate}")

    async def run(self, script: str, keys: Sequence[str], *arguments: str | bytes) -> list[Any]:
        names = [each if ":" in each else self.key(each) for each in keys]
        return await self._server.run(self._scripts[script], names, *arguments)

    async def read(self, wanted: Mapping[str, str]) -> tuple[float, list[list[bytes]]]:
        """Redis's time, and the rows at the places of each key; "": all."""
        now, columns, found = await self.run("series", ["columns", *wanted], *wanted.values())
        self.decoder.learn(columns)
        return now / 1_000, found


class _RollUpState:
    """What the agent with the lease knows; all of it can be read from Redis again."""

    def __init__(self) -> None:
        self.rolled = 0.0  # the end of the time that rows cover
        self.bases: dict[str, AgentPulse] = {}  # the pulses that are in rows, by process
        self.checked = 0.0
        self.silent: list[str] = []  # processes, once a minute
        self.open: dict[str, OpenRows] = {}  # by aggregate
        self.stored: dict[tuple[str, str, float], Array] = {}
        self.number = b""  # of the pulses that were handed out last; their rows follow
        self.keys: list[tuple[str, Tier]] = []
        self.rows: list[str | bytes] = []
        self._last: dict[str, AgentPulse] = {}  # those of the last seconds
        self._used: dict[str, float] = {}  # when an aggregate last had a pulse

    def learn(self, now: float, rolled: Mapping[str, AgentPulse], gone: Iterable[bytes]) -> None:
        """Take the pulses that are in rows from Redis, without processes that are gone."""
        for process in gone:
            self.bases.pop(process.decode("utf-8", "replace"), None)
        self.bases |= rolled
        for pulse in rolled.values():
            if now - pulse.when < _SILENCE:
                self.rolled = max(self.rolled, pulse.when)

    def aggregates(self, now: float, pulses: Mapping[str, AgentPulse]) -> list[str]:
        """The aggregates that *pulses* belong to, as far as they have a history."""
        for name in [each for each, when in self._used.items() if now - when > _SILENCE]:
            del self.open[name], self._used[name]
        wanted = [_ALL]
        for kind, names in (
            (kind, {
                name for process, pulse in pulses.items() for name in _parts(process, pulse)
                if name.startswith(kind)
            })
            for kind in (PHASE, AGENT, QUEUE)
        ):  # fmt: skip
            room = PARTS_MAX - sum(each.startswith(kind) for each in self.open)
            wanted += names & self.open.keys()
            wanted += sorted(names - self.open.keys())[: max(0, room)]
        for name in wanted:
            self._used[name] = now
            if name not in self.open:
                self.open[name] = self._open_rows(name)
        return wanted

    def _open_rows(self, name: str) -> OpenRows:
        tiers = _tiers(name)

        def load(number: int, start: float) -> Array | None:
            return self.stored.get((name, tiers[number].name, start))

        return OpenRows(_columns(name), load, tiers)

    def add(self, now: float, pulses: dict[str, AgentPulse], aggregates: Sequence[str]) -> None:
        """Make the rows of the *pulses* that were handed out at *now*."""
        last = self._last | pulses
        recent = {name for name, pulse in last.items() if now - pulse.when < _RECENT}
        last = {name: pulse for name, pulse in last.items() if name in recent or name in pulses}
        increase, gauges = self._increase(last, pulses), _stack_gauges(last.values())
        gauges[[name not in recent for name in last]] = np.nan  # of late pulses only counters count
        roll_up = RollUp(_members(aggregates, last), len(last))
        totals, values = roll_up.add_counters(increase), _add_gauges(roll_up, gauges)
        if not self.rolled:  # nobody rolled up for a while, but counters went on
            known = (self.bases[name].when for name in pulses.keys() & self.bases.keys())
            self.rolled = max(known, default=0.0)
        seconds = max(0.0, now - self.rolled) if self.rolled else _PERIOD
        self.rolled, self._last = now, last
        self.bases |= pulses
        if not 0 <= now - self.checked < _SILENCE:
            self.checked = now
            self.silent = [name for name, base in self.bases.items() if now - base.when > _SILENCE]
        for name, total, value in zip(aggregates, totals, values, strict=True):
            own = (total, value) if name == _ALL else (total[_PART_COUNTERS], value[_PART_GAUGES])
            changed = self.open[name].add(_middle(now), seconds, *own)
            id = _IDS[_columns(name)].encode()
            for tier, row in zip(_tiers(name), changed, strict=True):
                kept, slot = tier.width * tier.kept, _slot(tier, row[0])
                self.keys.append((name, tier))
                self.rows += [str(kept), str(slot), id + row.tobytes()]

    def _increase(self, sources: Iterable[str], pulses: Mapping[str, AgentPulse]) -> Array:
        """By how much the counters of *sources* rose since they were last in rows."""
        names = list(sources)
        increase = np.zeros((len(names), len(COLUMNS.counters)))
        new = [place for place, name in enumerate(names) if name in pulses]
        increase[new] = _stack_counters(pulses[names[place]] for place in new)
        known = [place for place in new if names[place] in self.bases]
        increase[known] -= _stack_counters(self.bases[names[place]] for place in known)
        return np.maximum(increase, 0.0)


def _members(
    aggregates: Iterable[str], sources: Mapping[str, AgentPulse]
) -> list[list[int]]:
    """The places of the *sources* of each aggregate."""
    members: dict[str, list[int]] = {name: [] for name in aggregates}
    for place, (process, pulse) in enumerate(sources.items()):
        for name in {*_parts(process, pulse)} & members.keys():
            members[name].append(place)
    return list(members.values())


def _parts(process: str, pulse: AgentPulse) -> Iterator[str]:
    """The aggregates that a pulse belongs to."""
    agent, of_queue, queue = process[_TOKEN:].partition(_OF_QUEUE)
    if of_queue:
        yield QUEUE + queue
        return
    yield from (_ALL, AGENT + agent)
    if "phase" in pulse.columns.gauges:
        phase = pulse.gauges[pulse.columns.gauges.index("phase")]
        if np.isfinite(phase):
            yield f"{PHASE}{int(phase)}"


_TOKEN: Final = 16  # characters before the name of an agent in that of a process
_IDS: Final = {columns: columns_id(columns) for columns in (COLUMNS, PART_COLUMNS)}
_PART_COUNTERS: Final = [COLUMNS.counters.index(name) for name in PART_COLUMNS.counters]
_PART_GAUGES: Final = [COLUMNS.gauges.index(name) for name in PART_COLUMNS.gauges]
_DISK: Final = COLUMNS.gauges.index("disk_free")
_PHASE: Final = COLUMNS.gauges.index("phase")


def _columns(name: str) -> Columns:
    return PART_COLUMNS if name else COLUMNS


def _tiers(name: str) -> tuple[Tier, ...]:
    return PART_TIERS if name else TIERS


def _middle(now: float) -> float:
    return now - _PERIOD / 2


def _slot(tier: Tier, start: float) -> int:
    return int(start // tier.width) % tier.kept


def _stack_counters(pulses: Iterable[AgentPulse]) -> Array:
    found = [_converted(p.counters, p.columns.counters, COLUMNS.counters, 0.0) for p in pulses]
    return np.array(found, np.float64).reshape(-1, len(COLUMNS.counters))


def _stack_gauges(pulses: Iterable[AgentPulse]) -> Array:
    found = [_converted(p.gauges, p.columns.gauges, COLUMNS.gauges, np.nan) for p in pulses]
    return np.array(found, np.float64).reshape(-1, len(COLUMNS.gauges))


def _converted(values: Array, old: Sequence[str], new: Sequence[str], missing: float) -> Array:
    if old == new:
        return values
    known = dict(zip(old, values, strict=True))
    return np.array([known.get(name, missing) for name in new], np.float64)


def _add_gauges(roll_up: RollUp, gauges: Array) -> Array:
    """The gauges of each aggregate: sums over its agents; the least free space; no phase."""
    sums, counts, maxima = roll_up.add_gauges(np.column_stack((gauges, -gauges[:, _DISK])))
    values: Array = np.where(counts > 0, sums, np.nan)[:, :-1]
    values[:, _DISK] = -maxima[:, -1]
    values[:, _PHASE] = np.nan
    return values


def all_gauges(pulses: Iterable[AgentPulse]) -> Array:
    """The gauges of the whole crawl."""
    gauges = _stack_gauges(pulses)
    found: Array = _add_gauges(RollUp([range(len(gauges))], len(gauges)), gauges)[0]
    return found


class PulseRollUp:
    """Rolls the pulses of all agents up, while it has the lease. Its methods raise `RegistryError`.

    After an error the next step begins anew, with what Redis has.
    """

    def __init__(self, series: _Series, token: str) -> None:
        self._series = series
        self._token = token
        self._state: _RollUpState | None = None

    def forget(self) -> None:
        """Begin anew with the next step."""
        self._state = None

    async def step(self) -> bool:
        """Write the rows of the last step, and make those of the next pulses; False: none."""
        state, self._state = self._state, None
        first, state = state is None, state or _RollUpState()
        answer = await self._series.run(
            "roll_up", ["roller", "pulses", "taken", "rolled", "columns", self._series.members,
                        *(self._series.row_key(*each) for each in state.keys)],
            self._token, state.number, "1" if first else "0", msgspec.json.encode(state.silent),
            *state.rows,
        )  # fmt: skip
        if not answer:
            return False
        milliseconds, columns, state.number, taken, rolled, gone = answer
        state.keys, state.rows, state.silent = [], [], []
        now, decoder = milliseconds / 1_000, self._series.decoder
        decoder.learn(columns)
        pulses = await asyncio.to_thread(decoder.pulses, taken)
        state.learn(now, await asyncio.to_thread(decoder.pulses, rolled), _unpack(gone))
        if state.number:
            aggregates = state.aggregates(now, pulses)
            await self._load(state, now, aggregates)
            await asyncio.to_thread(state.add, now, pulses, aggregates)
        self._state = state
        return bool(state.number)

    async def _load(self, state: _RollUpState, now: float, aggregates: Iterable[str]) -> None:
        """Read the stored rows that the pulses of *now* belong to."""
        when = _middle(now)
        starts = {
            (name, tier): when // tier.width * tier.width
            for name in aggregates for tier in _tiers(name)
            if not state.open[name].has(tier, when)
        }  # fmt: skip
        state.stored = {}
        if not starts:
            return
        wanted = {
            self._series.row_key(*place): str(_slot(place[1], start))
            for place, start in starts.items()
        }
        _, found = await self._series.read(wanted)
        for ((name, tier), start), packed in zip(starts.items(), found, strict=True):
            rows, _ = self._series.decoder.rows(packed, _columns(name))
            for row in rows[rows[:, 0] == start]:
                state.stored[name, tier.name, start] = row.copy()


class PulseSender:
    """Sends the pulses of *agent*, and rolls up if no other agent does."""

    def __init__(self, agent: ClusterAgent, url: str) -> None:
        self._agent = agent
        self._series = _Series(url, agent.crawl_name)
        self._token = f"{agent.incarnation:016x}"
        self._roll_up = PulseRollUp(self._series, self._token)
        self._warn = WarnOnce(logger, "pulses of this agent")
        self._sending: asyncio.Future[None] | None = None
        self.stats: dict[str, int | float] = {}

    async def run(self) -> None:
        try:
            while True:
                await asyncio.sleep(_PERIOD)
                self._sending = asyncio.ensure_future(self._try_to_send())
                await asyncio.shield(self._sending)
        finally:
            await asyncio.shield(asyncio.ensure_future(self._finish()))

    async def _try_to_send(self) -> None:
        try:
            await self._send()
        except RegistryError as error:  # the next pulse has all that this one has
            self._warn.say(error.kind, error)
        except Exception as error:  # of foreign pulses: this agent goes on
            self._warn.say("fault", repr(error))
        else:
            self._warn.over("away")

    async def _send(self) -> None:
        rolls_up, _ = await self._post_all()
        if rolls_up:
            await self._roll_up.step()

    async def _post_all(self) -> tuple[bool, bool]:
        parts, id = self._agent.crawl.parts, _IDS[PART_COLUMNS]
        assert parts is not None
        own = pack_pulse(_IDS[COLUMNS], parts.pulses.counted, parts.pulses.gauges)
        queues = self._agent.queue_pulses().items()
        return await self._post(own, {queue: pack_pulse(id, *each) for queue, each in queues})

    async def _post(
        self, pulse: bytes = b"", queues: Mapping[str, bytes] = {}, *, lease: int | None = None,
    ) -> tuple[bool, bool]:  # fmt: skip
        """Send *pulse*, if there is one, and those of *queues*; return whether this agent rolls up,
        for *lease* milliseconds, and whether one of them waits for that.
        """
        agent, pulses = self._agent, list[str | bytes]()
        for queue, packed in {"": pulse, **queues}.items():
            columns = PART_COLUMNS if queue else COLUMNS
            pulses += [process_id(agent.name, agent.incarnation, queue), packed, _IDS[columns]]
        names = list[str | bytes]()
        for _ in range(2):
            known, rolls_up, waits = await self._series.run(
                "pulse", ["pulses", "taken", "rolled", "columns", "roller"], self._token,
                str(_LEASE if lease is None else lease), str(_BYTES_MAX),
                str(1 + len(queues)), *pulses, *names,
            )  # fmt: skip
            if known:
                break
            for each, id in _IDS.items():
                names += [id, msgspec.json.encode(each)]
        if rolls_up != _GOES_ON:
            self._roll_up.forget()  # another agent may have rolled up meanwhile
        return bool(rolls_up), bool(waits)

    async def _finish(self) -> None:
        if self._sending is not None:
            await asyncio.wait([self._sending])
        parts = self._agent.crawl.parts
        assert parts is not None
        parts.pulses.take()
        with suppress(RegistryError):
            await self._send_last()
        await self._series.close()

    async def _send_last(self) -> None:
        """Send the last pulse, and stay until it is rolled up: here, or by another agent."""
        deadline = time.monotonic() + 2 * _LEASE / 1_000  # another one may have been killed
        rolls_up, _ = await self._post_all()
        while True:
            for _ in range(_STEPS if rolls_up else 0):
                if not await self._roll_up.step():
                    break
            _, waits = await self._post(lease=0)
            if not waits or time.monotonic() > deadline:
                return
            await asyncio.sleep(_POLL)
            rolls_up, _ = await self._post()


class SeriesClient:
    """Reads the series of *crawl* at *url*. Raises `ValueError`; its methods `RegistryError`."""

    def __init__(self, url: str, crawl: str) -> None:
        self._series = _Series(url, crawl)

    async def close(self) -> None:
        await self._series.close()

    async def read(
        self, start: float, end: float, points: int, part: str = _ALL, width: int = 0
    ) -> Rows:
        """As `SeriesReader.read`, of the whole crawl, or of a *part*: `AGENT`, `PHASE` or `QUEUE`,
        and its name.
        """
        now, _ = await self._series.read({})
        start, end, points = max(0.0, start), min(end, now + 1), min(points, POINTS_MAX)
        tier = finest_tier(start, now, _tiers(part))
        width = row_width(tier, start, end, points, width)
        first = start // width * width
        places = ""
        if (end - first) / tier.width < tier.kept:
            starts = np.arange(first, end, tier.width)
            places = " ".join(str(_slot(tier, each)) for each in starts.tolist()) or "-"
        _, [packed] = await self._series.read({self._series.row_key(part, tier): places})
        rows, columns = self._series.decoder.rows(packed, None)
        rows = rows[(rows[:, 0] >= first) & (rows[:, 0] < end)]
        return merge_rows(rows, columns, width, first, end)

    async def totals(self) -> tuple[float, dict[str, int]]:
        """The start of the first day with rows (0: none), and the crawl's counters since then."""
        _, [packed] = await self._series.read({self._series.row_key(_ALL, TIERS[-1]): ""})
        rows, columns = self._series.decoder.rows(packed, None)
        return float(rows[0, 0]) if len(rows) else 0.0, {
            name: int(rows[:, columns.places(name)[0]].sum()) for name in columns.counters
        }

    async def last_pulses(self) -> dict[str, AgentPulse]:
        """The last pulse of each agent that is in rows."""
        columns, packed = await self._series.run("last_pulses", ["columns", "rolled"])
        self._series.decoder.learn(columns)
        found = self._series.decoder.pulses(packed)
        by_time = sorted(found.items(), key=lambda each: each[1].when)
        return {
            process[_TOKEN:]: pulse for process, pulse in by_time if _OF_QUEUE not in process
        }
