"""Redis itself: what it refuses, when it is away, and what it knows when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.agent_town import ALL, FETCH, InTown, Town, back, beat, candidate, held
from support.redis_servers import RedisServer, free_port

from scrapy_spider_suite.cluster import redis_server as scripts
from scrapy_spider_suite.cluster.membership import AddressQuestion, AgentLease
from scrapy_spider_suite.cluster.redis_server import DURABLE, WORLD
from scrapy_spider_suite.cluster.redis_server import RedisServer as Server
from scrapy_spider_suite.cluster.registry import AgentRegistry
from scrapy_spider_suite.errors import FencedError, JoinRefusedError, RegistryError
from scrapy_spider_suite.frontier.entries import UNITS


@contextmanager
def changed(client: Any, **options: str) -> Iterator[None]:
    """Options of the server are others for a while."""
    names = {name.replace("_", "-"): value for name, value in options.items()}
    old = {name: client.config_get(name)[name] for name in names}
    for name, value in names.items():
        client.config_set(name, value)
    try:
        yield
    finally:
        for name in reversed(names):
            client.config_set(name, old[name])


def test_scripts_have_the_time_and_the_run_of_the_server(redis_server: RedisServer) -> None:
    """What tests put in their place is not what agents use."""
    with redis_server.client() as client:
        before, info = client.time(), client.info("server")
        now, run, uptime = client.eval(f"{WORLD} return {{clock(), server()}}", 0)
        after = client.time()
    assert before[0] * 1000 + before[1] // 1000 <= now <= after[0] * 1000 + after[1] // 1000
    assert run.decode() == info["run_id"]
    assert info["uptime_in_seconds"] <= uptime // 1000 <= info["uptime_in_seconds"] + after[0]


def test_a_server_that_keeps_its_data_has_one_run(redis_server: RedisServer) -> None:
    """Whoever runs it says so by a key: when it is started again, agents go on at once."""
    code = f"{WORLD} local run, uptime = server() return {{run, tostring(uptime)}}"
    with redis_server.client() as client:
        client.set(DURABLE, "it")
        assert client.eval(code, 0) == [b"it", b"inf"]
        client.delete(DURABLE)
        client.rpush(DURABLE, "no text")
        assert client.eval(code, 0)[0].decode() == client.info("server")["run_id"]
        client.delete(DURABLE)


@pytest.mark.parametrize("key", range(4))
def test_a_key_of_another_type_is_named(in_town: InTown, key: int) -> None:
    """And neither it nor any other is touched."""

    async def test(town: Town) -> None:
        town.client.rpush(town.keys[key], "mine")
        here = town.registry()
        with pytest.raises(RegistryError) as caught:
            await here.join(candidate("a"))
        assert str(caught.value).endswith("another type under our name (suite:{web}:)")
        assert caught.value.kind == "type"
        assert town.client.exists(*town.keys) == 1

    in_town(test)


def test_other_keys_of_another_type_are_named(in_town: InTown) -> None:
    """Those that scripts name, and the one with what agents share, which may be too short."""

    async def test(town: Town) -> None:
        a = await town.agent("a")
        prefix = town.keys[0].removesuffix("crawl")
        town.client.set(f"{prefix}addresses", "mine")
        with pytest.raises(RegistryError, match=r"another type under our name \(suite:\{web\}:\)"):
            await a.ask_addresses(AddressQuestion(["10.0.0.1"], [], [], [], True, 0))
        town.client.rpush(f"{prefix}secret", "mine")
        with pytest.raises(RegistryError, match=r"another type under our name \(.*:secret\)"):
            await a.secret()
        town.client.delete(f"{prefix}secret")
        town.client.set(f"{prefix}secret", "short")
        with pytest.raises(RegistryError, match=r"suite:\{web\}:secret has fewer than 16"):
            await a.secret()

    in_town(test)


@pytest.mark.parametrize(("key", "text"), [(0, "[1, 2"), (0, "7"), (1, "\x00")])
def test_what_the_suite_did_not_write_is_refused(in_town: InTown, key: int, text: str) -> None:
    """With the key that holds it."""

    async def test(town: Town) -> None:
        a = await town.agent("a")
        if key:
            town.client.hset(town.keys[key], "a", text)
        else:
            town.client.set(town.keys[key], text)
        with pytest.raises(RegistryError, match=r"did not write \(suite:\{web\}:") as caught:
            await beat(a)
        assert caught.value.kind == "damaged"

    in_town(test)


@pytest.mark.parametrize("row", ['{"name": "b"}', '{"number": "x"}'])
def test_a_member_that_is_none_is_refused(in_town: InTown, row: str) -> None:
    """By who reads it, if the scripts can live with it."""

    async def test(town: Town) -> None:
        a = await town.agent("a")
        town.client.hset(town.keys[1], "b", row)
        with pytest.raises(RegistryError) as caught:
            await beat(a)
        assert caught.value.kind in ("damaged", "refused")

    in_town(test)


def test_a_redis_that_throws_keys_away_is_refused(in_town: InTown) -> None:
    """Unless its memory has no bound, or it keeps what it has."""

    async def test(town: Town) -> None:
        with (
            changed(town.client, maxmemory="200mb", maxmemory_policy="volatile-lru"),
            pytest.raises(JoinRefusedError, match=r"^SUITE_REDIS_URL: .* volatile-lru, expected"),
        ):
            await town.agent("a")
        with changed(town.client, maxmemory_policy="allkeys-lru"):
            await town.agent("a")
        with changed(town.client, maxmemory="200mb", maxmemory_policy="noeviction"):
            await town.agent("b")

    in_town(test)


def test_out_of_memory_is_told_and_loses_nothing(in_town: InTown) -> None:
    """The agent goes on for the rest of its lease."""

    async def test(town: Town) -> None:
        a = await town.agent("a")
        with changed(town.client, maxmemory="1"):
            for call in (beat(a), a.give(ALL, 1, a.answer.epoch), back(town, "b")):
                with pytest.raises(RegistryError, match="is out of memory") as caught:
                    await call
                assert caught.value.kind == "memory"
        assert a.lease.may_fetch(town.now, town.now)
        await beat(a)
        assert await held(a) == [0, UNITS, 0, 0]

    in_town(test)


def test_a_password_is_asked_for_and_never_shown(in_town: InTown) -> None:
    """That is no reason to try again."""

    async def test(town: Town) -> None:
        a = await town.agent("a")
        await a.close()
        with changed(town.client, requirepass="secret"), pytest.raises(RegistryError) as caught:
            await beat(a)
        assert caught.value.kind == "refused"
        assert "secret" not in str(caught.value)

    in_town(test)


def test_nobody_there_is_told_without_the_password() -> None:
    """A URL that is none is a ValueError, and so is a name that is none."""

    async def test() -> None:
        here = AgentRegistry(f"redis://:secret@127.0.0.1:{free_port()}/1", "web", AgentLease(FETCH))
        with pytest.raises(RegistryError, match=r"Redis at 127\.0\.0\.1:\d+/1 is away") as caught:
            await here.join(candidate("a"))
        assert (caught.value.kind, "secret" in str(caught.value)) == ("away", False)
        await here.close()
        for url, crawl in (("http://here", "web"), ("redis://here", "a{b}"), ("redis://here", "")):
            with pytest.raises(ValueError, match=r"URL|is no name for a crawl"):
                AgentRegistry(url, crawl, AgentLease(FETCH))

    asyncio.run(test())


def in_a_real_world(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, test: Callable[[Town], Awaitable[None]]
) -> None:
    """With the clock and the runs of *server*, but as if it had been there for long."""
    monkeypatch.setattr(scripts, "WORLD", WORLD.replace("uptime * 1000", "1e9"))

    async def run(client: Any) -> None:
        town = Town(server, client)
        town.now = client.time()[0]
        try:
            await test(town)
        finally:
            await town.close()

    with server.client() as client:
        asyncio.run(run(client))


@pytest.mark.parametrize("durable", [True, False], ids=["kept", "lost"])
def test_after_a_kill_each_unit_has_the_holder_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    """With an append-only file, and without any memory."""

    async def test(town: Town) -> None:
        a, b = await town.agent("a"), await town.agent("b")
        await beat(a)
        await a.give(ALL[::2], to=2, epoch=a.answer.epoch)
        at = (await b.holders()).at
        era, epoch, id_ = a.answer.era, a.answer.epoch, a.answer.id
        town.server.kill()
        with pytest.raises(RegistryError, match="is away") as caught:
            await beat(a)
        assert caught.value.kind == "away"
        town.server.start()
        for number, agent in enumerate((a, b), 1):
            if durable:
                await beat(agent)
            else:
                with pytest.raises(FencedError):
                    await beat(agent)
                await agent.join(candidate("ab"[number - 1], id=id_, number=number))
            await agent.claim(ALL[number % 2 :: 2], at)
            assert agent.answer.epoch > epoch
        tokens = await a.holders()
        assert np.array_equal(tokens.holders, 2 - ALL % 2)
        assert tokens.era > era

    with RedisServer(tmp_path, durable=durable) as server:
        in_a_real_world(server, monkeypatch, test)


def test_a_redis_that_is_silent_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call gives up, the loop goes on meanwhile; what it asked for may be done later."""

    async def test(town: Town) -> None:
        a, b = await town.agent("a"), await town.agent("b")
        epoch = (await beat(a)).epoch
        town.server.pause()
        monkeypatch.setattr(a._server, "_timeout", 0.2)
        call = asyncio.create_task(a.give(ALL[:9], to=2, epoch=epoch))
        turns = 0
        while not call.done():
            turns += 1
            await asyncio.sleep(0.01)
        with pytest.raises(RegistryError, match="is away: no answer in time"):
            call.result()
        assert turns > 2
        monkeypatch.undo()
        town.server.resume()
        await beat(a)
        # Whichever it was, both know it now, and it will not change.
        assert (await held(a))[2] in (0, 9)
        assert await held(a) == await held(b)

    with RedisServer(tmp_path, tcp=True) as server:
        in_a_real_world(server, monkeypatch, test)


def test_a_connection_that_the_system_gave_up_is_away(tmp_path: Path) -> None:
    """uvloop calls it a RuntimeError when the client writes to it; the next call has another."""
    uvloop = pytest.importorskip("uvloop")

    async def test(url: str) -> None:
        server = Server(url, 5.0)
        await server.evicting()
        (connection,) = server._client.connection_pool._available_connections
        connection._writer.transport.abort()
        with pytest.raises(RegistryError, match="is away") as caught:
            await server.evicting()
        assert caught.value.kind == "away"
        assert await server.evicting() == ""
        await server.close()

    with (
        RedisServer(tmp_path, tcp=True) as redis,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(test(redis.url))
