"""A site without end."""

from __future__ import annotations

from support.websites import Answer, Site, Visit


class EndlessSite(Site):
    """Each page leads to one other page; there is no robots.txt."""

    def answer(self, visit: Visit) -> Answer:
        """The page with the number in its path."""
        number = visit.path.strip("/") or "0"
        if not number.isdigit():
            return super().answer(visit)
        return Answer(f'<a href="/{int(number) + 1}">more</a>'.encode())
