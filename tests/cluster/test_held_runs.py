"""The runs that a fetcher holds: what it says of them, and what it loads."""

from __future__ import annotations

import random

import pytest

from scrapy_spider_suite.cluster.held_runs import HeldRuns, LinkBox, run_entries
from scrapy_spider_suite.cluster.run_blobs import RunHosts
from scrapy_spider_suite.cluster.run_queue import Run, Slots, Task
from scrapy_spider_suite.errors import BlobError
from scrapy_spider_suite.frontier.entries import Entry, slot_of
from scrapy_spider_suite.frontier.outcomes import Event
from scrapy_spider_suite.store.rows import pack_row

HOST = "a.test"


def task_of(number: int, urls: int, progress: bytes = b"") -> Task:
    """A run of so many URLs of `HOST`."""
    return Task("bulk", slot_of(HOST), Run(number.to_bytes(8, "big"), urls, b""), progress, 0, b"")


def rows_of(paths: list[str]) -> RunHosts:
    """The rows of a run."""
    return [(HOST, [pack_row(Entry(HOST, f"http://{HOST}/{path}")) for path in paths])]


def add(held: HeldRuns, task: Task, rows: RunHosts) -> list[Entry]:
    """Take a run of *rows*."""
    return held.add(task, run_entries(task, rows))


def end(held: HeldRuns, entry: Entry) -> None:
    """It was fetched."""
    held.end(entry.identity, Event.SUCCESS, 200, 1_700_000_000.0)


@pytest.mark.parametrize("seed", range(20))
def test_it_goes_on_where_another_one_stopped(seed: int) -> None:
    """What was reported is not loaded again; all else is, whoever dies and whenever."""
    dice = random.Random(seed)
    paths = [str(n) for n in range(dice.randrange(1, 40))]
    reported, fetched, lives = b"", list[str](), 0
    while True:
        lives += 1
        held = HeldRuns()
        entries = add(held, task_of(1, len(paths), reported), rows_of(paths))
        before = {n for n in range(len(paths)) if reported[n >> 3 : (n >> 3) + 1]
                  and reported[n >> 3] >> (n & 7) & 1}  # fmt: skip
        assert [each.url for each in entries] == [
            f"http://{HOST}/{path}" for n, path in enumerate(paths) if n not in before
        ]
        dice.shuffle(entries)
        for entry in entries[: dice.randrange(len(entries) + 2)]:
            end(held, entry)
            fetched.append(entry.url)
            if dice.random() < 0.3:
                checkpoint = held.cut({})
                if dice.random() < 0.8:  # else it dies before that is durable
                    held.settle(checkpoint)
                    reported = held.progress().get(task_of(1, 1).run.id, reported)
                else:
                    break
        last = held.cut({})
        held.settle(last)
        if held.is_done(task_of(1, 1).run.id):
            assert set(fetched) == {f"http://{HOST}/{path}" for path in paths}
            assert held.empty(0.0, linger=0.0) == [slot_of(HOST)]
            return
        reported = held.progress().get(task_of(1, 1).run.id, reported)
        assert lives < 500


def test_a_url_in_two_runs_is_fetched_once() -> None:
    """It is done in both."""
    held = HeldRuns()
    [first] = add(held, task_of(1, 1), rows_of(["x"]))
    [other] = add(held, task_of(2, 2), rows_of(["x", "y"]))
    assert other.url.endswith("/y")
    end(held, first)
    end(held, other)
    held.settle(held.cut({}))
    assert held.is_done(task_of(1, 1).run.id)
    assert held.is_done(task_of(2, 2).run.id)
    assert len(list(held.finished())) == 1  # the last one of a slot keeps it
    held.remove([task_of(1, 1).run.id, task_of(2, 2).run.id])
    assert not held.runs
    assert not held.slots
    assert not len(held)


def test_nothing_is_reported_before_a_checkpoint() -> None:
    """Neither progress nor the end."""
    held = HeldRuns()
    entries = add(held, task_of(1, 3), rows_of(["a", "b", "c"]))
    end(held, entries[0])
    assert held.unsaid
    assert held.progress() == {}
    checkpoint = held.cut({})
    assert held.progress() == {}
    held.settle(checkpoint)
    assert held.progress() == {task_of(1, 1).run.id: b"\1"}
    held.said(list(held.progress()))
    assert held.progress() == {}
    [(_, endings)] = checkpoint.links.values()
    assert [row[2:] for row in endings] == [(200, 1_700_000_000)]


@pytest.mark.parametrize(
    "rows",
    [rows_of(["a"]), rows_of(["a", "b", "c"]), [("b.test", rows_of(["a", "b"])[0][1])],
     [(HOST, [b"no row", b"at all"])]],
    ids=["too few", "too many", "another host", "no rows"],
)  # fmt: skip
def test_foreign_runs_are_refused(rows: RunHosts) -> None:
    with pytest.raises(BlobError, match=r"a run (cannot be read|of 2 URLs has)"):
        run_entries(task_of(1, 2), rows)


def test_rows_for_owners_wait_in_a_box() -> None:
    """By partition, until they are taken."""
    box = LinkBox()
    for number in range(5):
        box.put(str(number % 2), b"%d" % number)
    assert len(box) == 5
    assert box.receivers == {"partition 0": 3, "partition 1": 2}
    assert box.take() == {0: [b"0", b"2", b"4"], 1: [b"1", b"3"]}
    assert not len(box)


def test_slots_are_left_to_others() -> None:
    """Where slots are scarce, the next run of those with the fewest URLs is not asked for."""
    held, hosts = HeldRuns(), ["a.test", "b.test", "c.test"]
    for number, host in enumerate(hosts, 1):
        run = Run(bytes([number]) * 8, number, b"")
        rows = [pack_row(Entry(host, f"http://{host}/{n}")) for n in range(number)]
        add(held, Task("bulk", slot_of(host), run, b"", 0, b""), [(host, rows)])
    assert set(held.low(0.0)) == {slot_of(host) for host in hosts}
    assert set(held.low(0.0, spared=2)) == {slot_of("c.test")}


@pytest.mark.parametrize(("slots", "share"), [
    (Slots(1, 30, 2), 48), (Slots(2, 18, 0), 9), (Slots(2, 18, 3), 11), (Slots(3, 10, 100), 126),
])  # fmt: skip
def test_a_share_of_slots(slots: Slots, share: int) -> None:
    """All that there is while there is enough; else an equal part."""
    assert slots.share == share
