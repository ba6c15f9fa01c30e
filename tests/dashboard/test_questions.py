"""Answers that viewers share: each is asked once, kept for a second, and bounded in number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from twisted.internet.defer import Deferred, maybeDeferred

from scrapy_spider_suite.analysis.time_series import Columns, Rows
from scrapy_spider_suite.dashboard.questions import HttpAnswer, SharedAnswers
from scrapy_spider_suite.errors import JobError


class View:
    """Answers with the words that it was asked."""

    asked = 0
    missing = "b: no answer"

    def search(self, words: str) -> list[dict[str, Any]]:
        """Raise what the words say."""
        self.asked += 1
        if words == "job":
            raise JobError("no index")
        if words == "fault":
            raise KeyError(words)
        return [{"words": words}]

    def series(self, start: float, end: float, points: int) -> Rows:
        """One row without and one with values."""
        columns = Columns(("pages", "errors.dns", "errors.robots", "retried"), ("pending",))
        values = np.zeros((2, columns.size))
        values[0, 1:], values[1, 1:4] = np.nan, [10.0, 5.0, 1.0]
        return Rows(np.array([start, start + 10.0]), 10.0, columns, values)


class Thread:
    """A `ViewThread` without a thread: it answers when `run` is called."""

    def __init__(self) -> None:
        self.view = View()
        self.waiting: list[tuple[Callable[[Any], Any], Deferred[Any]]] = []

    def ask(self, question: Callable[[Any], Any]) -> Deferred[Any]:
        """Put *question* off."""
        answer = Deferred[Any]()
        self.waiting.append((question, answer))
        return answer

    def run(self) -> None:
        """Answer all."""
        while self.waiting:
            question, answer = self.waiting.pop(0)
            maybeDeferred(question, self.view).chainDeferred(answer)


class Asker:
    """Shared answers at a time that the test sets."""

    def __init__(self) -> None:
        self.thread, self.slow, self.now = Thread(), Thread(), 0.0
        clock = lambda: self.now  # noqa: E731
        self.answers = SharedAnswers(self.thread, self.slow, clock)  # type: ignore[arg-type]
        self.got: list[HttpAnswer] = []

    def ask(self, name: str, **words: str) -> None:
        """Ask; the answer goes to `got`."""
        self.answers.get(name, words).addCallback(self.got.append)


def test_one_question_for_all() -> None:
    """Those who ask while the answer is sought share it, as those within the next second."""
    asker = Asker()
    for _ in range(3):
        asker.ask("search", q="a")
    assert asker.got == []
    asker.slow.run()
    asker.ask("search", q="a")
    assert asker.slow.view.asked == 1
    assert [each.body for each in asker.got] == [
        b'{"rows":[{"words":"a"}],"missing":"b: no answer"}'
    ] * 4
    asker.now = 1.5
    asker.ask("search", q="a")
    asker.slow.run()
    assert asker.slow.view.asked == 2


def test_bounded() -> None:
    """A hundred questions wait at most; of the answers the latest are kept."""
    asker = Asker()
    for number in range(150):
        asker.ask("search", q=str(number))
    assert [each.status for each in asker.got] == [503] * 50
    asker.slow.run()
    for number in range(99, 149):
        asker.ask("search", q=str(number))
    asker.slow.run()
    assert all(each.status == 200 for each in asker.got[50:])
    assert len(asker.answers._asked) <= 65


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [("job", 409, b"no index"), ("fault", 500, b"the log"), ("", 400, b"expected 1 to")],
)
def test_errors(
    words: str, status: int, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """An error is an answer; a fault goes to the log."""
    asker = Asker()
    asker.ask("search", q=words)
    asker.slow.run()
    [answer] = asker.got
    assert answer.status == status
    assert text in answer.body
    assert bool(caplog.records) == (words == "fault")


def test_quick_questions_do_not_wait_for_slow_ones() -> None:
    """Series go on while an agent, or a large store, is asked."""
    asker = Asker()
    asker.ask("search", q="a")
    asker.ask("series", start="100", end="120", points="2")
    asker.thread.run()
    assert [each.status for each in asker.got] == [200]
    asker.slow.run()
    assert len(asker.got) == 2


def test_series() -> None:
    """Rates and means of what is charted; unknown values are null, kinds without any are left out.
    """
    asker = Asker()
    asker.ask("series", start="100", end="120", points="2")
    asker.thread.run()
    [answer] = asker.got
    assert b'"times":[100.0,110.0]' in answer.body
    assert b'"rates":{"pages":[null,0.5],"errors.dns":[null,0.1]}' in answer.body
    assert b'"means":{"pending":[null,null]}' in answer.body
