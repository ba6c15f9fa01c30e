"""The contract of what remembers the URLs that were seen and answers at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_spider_suite.seen.segments import encode
from scrapy_spider_suite.seen.sieve import SieveSet

HOSTS = ["a.t", "b.t", "www.a.t", "a.t:8080", "[::1]"]
PATHS = ["", "a", "a/b", "b?q=1", "ä", "%20", "\x00", "a\nb", "\udcff"]


def some_urls() -> st.SearchStrategy[str]:
    """URLs of few hosts, so that some come again, and some that are no URLs at all."""
    made = st.builds(
        "{}://{}/{}{}".format, st.sampled_from(["http", "https"]), st.sampled_from(HOSTS),
        st.sampled_from(PATHS), st.integers(0, 40),
    )  # fmt: skip
    return st.one_of(made, made, made, st.text(max_size=6))


class Seen(Protocol):
    """What is asked for of each."""

    def add(self, urls: Iterable[str]) -> list[str]:
        """Remember *urls*; those that were not, in order, each once."""
        ...

    def __contains__(self, url: str) -> bool:
        """Whether *url* is remembered."""
        ...

    def __len__(self) -> int:
        """How many are."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class SieveUrls:
    """A `SieveSet` as a set of URLs, merged when it is closed."""

    def __init__(self, path: Path) -> None:
        self.keys = SieveSet(path, capacity=20)
        self.flush = self.keys.flush

    def add(self, urls: Iterable[str]) -> list[str]:
        """See `Seen`."""
        return [url for url in urls if self.keys.add(encode(url))]

    def __contains__(self, url: str) -> bool:
        return encode(url) in self.keys

    def __len__(self) -> int:
        return len(self.keys)

    def close(self) -> None:
        """See `Seen`."""
        self.keys.flush()
        self.keys.close()


class SeenContract(ABC):
    """What every one does."""

    @abstractmethod
    def open(self, path: Path) -> Seen:
        """Open the one at *path*."""

    def again(self, seen: Seen, path: Path) -> Seen:
        """The same after a restart; for those that outlive none, the same."""
        seen.close()
        return self.open(path)

    def takes(self, url: str) -> bool:
        """Whether it remembers *url*; most remember any str."""
        return True

    def settle(self, seen: Seen) -> None:  # noqa: B027 - not all have a disk
        """Move what is in memory to disk, where there is a disk."""

    def test_new_ones_in_order_each_once(self, tmp_path: Path) -> None:
        """A page names a link twice, and links that are known."""
        seen = self.open(tmp_path / "seen")
        assert seen.add(["http://a.t/2", "http://a.t/1", "http://a.t/2"]) == [
            "http://a.t/2",
            "http://a.t/1",
        ]
        assert seen.add(["http://b.t/", "http://a.t/1"]) == ["http://b.t/"]
        assert seen.add([]) == []
        assert len(seen) == 3
        assert "http://a.t/2" in seen
        assert "http://a.t/" not in seen
        assert "http://a.t/22" not in seen
        seen.close()

    @settings(max_examples=20, suppress_health_check=[HealthCheck.differing_executors])
    @given(data=st.data())
    def test_it_is_a_set(
        self, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """Whatever comes, and whatever is moved or restarted in between."""
        path = tmp_path_factory.mktemp("contract") / "seen"
        seen, known = self.open(path), set[str]()
        for _ in range(data.draw(st.integers(1, 6))):
            batch = [*filter(self.takes, data.draw(st.lists(some_urls(), max_size=30)))]
            assert seen.add(batch) == [url for url in dict.fromkeys(batch) if url not in known]
            known |= set(batch)
            what = data.draw(st.sampled_from(["settle", "again", "go on"]))
            if what == "settle":
                self.settle(seen)
            elif what == "again":
                seen = self.again(seen, path)
            assert len(seen) == len(known)
            assert all(url in seen for url in known)
        assert not any(f"{url}!" in seen for url in known if f"{url}!" not in known)
        seen.close()
