"""The operator: each action once, answered, written down; what takes long in portions."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from scrapy_spider_suite.crawl.queue.frontier import Frontier
from scrapy_spider_suite.errors import ActionError, StoreWriteError
from scrapy_spider_suite.frontier.policy import Policy
from scrapy_spider_suite.operate.actions import Action, ActionFolder, Answer, AuditLog, new_id
from scrapy_spider_suite.operate.executors.one_job import ActionRunner
from scrapy_spider_suite.operate.job_target import JobTarget
from scrapy_spider_suite.operate.verb import WAITING
from scrapy_spider_suite.operate.verbs.upkeep import snapshot
from scrapy_spider_suite.store.rocks_store import RocksStore

JOB = "the-job"


class Yard(JobTarget):
    """A site whose disk may be full, and whose clock ticks once for each question."""

    full = False
    clock = 0.0

    def commit(self) -> bool:
        """As a running crawl does it."""
        if self.full:
            return False
        return super().commit()

    def now(self) -> float:  # type: ignore[override]
        """Seconds."""
        self.clock += 1.0
        return self.clock


def shout(site: JobTarget, action: Action) -> tuple[str, dict[str, Any]]:
    """Say what it was given."""
    return action.get("text", str).upper(), {}


def count(site: JobTarget, action: Action) -> Generator[None, None, tuple[str, dict[str, Any]]]:
    """Count to three, each number durable."""
    key = action.id.encode()
    at = int(site.kv.get(key) or b"0")
    while at < 3:
        at += 1
        site.kv.put(key, str(at).encode())
        yield
    return "three", {"at": at}


def refuse(site: JobTarget, action: Action) -> tuple[str, dict[str, Any]]:
    """Refuse."""
    raise ActionError("not today")


def break_down(site: JobTarget, action: Action) -> tuple[str, dict[str, Any]]:
    """Have a fault."""
    raise ZeroDivisionError


def chatter(site: JobTarget, action: Action) -> tuple[str, dict[str, Any]]:
    """Say more than an answer may hold."""
    return "x" * 100_000, {"much": ["y"] * 10}


def loiter(site: JobTarget, action: Action) -> Generator[bool, None, tuple[str, dict[str, Any]]]:
    """Wait for something else to happen."""
    while site.kv.get(b"signal") is None:
        yield WAITING
    return "at last", {}


def write(site: JobTarget, action: Action) -> tuple[str, dict[str, Any]]:
    """Fail as long as nothing can be written."""
    if isinstance(site, Yard) and site.full:
        raise StoreWriteError("no room")
    return "written", {}


def write_much(
    site: JobTarget, action: Action
) -> Generator[None, None, tuple[str, dict[str, Any]]]:
    """Likewise, after a portion."""
    yield
    return write(site, action)


VERBS = {
    "loiter": loiter, "write": write, "write-much": write_much,
    "chatter": chatter, "shout": shout, "count": count, "refuse": refuse,
    "break": break_down,
}  # fmt: skip


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    """A job that is nothing but a store."""
    store = RocksStore(tmp_path / "store")
    yield Yard(tmp_path, store, Frontier(store, Policy(), now=0.0, wall=0.0, capacity=0))
    store.close()


def left(
    site: JobTarget, verb: str, job: str = JOB, *, urgent: bool = False, **arguments: Any
) -> str:
    """Leave an action; its id."""
    action = Action(new_id(urgent=urgent), verb, arguments, job, "ops@h", time.time(), "why not")
    ActionFolder(site.folder).submit(action)
    return action.id


def answer(site: JobTarget, id: str) -> Answer:
    """The answer, which has to be there."""
    found = ActionFolder(site.folder).pop_answer(id)
    assert found is not None
    return found


def test_each_is_answered_and_written_down(yard: Yard) -> None:
    """Good or bad: an answer each, an audit line each, and nothing left to do."""
    operator = ActionRunner(yard, JOB, VERBS)
    asked = {
        left(yard, "shout", text="a"): (True, "A"),
        left(yard, "shout"): (False, "shout: the argument 'text' is missing or no text"),
        left(yard, "refuse"): (False, "not today"),
        left(yard, "jump"): (False, "there is no verb 'jump'; known: loiter, write, write-much"),
        left(yard, "shout", job="another", text="a"): (False, "the action was left for another"),
        left(yard, "break"): (False, "it failed: ZeroDivisionError()"),
    }
    assert operator.waits
    operator.poll()
    for id, (ok, said) in asked.items():
        given = answer(yard, id)
        assert given.ok is ok
        assert given.said.startswith(said)
    rows = list(AuditLog(yard.folder).rows())
    assert [row["id"] for row in rows] == list(asked)
    assert {(row["who"], row["why"]) for row in rows} == {("ops@h", "why not")}
    assert not operator.waits
    assert list(ActionFolder(yard.folder).path.iterdir()) == []


def test_a_long_action_lets_others_go_between(yard: Yard) -> None:
    """A portion, then whoever came meanwhile."""
    operator = ActionRunner(yard, JOB, VERBS)
    long = left(yard, "count")
    operator.poll(0.0)
    assert operator.busy
    short = left(yard, "shout", text="b")
    operator.poll(0.0)
    assert answer(yard, short).said == "B"
    assert operator.busy
    for _ in range(5):
        operator.poll(0.0)
    assert answer(yard, long) == Answer(long, True, "three", {"at": 3})
    assert not operator.busy


def test_a_kill_in_the_middle_is_carried_on(yard: Yard) -> None:
    """The next operator begins where the last one was; also if only the removal was missing."""
    first = ActionRunner(yard, JOB, VERBS)
    id = left(yard, "count")
    first.poll(0.0)
    first.poll(0.0)
    assert yard.kv.get(id.encode()) == b"2"
    second = ActionRunner(yard, JOB, VERBS)
    folder = ActionFolder(yard.folder)
    data = (folder.path / f"{id}.action").read_bytes()
    while not folder.is_answered(id):
        second.poll()
    (folder.path / f"{id}.action").write_bytes(data)
    ActionRunner(yard, JOB, VERBS).poll()
    assert len(list(AuditLog(yard.folder).rows())) == 1
    assert folder.waiting() == []


def test_nothing_is_answered_before_it_is_durable(yard: Yard) -> None:
    """While the disk is full, the answer waits."""
    operator = ActionRunner(yard, JOB, VERBS)
    id = left(yard, "shout", text="c")
    yard.full = True
    operator.poll()
    assert ActionFolder(yard.folder).pop_answer(id) is None
    yard.full = False
    operator.poll()
    assert answer(yard, id).said == "C"


def test_an_audit_log_that_cannot_be_written_holds_the_answer(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No action goes unrecorded."""
    operator = ActionRunner(yard, JOB, VERBS)
    id = left(yard, "shout", text="d")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(AuditLog, "append", full)
        operator.poll()
    assert ActionFolder(yard.folder).pop_answer(id) is None
    yard.clock += 60.0
    operator.poll()
    assert answer(yard, id).ok


def test_what_is_no_action_is_passed_over(yard: Yard, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and keeps nothing waiting."""
    operator = ActionRunner(yard, JOB, VERBS)
    folder = ActionFolder(yard.folder)
    folder.path.mkdir()
    (folder.path / "mine.action").write_text("{")
    for _ in range(2):
        operator.poll()
    assert not operator.waits
    assert [each for each in caplog.messages if "mine is not carried out" in each]
    assert len(caplog.messages) == 1


def test_a_store_that_cannot_write_is_tried_again(yard: Yard) -> None:
    """The portion is not skipped."""
    operator = ActionRunner(yard, JOB, VERBS)
    id = left(yard, "count")
    operator.poll(0.0)

    def fail() -> None:
        raise StoreWriteError("full")

    flush, yard.frontier.flush = yard.frontier.flush, fail  # type: ignore[method-assign]
    operator.poll(0.0)
    operator.poll(0.0)
    yard.frontier.flush = flush  # type: ignore[method-assign]
    for _ in range(5):
        operator.poll(0.0)
    assert answer(yard, id).facts == {"at": 3}


def test_an_answer_that_is_too_long_is_cut(yard: Yard) -> None:
    """Whoever asked has one, all the same."""
    operator = ActionRunner(yard, JOB, VERBS)
    id = left(yard, "chatter")
    operator.poll()
    given = answer(yard, id)
    assert given.ok
    assert given.said == "x" * 2_000
    assert given.facts == {"cut_short": True}


def test_a_folder_that_is_none_stops_nothing(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and looked at again."""
    operator = ActionRunner(yard, JOB, VERBS)
    path = ActionFolder(yard.folder).path
    path.write_text("in the way")
    for _ in range(3):
        operator.poll()
    assert len([r for r in caplog.records if "cannot be read or answered" in r.message]) == 1
    path.unlink()
    id = left(yard, "shout", text="e")
    operator.poll()
    assert answer(yard, id).said == "E"


def test_a_folder_that_is_none_has_nothing_waiting(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    """Or a crawl would never end; it is said once."""
    operator = ActionRunner(yard, JOB, VERBS)
    ActionFolder(yard.folder).path.write_text("in the way")
    assert not operator.waits
    assert not operator.waits
    assert len([r for r in caplog.records if "cannot be read or answered" in r.message]) == 1


def test_an_answer_that_cannot_be_given_is_written_down_once(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again slowly; the action is not carried out again, by the next operator neither.
    """
    shouted, tried = [], []

    def loud(site: JobTarget, action: Action) -> tuple[str, dict[str, Any]]:
        shouted.append(action.id)
        return "G", {"n": 1}

    def fail(self: ActionFolder, answer: Answer) -> None:
        tried.append(answer.id)
        raise PermissionError(13, "Permission denied")

    id = left(yard, "loud")
    with monkeypatch.context() as patch:
        patch.setattr(ActionFolder, "answer", fail)
        for _ in range(2):  # a crawl, and the next one
            operator = ActionRunner(yard, JOB, {"loud": loud})
            for _ in range(4):
                operator.poll()
            yard.clock += 60.0
            operator.poll()
    assert tried == [id] * 4
    assert len([r for r in caplog.records if "cannot be read or answered" in r.message]) == 2
    ActionRunner(yard, JOB, {"loud": loud}).poll()
    assert answer(yard, id) == Answer(id, True, "G", {"n": 1})
    assert shouted == [id]
    assert [row["id"] for row in AuditLog(yard.folder).rows()] == [id]
    assert list(yard.kv.items(b"carried out ")) == []


def test_an_action_that_was_taken_back_leaves_nothing(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was kept for its answer goes with the next sweep."""
    id = left(yard, "shout", text="h")
    with monkeypatch.context() as patch:
        patch.setattr(ActionFolder, "answer", lambda *_: os.mkdir(yard.folder))
        ActionRunner(yard, JOB, VERBS).poll()
    assert len(list(yard.kv.items(b"carried out "))) == 1
    ActionFolder(yard.folder).remove(id)
    ActionRunner(yard, JOB, VERBS).poll()
    assert list(yard.kv.items(b"carried out ")) == []


def test_what_waits_holds_up_nothing(yard: Yard) -> None:
    """Neither what is short nor what is long, however many wait; then it is answered, too."""
    operator = ActionRunner(yard, JOB, VERBS)
    waiting = [left(yard, "loiter") for _ in range(20)]
    long, short = left(yard, "count"), left(yard, "shout", text="i")
    for _ in range(5):
        operator.poll(100.0)
    assert answer(yard, short).ok
    assert answer(yard, long).facts == {"at": 3}
    assert operator.busy
    yard.kv.put(b"signal", b"1")
    operator.poll(100.0)
    assert [answer(yard, id).said for id in waiting] == ["at last"] * 20
    assert not operator.busy


def test_long_ones_go_in_turn(yard: Yard) -> None:
    """Some of them at a time: each may have a file open."""
    operator = ActionRunner(yard, JOB, VERBS)
    ids = [left(yard, "count") for _ in range(20)]
    operator.poll(2 * 8 + 3.0)  # Yard's clock ticks at each question
    begun = [id for id in ids if yard.kv.get(id.encode())]
    assert begun == ids[:8]
    while operator.busy:
        operator.poll()
    assert all(answer(yard, id).facts == {"at": 3} for id in ids)


def test_what_is_urgent_comes_before_everything(yard: Yard) -> None:
    """However much was left before it, it is done at the next look."""
    operator = ActionRunner(yard, JOB, VERBS)
    many = [left(yard, "count") for _ in range(250)]
    urgent = left(yard, "shout", urgent=True, text="j")
    operator.poll()
    assert answer(yard, urgent).said == "J"
    assert len(ActionFolder(yard.folder).waiting()) == len(many)
    assert operator.busy
    assert operator.waits


def test_answers_of_a_round_are_synced_together(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit and one sync for all of them, and none is given before."""
    synced: list[int] = []
    sync, folder = os.fsync, ActionFolder(yard.folder)
    ids = [left(yard, "shout", text=str(n)) for n in range(50)]

    def count_them(file: int) -> None:
        synced.append(sum(folder.is_answered(id) for id in ids))
        sync(file)

    monkeypatch.setattr(os, "fsync", count_them)
    ActionRunner(yard, JOB, VERBS).poll()
    assert synced == [0]
    assert [answer(yard, id).said for id in ids] == [str(n) for n in range(50)]
    assert len(list(AuditLog(yard.folder).rows())) == 50


@pytest.mark.parametrize("verb", ["write", "write-much"])
def test_what_could_not_write_is_done_when_it_can(yard: Yard, verb: str) -> None:
    """By the same operator."""
    operator = ActionRunner(yard, JOB, VERBS)
    id = left(yard, verb)
    operator.poll(0.0)
    yard.full = True
    other = left(yard, verb)
    for _ in range(3):
        operator.poll(100.0)
    assert ActionFolder(yard.folder).waiting()[-1] == other
    assert operator.stuck
    yard.full = False
    for _ in range(3):
        operator.poll(100.0)
    assert [answer(yard, each).said for each in (id, other)] == ["written"] * 2
    assert not operator.busy
    assert not operator.stuck


def test_what_was_taken_back_in_line_is_not_begun(yard: Yard) -> None:
    """It is written down, and nobody gets an answer."""
    operator = ActionRunner(yard, JOB, VERBS)
    for _ in range(8):
        left(yard, "count")
    last = left(yard, "count")
    operator.poll(0.0)
    assert ActionFolder(yard.folder).withdraw(last) is None
    while operator.busy:
        operator.poll()
    assert yard.kv.get(last.encode()) is None
    assert ActionFolder(yard.folder).pop_answer(last) is None
    [row] = [row for row in AuditLog(yard.folder).rows() if row["id"] == last]
    assert (row["ok"], row["said"]) == (False, "it was taken back before it was begun")


@pytest.mark.parametrize("when", ["before", "beside", "after", "too late"])
def test_a_snapshot_that_was_taken_back_leaves_nothing(yard: Yard, when: str) -> None:
    """Whoever asked has it whole, or there is none."""
    operator = ActionRunner(yard, JOB, {"snapshot": snapshot})
    folder = ActionFolder(yard.folder)
    id = left(yard, "snapshot", target="/somewhere")
    if when == "before":
        assert folder.withdraw(id) is None
    operator.poll(0.0)
    given = folder.withdraw(id) if when == "beside" else None
    while operator.busy and not (when == "after" and folder.copy_path(id).exists()):
        operator.poll(0.0)
    if when in {"after", "too late"}:
        given = folder.withdraw(id)
    while operator.busy:
        operator.poll(0.0)
    assert given is not None or when != "too late"
    if given is not None:  # "beside" and "after" may be too late, too
        assert given.ok
        assert (folder.copy_path(id) / "CURRENT").exists()
        shutil.rmtree(folder.copy_path(id))
    assert list(folder.path.iterdir()) == []
