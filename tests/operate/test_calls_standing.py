"""Calls that stand, for agents that come later: they keep no other call waiting, nor end anything.
"""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest
from support.calling_agents import KEYS, InScene, Scene, a_call

from scrapy_spider_suite.operate.executors import call_executor
from scrapy_spider_suite.operate.executors.agent_calls import CALL_MAX, AgentCall, AgentReply


def test_what_stands_is_heard_by_who_comes_later(in_scene: InScene) -> None:
    """Once; the last one about each subject; what is no such call is refused."""

    async def test(scene: Scene) -> None:
        await scene.kill()
        first, again, other, gone = (
            a_call(verb="block", arguments={"subject": subject}) for subject in ("x", "x", "y", "z")
        )
        for call in (first, again, other, gone):
            await scene.caller.keep_standing(call)
        await scene.caller.remove_standing(gone)
        scene.client.hset(KEYS.standing, mapping={"junk": b"junk", "long": b"x" * (CALL_MAX + 1)})
        scene.client.hset(KEYS.standing, "drop", a_call(verb="drop").to_bytes())
        for _ in range(2):
            scene.start()
            last = a_call()
            await scene.caller.submit({"a": last})
            await scene.answer(last.id)
            await scene.kill()
        done = [call for call in scene.doer.done if call.stands.startswith("block")]
        assert sorted(done, key=lambda call: call.id) == [again, other]
        assert scene.listener.counters.refused == 1

    in_scene(test)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyError(1)])
def test_a_standing_call_that_fails_does_not_end_the_listening(
    in_scene: InScene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:  # fmt: skip
    """It is tried again when it is looked for what stands; what stands beside it is done."""

    async def test(scene: Scene) -> None:
        await scene.kill()
        failing, other = (a_call(verb="block", arguments={"subject": each}) for each in "xy")
        for call in (failing, other):
            await scene.caller.keep_standing(call)
        do, errors = scene.doer.carry_out, [error, error]

        async def carry_out(call: AgentCall) -> AgentReply:
            if call == failing and errors:
                raise errors.pop()
            return await do(call)

        monkeypatch.setattr(call_executor, "STAND", 5)
        monkeypatch.setattr(scene.doer, "carry_out", carry_out)
        scene.start()
        await scene.until(lambda: other in scene.doer.done)
        last = a_call()
        await scene.caller.submit({"a": last})
        assert (await scene.answer(last.id)).code == 0
        await scene.until(lambda: failing in scene.doer.done)
        assert not scene.task.done()

    with caplog.at_level(logging.WARNING):
        in_scene(test)
    lines = [record.getMessage() for record in caplog.records]
    assert lines
    assert all("block" in line for line in lines)


def test_a_standing_call_that_takes_long_keeps_no_other_waiting(
    in_scene: InScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the disk, for one; it is carried out once."""

    async def test(scene: Scene) -> None:
        await scene.kill()
        standing = a_call(verb="block", arguments={"subject": "x"})
        await scene.caller.keep_standing(standing)
        monkeypatch.setattr(call_executor, "STAND", 1)
        begun, free, do = [], asyncio.Event(), scene.doer.carry_out

        async def carry_out(call: AgentCall) -> AgentReply:
            if call == standing:
                begun.append(call)
                await free.wait()
            return await do(call)

        monkeypatch.setattr(scene.doer, "carry_out", carry_out)
        scene.start()
        await scene.until(lambda: bool(begun))
        for _ in range(3):
            last = a_call()
            await scene.caller.submit({"a": last})
            assert (await scene.answer(last.id)).code == 0
        assert (begun, scene.listener._stood) == ([standing], set())
        free.set()
        await scene.until(lambda: bool(scene.listener._stood))
        looks = scene.listener._polls
        await scene.until(lambda: scene.listener._polls > looks + 3)
        assert begun == [standing]
        free.clear()

    in_scene(test)


def test_what_was_taken_back_meanwhile_does_not_stand(
    in_scene: InScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block whose turn has not come, or of which it is being looked whether it is new."""

    async def test(scene: Scene) -> None:
        await scene.kill()
        held = asyncio.Event()
        blocks = [a_call(verb="block", arguments={"subject": each}) for each in "xy"]
        for call in blocks:
            await scene.caller.keep_standing(call)

        async def is_new(call: AgentCall) -> bool:
            await held.wait()
            return call not in scene.doer.done

        monkeypatch.setattr(scene.doer, "is_new", is_new)
        scene.start()
        backs = [a_call(verb="unblock", arguments=call.arguments) for call in blocks]
        for call in backs:
            await scene.caller.keep_standing(call)
            await scene.caller.submit({"a": call})
            await scene.answer(call.id)
        held.set()
        standing = scene.listener._standing
        assert standing is not None
        await standing
        assert scene.doer.done == backs

    in_scene(test)


def test_a_call_that_stands_and_comes_is_carried_out_once_at_a_time(
    in_scene: InScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever carries it out knows only of what has ended that it was done."""

    async def test(scene: Scene) -> None:
        await scene.kill()
        call = a_call(verb="block", arguments={"subject": "x"})
        await scene.caller.keep_standing(call)
        free, begun, most, do = asyncio.Event(), 0, 0, scene.doer.carry_out

        async def carry_out(call: AgentCall) -> AgentReply:
            nonlocal begun, most
            begun += 1
            most = max(most, begun)
            await free.wait()
            begun -= 1
            return await do(call)

        monkeypatch.setattr(scene.doer, "carry_out", carry_out)
        scene.start()
        await scene.until(lambda: begun > 0)
        await scene.caller.submit({"a": call})
        await scene.until(lambda: bool(scene.listener._tasks))
        looks = scene.listener._polls
        await scene.until(lambda: scene.listener._polls > looks + 3)
        free.set()
        assert (await scene.answer(call.id)).code == 0
        assert most == 1

    in_scene(test)
