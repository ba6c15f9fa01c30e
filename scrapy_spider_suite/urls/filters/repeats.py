"""Whether a path goes round in circles: ``/a/b/a/b/a/b/``."""

from __future__ import annotations


def repeats(path: str, times: int) -> bool:
    """Whether some sequence of segments of *path* stands *times* times or more in a row.

    Paths of a hundred thousand segments apart, that takes microseconds: the segments are numbers,
    each bit of these numbers is one long integer, and a period is tried on all places at once.
    """
    segments = path.strip("/").split("/")
    count = len(segments)
    if count < times or len(set(segments)) == count:
        return False
    numbers: dict[str, int] = {}
    for segment in segments:
        numbers.setdefault(segment, len(numbers))
    planes = [0] * max(1, (len(numbers) - 1).bit_length())
    for place, segment in enumerate(segments):
        number = numbers[segment]
        for plane in range(len(planes)):
            planes[plane] |= (number >> plane & 1) << place
    return any(_has_run(planes, count, period, times) for period in range(1, count // times + 1))


def _has_run(planes: list[int], count: int, period: int, times: int) -> bool:
    """Whether the segments equal those *period* later for ``period * (times - 1)`` in a row."""
    differ = 0
    for plane in planes:
        differ |= plane ^ plane >> period
    equal = ~differ & (1 << count - period) - 1
    length, needed = 1, period * (times - 1)
    while length < needed:
        step = min(length, needed - length)
        equal &= equal >> step
        length += step
    return equal != 0
