"""What is asked of agents through Redis, and answered: once each, whatever happens in between."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from pathlib import Path

import pytest
from support.calling_agents import KEYS, InScene, Scene, a_call
from support.redis_servers import RedisServer

from scrapy_spider_suite.errors import AgentCallError
from scrapy_spider_suite.operate.actions import Action, Answer, AuditLog, new_id
from scrapy_spider_suite.operate.executors.agent_calls import (
    ANSWER_MAX,
    CALL_MAX,
    PIECE,
    PIECES,
    WAITING_MAX,
    AgentCall,
    AgentReply,
    ListPiece,
)
from scrapy_spider_suite.operate.executors.call_executor import CallExecutor


def test_a_call_is_carried_out_and_answered(in_scene: InScene) -> None:
    """Then it is out of the list, and what is left expires."""

    async def test(scene: Scene) -> None:
        call = a_call(arguments={"subject": "example.com", "seconds": 1.5, "drop": False})
        await scene.caller.submit({"a": call})
        reply = await scene.answer(call.id)
        assert (reply.code, reply.said, reply.facts) == (0, "done", {"number": 1})
        assert scene.doer.done == [call]
        assert scene.client.llen(KEYS.calls("a")) == 0
        assert all(scene.client.pttl(key) > 0 for key in scene.client.scan_iter())

    in_scene(test)


def test_urgent_ones_come_first(in_scene: InScene) -> None:
    """However many others wait; a block comes before what takes it back."""

    async def test(scene: Scene) -> None:
        await scene.kill()
        calls = [a_call(id=new_id(urgent=urgent)) for urgent in (False, False, True, True)]
        for call in calls:
            await scene.caller.submit({"a": call})
        scene.start()
        await scene.until(lambda: len(scene.doer.done) == 4)
        assert scene.doer.done == [*calls[2:], *calls[:2]]

    in_scene(test)


def test_a_process_that_was_killed_leaves_the_call_to_the_next(in_scene: InScene) -> None:
    """It lies in Redis until it is answered."""

    async def test(scene: Scene) -> None:
        scene.doer.wait.clear()
        call = a_call()
        await scene.caller.submit({"a": call})
        await scene.until(lambda: bool(scene.listener._tasks))
        await scene.kill()
        assert (scene.doer.done, scene.client.llen(KEYS.calls("a"))) == ([], 1)
        scene.doer.wait.set()
        scene.start()
        assert (await scene.answer(call.id)).code == 0
        assert scene.doer.done == [call]

    in_scene(test)


def test_a_list_arrives_whole_though_processes_are_killed(in_scene: InScene) -> None:
    """Larger than what is on the way at a time; its pieces are written where they belong."""

    async def test(scene: Scene) -> None:
        text = b"".join(b"https://example.com/%d\n" % number for number in range(70_000))
        pieces = [
            ListPiece(number, at, text[at : at + PIECE])
            for number, at in enumerate(range(0, len(text), PIECE))
        ]
        call = a_call(verb="add", pieces=len(pieces))
        await scene.kill()
        await scene.caller.submit({"a": call})
        sent = [await scene.caller.send(call.id, "a", piece) for piece in pieces[: PIECES + 1]]
        assert sent == [True] * PIECES + [False]
        for killed_at in (3, PIECES):
            scene.start()
            await scene.until(lambda at=killed_at: _size(scene, call) >= at * PIECE)
            await scene.kill()
        scene.start()
        for piece in pieces[PIECES:]:
            while not await scene.caller.send(call.id, "a", piece):
                await asyncio.sleep(0.01)
        assert (await scene.answer(call.id)).code == 0
        assert scene.doer.lists == {call.id: text}
        assert scene.client.exists(KEYS.pieces(call.id, "a")) == 0

    in_scene(test)


def _size(scene: Scene, call: AgentCall) -> int:
    path = scene.doer.folder / call.id
    return path.stat().st_size if path.exists() else 0


def test_what_cannot_be_done_is_answered(in_scene: InScene) -> None:
    """A verb that nobody does, a fault, a call that is over, a list of which a piece is missing."""

    async def test(scene: Scene) -> None:
        late = a_call(until=time.time() - 1)
        torn = a_call(verb="add", pieces=2)
        await scene.caller.send(torn.id, "a", ListPiece(0, PIECE, b"x"))
        calls = [a_call(verb="unknown"), a_call(verb="fault"), late, torn, a_call()]
        for call in calls:
            await scene.caller.submit({"a": call})
        said = [(await scene.answer(calls[index].id)).said for index in (0, 1, 3, 4)]
        assert said[0] == "nobody does that"
        assert said[1] == "it failed: ZeroDivisionError('a fault')"
        assert said[2] == "piece 0 of a list came without the one before it"
        assert said[3] == "done"
        assert await scene.caller.answers(late.id, ["a"]) == {}
        counters = scene.listener.counters
        assert (counters.answered, counters.refused, counters.expired) == (4, 2, 1)

    in_scene(test)


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[" * 50_000, b'{"id": "x"}', b"x" * (CALL_MAX + 1), b"\xff\x00",
        a_call().to_bytes().replace(b"act", b"eat"),
        a_call().to_bytes().replace(b'"when":', b'"when":1e300,"wh":'),
        a_call(id="0" * 20 + "-" + "a" * 16).to_bytes().replace(b"0" * 20, b"../" * 6 + b"00"),
    ],
    ids=range(9),
)  # fmt: skip
def test_what_is_no_call_is_refused_and_counted(
    in_scene: InScene, caplog: pytest.LogCaptureFixture, text: bytes
) -> None:
    """One line; the next call is heard."""

    async def test(scene: Scene) -> None:
        with caplog.at_level(logging.WARNING):
            scene.client.rpush(KEYS.calls("a"), text, text)
            call = a_call()
            await scene.caller.submit({"a": call})
            assert (await scene.answer(call.id)).code == 0
            await scene.until(lambda: not scene.client.llen(KEYS.calls("a")))
        assert scene.listener.counters.refused in (1, 2)  # equal ones are one
        assert [record.levelname for record in caplog.records] == ["WARNING"]

    in_scene(test)


def test_what_is_no_answer_is_refused(in_scene: InScene) -> None:
    """By whoever asked, too: another's, one that is too long, one that is none."""

    async def test(scene: Scene) -> None:
        await scene.kill()
        id = new_id(urgent=False)
        other = AgentReply(id=new_id(urgent=False), agent="b", code=0)
        bad = {"b": other.to_bytes(), "c": b"x" * (ANSWER_MAX + 1), "d": b"junk",
               "e": AgentReply(id=id, agent="b", code=0).to_bytes()}  # fmt: skip
        scene.client.hset(KEYS.answers(id), mapping=bad)
        scene.client.hset(KEYS.answers(id), "a", AgentReply(id=id, agent="a", code=3).to_bytes())
        found = await scene.caller.answers(id, [*"abcdef"])
        assert {name: reply.code for name, reply in found.items()} == {"a": 3}
        assert sorted(scene.caller.refused) == [*"bcde"]
        assert await scene.caller.answers(id, ["b"]) == {}

    in_scene(test)


def test_calls_are_bounded(in_scene: InScene) -> None:
    """One that is too long, too many of them: nothing is left for anybody."""

    async def test(scene: Scene) -> None:
        await scene.kill()
        with pytest.raises(AgentCallError, match="longer than"):
            await scene.caller.submit({"b": a_call(), "c": a_call(words=["x" * CALL_MAX])})
        scene.client.rpush(KEYS.calls("b"), *[b"x"] * WAITING_MAX)
        with pytest.raises(AgentCallError, match="wait for b already"):
            await scene.caller.submit({"c": a_call(), "b": a_call()})
        assert scene.client.exists(KEYS.calls("c")) == 0

    in_scene(test)


def test_an_answer_that_is_too_long_is_cut() -> None:
    """To lines that fit; who reads it is told."""
    text = random.Random(1).randbytes(ANSWER_MAX + (1 << 19)).hex()
    lines = [text[at : at + 1_000] for at in range(0, len(text), 1_000)]
    reply = AgentReply(id=new_id(urgent=False), agent="a", code=0, lines=lines)
    data = reply.to_bytes()
    read = AgentReply.from_bytes(data)
    assert len(data) <= ANSWER_MAX
    assert read.cut
    assert 0 < len(read.lines) < len(lines)
    assert read.lines == lines[: len(read.lines)]


def test_redis_is_away_for_a_while(tmp_path: Path) -> None:
    """The answer waits, and nothing is done twice."""

    async def test(server: RedisServer) -> None:
        with server.client() as client:
            scene = Scene(server, client, tmp_path / "lists")
            scene.doer.wait.clear()
            call = a_call()
            await scene.caller.submit({"a": call})
            await scene.until(lambda: bool(scene.listener._tasks))
            server.kill()
            scene.doer.wait.set()
            await scene.until(lambda: scene.listener.counters.away > 0)
            await scene.until(lambda: scene.doer.done == [call])
            server.start()
            assert (await scene.answer(call.id)).code == 0
            await asyncio.sleep(0.05)
            assert scene.doer.done == [call]
            await scene.kill()
            await scene.caller.close()

    with RedisServer(tmp_path / "redis", durable=True) as server:
        asyncio.run(test(server))


def test_a_drop_of_an_unknown_host_has_one_answer_before_and_after_a_kill(tmp_path: Path) -> None:
    """A process that was killed between the audit log and Redis leaves the answer to the next."""
    call = a_call(verb="drop", arguments={"subject": "a.test"})
    action = Action(f"{call.id}-call", "drop", call.arguments, "job", "me", 0.0)
    given = Answer(action.id, True, "the job has never met the host 'a.test'", {"known": False})
    AuditLog(tmp_path).append([(action, given)], time.time(), "process 1")
    reply = asyncio.run(CallExecutor(tmp_path, "job", "a").carry_out(call))
    assert (reply.code, reply.said, reply.facts) == (0, given.said, given.facts)
