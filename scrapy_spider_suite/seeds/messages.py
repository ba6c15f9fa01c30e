"""What a message of the list of seeds says, where a spider has no reading of its own.

The meaning is scrapy-redis's: a URL, or a JSON object with ``url``, ``method``, ``meta`` and, under
any other name, a field of a form. Nothing in it is ever run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

from scrapy import FormRequest, Request

_WEB = ("http://", "https://")


def read_object(text: str) -> Request | None:
    """The request of the JSON object *text*; None if it is no such object.

    Raises `ValueError` if what it says makes no request.
    """
    if not text.lstrip().startswith("{"):
        return None
    try:
        said: dict[str, Any] = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    url, method = said.pop("url", None), said.pop("method", "GET")
    meta = said.pop("meta", None) or {}
    if not isinstance(url, str) or not isinstance(method, str) or not isinstance(meta, dict):
        raise ValueError("expected texts as url and method, and an object as meta")
    if not said:
        return Request(url, method=method.upper(), meta=meta)
    form = {name: _field(value) for name, value in said.items()}
    return FormRequest(url, method=method.upper(), meta=meta, formdata=form)


def _field(value: Any) -> str | list[str]:
    return [str(each) for each in value] if isinstance(value, list) else str(value)


def requests_of(made: object) -> list[Request]:
    """The requests that ``make_request_from_data()`` of a spider has *made*: one, several, none.

    Raises `ValueError` for one that is none of the web: a message is no way to files of this
    machine.
    """
    if made is None:
        return []
    found = [made] if isinstance(made, Request) else list(cast(Iterable[object], made))
    for each in found:
        if not isinstance(each, Request):
            raise ValueError(f"a {type(each).__name__} is no request")
        if not each.url.lower().startswith(_WEB):
            raise ValueError("no web address")
        if not each.method.isascii() or not each.method.isalpha():
            raise ValueError("no method")
    return cast(list[Request], found)
