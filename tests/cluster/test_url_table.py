"""Known URLs in segments: a dictionary, however they are added, merged and loaded again."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_spider_suite.cluster.url_table import Ending, UrlTable, fingerprint
from scrapy_spider_suite.errors import BlobError
from scrapy_spider_suite.frontier.outcomes import Event

ENDINGS = st.builds(
    Ending, st.sampled_from([None, *Event]), st.integers(0, 999), st.integers(0, 2**32 - 1)
)
KEYS = st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1))
BATCHES = st.lists(st.lists(st.tuples(KEYS, ENDINGS), max_size=30), max_size=12)


@given(BATCHES)
def test_it_is_a_dictionary(batches: list[list[tuple[int, Ending]]]) -> None:
    """The last ending of each URL, also in a table of the same segments."""
    folder = Path(tempfile.mkdtemp())
    table, segments, model = UrlTable(folder), list[bytes](), dict[int, Ending]()
    for batch in batches:
        model |= dict(batch)
        segments.append(table.add(batch))
        if (merged := table.merge()) is not None:
            count, data = merged
            segments[-count:] = [data]
        for each in (table, UrlTable(folder, segments)):
            asked = [*model, 41, 2**63 + 1]
            assert each.known(np.array(asked, np.uint64)).tolist() == [k in model for k in asked]
            assert {key: each.ending(key) for key in asked} == {k: model.get(k) for k in asked}


def test_few_segments_are_searched(tmp_path: Path) -> None:
    """However many batches there are, the segments stay few, and rows are merged few times."""
    table, written, segments = UrlTable(tmp_path), 0, list[bytes]()
    for batch in range(300):
        urls = range(batch * 50, batch * 50 + 50)
        rows = [(fingerprint(b"%d" % n), Ending(None, n % 999, n)) for n in urls]
        segments.append(table.add(rows))
        written += len(segments[-1])
        if (merged := table.merge()) is not None:
            count, data = merged
            segments[-count:] = [data]
            written += len(data)
    keys = [fingerprint(b"%d" % n) for n in range(15_100)]
    for each in (table, UrlTable(tmp_path, segments)):
        assert each.known(np.array(keys, np.uint64)).tolist() == [True] * 15_000 + [False] * 100
        for n in range(0, 15_000, 97):
            assert each.ending(keys[n]) == Ending(None, n % 999, n)
    assert len(table) == 15_000
    assert len(table._segments) < 10
    assert written < 15_000 * 15 * 12  # each row some ten times


def test_damaged_segments_are_refused(tmp_path: Path) -> None:
    """Any flipped bit, and any cut."""
    data = UrlTable(tmp_path).add([(fingerprint(b"a"), Ending(Event.SUCCESS, 200, 5))])
    for at in range(len(data)):
        with pytest.raises(BlobError):
            UrlTable(tmp_path, [data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :]])
        if at != 8:  # an empty segment
            with pytest.raises(BlobError):
                UrlTable(tmp_path, [data[:at]])
