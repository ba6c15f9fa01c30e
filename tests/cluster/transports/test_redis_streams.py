"""Tests of messages through Redis Streams, on a real server that is emptied, filled and killed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backports import zstd
from support.message_transport_contract import Agent, TransportContract, message_of, rows_of, until
from support.redis_servers import RedisServer
from support.stream_agents import INBOX, RECEIPTS, StreamsAgents

from scrapy_spider_suite.cluster.messages import MessagePacker
from scrapy_spider_suite.cluster.transports.redis_streams import BOUNDS


class TestStreams(StreamsAgents, TransportContract):
    """The contract, and what only a server can do."""

    def test_removed_when_kept(self, both: Any) -> None:
        """A server holds what is on its way, and nothing else in the end."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            a.write("b", rows_of(2_000))
            await self.settle(a, b)
            with self.server.client() as client:
                await until(lambda: client.xlen(INBOX) == client.xlen(RECEIPTS) == 0)
                assert client.xpending(INBOX, "agents")["pending"] == 0

        both(test)

    @pytest.mark.parametrize("lost", ["stream", "group", "receipts", "everything"])
    def test_what_is_lost(self, both: Any, lost: str) -> None:
        """Streams and groups that are deleted under both are made anew, and messages sent again."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            rows = rows_of(2_000)
            a.write("b", rows)
            a.post()
            await until(lambda: b.unkept)
            with self.server.client() as client:
                if lost == "group":
                    client.xgroup_destroy(INBOX, "agents")
                elif lost == "everything":
                    self.lose()
                else:
                    client.delete(INBOX if lost == "stream" else RECEIPTS)
            b.unkept.clear()  # and its process has them no more: it has them handed to it again
            await b.restart()
            await self.settle(a, b)
            assert set(b.kept) == set(rows)

        both(test)

    def test_lost_while_nobody_restarts(self, both: Any) -> None:
        """The same process reads the new stream."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            for number in range(3):
                a.write("b", [b"%d" % number])
                await self.settle(a, b)
                self.lose()
            assert b.transport.counters.remade >= 2
            assert a.transport.counters.failed == 0

        both(test)

    def test_taken_by_a_process_that_was_paused(self, both: Any) -> None:
        """What another process of the agent took comes to this one without being sent again."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            a.write("b", [b"one"])
            a.post()
            await until(lambda: b.unkept)
            b.unkept.clear()
            other = Agent("b", self)
            self.agents["b"] = other
            await other.start()
            await until(lambda: other.unkept)
            assert a.transport.counters.sent == 1
            await self.settle(a, other)
            await other.kill()

        both(test)

    def test_receipts_for_another_incarnation(self, both: Any) -> None:
        """They do not count: its rows may have been others under the same numbers."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            a.write("b", [b"one"])
            a.post()
            await until(lambda: b.unkept)
            b.keep()
            await a.kill()
            a.outbox = {1: ("b", b"another")}
            await a.start()
            await self.settle(a, b)
            assert b.kept == [b"one", b"another"]

        both(test)


class TestBadStreams(StreamsAgents):
    """What strangers do."""

    limits = {"inbox": 8}  # noqa: RUF012 - read only

    @pytest.fixture
    def refused(
        self, both: Any, caplog: pytest.LogCaptureFixture
    ) -> Callable[[Callable[[Any], None]], tuple[Any, list[str]]]:
        """Do something to the server between messages; what agent b counted then and was logged."""

        def during(harm: Callable[[Any], None]) -> tuple[Any, list[str]]:
            found = []

            async def test(a: Agent, b: Agent) -> None:
                await b.start()
                a.write("b", [b"one"])
                await self.settle(a, b)
                with self.server.client() as client:
                    harm(client)
                    a.write("b", rows_of(100))
                    await self.settle(a, b)
                    await until(lambda: client.xlen(INBOX) == client.xlen(RECEIPTS) == 0)
                found.extend([a.transport.counters, b.transport.counters])

            caplog.set_level(logging.WARNING)
            both(test)
            return found, [record.message for record in caplog.records]

        return during

    def test_entries_that_are_no_messages(self, refused: Any) -> None:
        """Of any kind: one line, counted, removed."""

        def harm(client: Any) -> None:
            for bad in ({"x": "y"}, {"message": b"junk"}, {"message": b"", "more": b""}):
                for _ in range(5):
                    client.xadd(INBOX, bad)
            client.xadd(RECEIPTS, {"receipts": b"\x01b1234"})
            client.xadd(RECEIPTS, {"x": "y"})

        (a, b), lines = refused(harm)
        assert b.malformed >= 15  # more, if one was looked at again while it was being removed
        assert a.malformed == 2
        assert len(lines) == 2
        assert (
            "messages through Redis, agent b: refused an entry of the inbox that is no message "
            "(said once; further ones are counted)"
        ) in lines

    def test_bombs(self, refused: Any) -> None:
        """Large ones, and such as become large."""

        def harm(client: Any) -> None:
            bomb = zstd.compress(bytes(64 << 20))
            message = msgspec.msgpack.encode((1, "a", 1, 1, 1, 1, bomb))
            client.xadd(INBOX, {"message": message})
            client.xadd(INBOX, {"message": bytes((1 << 20) + 1)})

        (_, b), lines = refused(harm)
        assert b.oversized >= 2
        assert len(lines) == 1

    def test_forged_sender(self, both: Any) -> None:
        """A message of an agent that is none is handed on as any: that is not for a carrier to say;
        its receipt harms nobody."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            with self.server.client() as client:
                client.xadd(INBOX, {"message": message_of("nobody", b"x", bounds=BOUNDS).data})
            a.write("b", [b"one"])
            await self.settle(a, b)
            await until(lambda: len(b.kept) == 2, b.keep)

        both(test)

    @pytest.mark.parametrize("key", [INBOX, RECEIPTS])
    def test_wrong_type(self, both: Any, key: str, caplog: pytest.LogCaptureFixture) -> None:
        """Something else lies under a key: nothing is lost, and it goes on when that is gone."""

        async def test(a: Agent, b: Agent) -> None:
            with self.server.client() as client:
                client.set(key, "mine")
                await b.start()
                a.write("b", rows_of(50))
                failing = (b if key == INBOX else a).transport.counters
                await until(lambda: failing.failed >= 3, lambda: [a.turn(), b.turn()])
                assert len(a.outbox) == 50
                assert client.get(key) == b"mine"
                client.delete(key)
                await self.settle(a, b)

        both(test)
        lines = [record.message for record in caplog.records]
        assert 1 <= len(lines) <= 3
        assert all(f"another type under our name ({key})" in line for line in lines)

    def test_what_nobody_foresaw(self, both: Any, caplog: pytest.LogCaptureFixture) -> None:
        """It is said once, with its traceback, and messages go on."""

        async def test(a: Agent, b: Agent) -> None:
            post, errors = a.transport._posts.due, [KeyError("never"), KeyError("ever")]

            def due(now: float, most: int) -> Any:
                if errors:
                    raise errors.pop()
                return post(now, most)

            a.transport._posts.due = due  # type: ignore[attr-defined, method-assign]
            await b.start()
            a.write("b", [b"one"])
            await self.settle(a, b)
            assert not errors
            assert b.kept == [b"one"]

        both(test)
        (record,) = [each for each in caplog.records if each.levelname == "CRITICAL"]
        assert "agent a: KeyError('ever')" in record.message
        assert record.exc_info is not None

    def test_a_full_inbox(self, both: Any) -> None:
        """An agent that is not there is sent no more than its inbox takes."""

        async def test(a: Agent, b: Agent) -> None:
            rows = rows_of(30)
            a.write("b", rows)
            a.packer = MessagePacker("a", 1, BOUNDS._replace(packed=90))  # a message for each
            counters = a.transport.counters
            await until(lambda: counters.full >= 8, a.post)
            with self.server.client() as client:
                assert client.xlen(INBOX) == counters.sent == 8
            await b.start()
            await self.settle(a, b)
            assert set(b.kept) == set(rows)

        both(test)

    def test_out_of_memory(self, both: Any, caplog: pytest.LogCaptureFixture) -> None:
        """Messages wait until there is memory again."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            a.write("b", [b"one"])
            await self.settle(a, b)
            with self.server.client() as client:
                client.config_set("maxmemory", "1mb")
                try:
                    a.write("b", rows_of(50))
                    counters = a.transport.counters
                    await until(lambda: counters.failed >= 2, a.post)
                finally:
                    client.config_set("maxmemory", "0")
            await self.settle(a, b)

        both(test)
        lines = [record.message for record in caplog.records]
        assert 1 <= len(lines) <= 2
        assert all("out of memory" in line for line in lines)


class TestServers(StreamsAgents):
    """What becomes of a server."""

    @pytest.fixture(autouse=True)
    def _server(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[None]:
        durable = "durable" in request.node.name
        self.processes = {}
        with RedisServer(tmp_path, durable=durable) as self.server:
            yield

    @pytest.mark.parametrize("kind", ["durable", "forgetful"])
    def test_killed(self, both: Any, kind: str) -> None:
        """It is killed while messages are on their way, and what it held is gone or not."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            rows = rows_of(2_000)
            a.write("b", rows)
            a.post()
            await until(lambda: b.unkept)
            self.server.kill()
            b.keep()
            a.write("b", [b"more"])
            counters = a.transport.counters
            await until(lambda: counters.failed, a.post)
            self.server.start()
            self.enroll()
            await self.settle(a, b)
            assert set(b.kept) == {*rows, b"more"}

        both(test)

    def test_paused(self, both: Any) -> None:
        """It stands still: messages are taken as far as there is room, and closing takes an end."""

        async def test(a: Agent, b: Agent) -> None:
            await b.start()
            a.write("b", [b"one"])
            await self.settle(a, b)
            self.server.pause()
            a.write("b", rows_of(4_000))
            a.post()
            assert a.transport.room("b") == 0
            counters = a.transport.counters
            await until(lambda: counters.failed)
            await b.transport.close(0.1)
            self.server.resume()
            await b.start()
            await self.settle(a, b)

        both(test)
