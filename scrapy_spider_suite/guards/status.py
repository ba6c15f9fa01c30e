"""``status.json`` in the job directory: how a crawl is doing, or how it ended."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

NAME = "status.json"


class StatusFile:
    """The file in *folder*; what it says, *facts* first, is written whole with each `update`."""

    def __init__(self, folder: Path, **facts: Any) -> None:
        self._path = folder / NAME
        self._facts = facts

    def update(self, **facts: Any) -> None:
        """Say this, too. A disk that is full keeps what was said before."""
        self._facts.update(facts)
        new = self._path.with_suffix(".new")
        try:
            new.write_text(json.dumps(self._facts) + "\n")
            os.replace(new, self._path)
        except OSError:
            return  # the store says so, and that once is enough


def read_status(folder: Path) -> dict[str, Any] | None:
    """What the file in *folder* says; None if there is none, or it is no status."""
    try:
        status = json.loads((folder / NAME).read_text())
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) else None
