"""The key of a URL in an index: its host turned round, its path and query in one spelling (SURT).

As the Internet Archive's ``surt`` package writes it by default, and with it pywb and cdxj-indexer:
no scheme, userinfo, default port, ``www.``, fragment, session id or trailing slash; all in lower
case, percent-encoded in one way, parameters sorted. Several URLs may share a key.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

_URL = re.compile(r"(?i)(https?|ftp)://([^/?#]*)([^?#]*)(?:\?([^#]*))?")
_WWW = re.compile(r"^www\d*\.")
_PORTS: Final = {"http": ":80", "https": ":443", "ftp": ":21"}
# The ids of sessions that archives leave out: of ASP.NET in a path, and parameters.
_PATH_SESSION = re.compile(r"/\((?:[a-z]\([0-9a-z]{24}\)|[0-9a-z]{24})+\)(?=/.*\.aspx)")
_QUERY_SESSION = re.compile(r"(?:jsessionid|phpsessid|sid)=[0-9a-z]{32}"
                            r"|aspsessionid[a-z]{8}=[a-z]{24}|(?:cfid|cftoken)=.+")  # fmt: skip


def surt(url: str) -> str:
    """Return the key of *url*: ``com,example)/path?a=1&b=2``; of no web address itself."""
    match = _URL.match(url)
    if match is None:
        return url.replace(" ", "%20") or "-"
    scheme, netloc, path, query = match.groups()
    host = netloc.rpartition("@")[2].lower().removesuffix(_PORTS[scheme.lower()])
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
    else:
        name, colon, port = host.partition(":")
        name, port = _WWW.sub("", name.strip("."), count=1), colon + port
        name = ",".join(reversed(name.split(".")))
    key = f"{name}{port}){_path(path)}"
    query = _query(query) if query else ""
    return f"{key}?{query}" if query else key


def _path(path: str) -> str:
    path = _PATH_SESSION.sub("", _steps(_spell(path or "/")).lower())
    return path[:-1] if path.endswith("/") and len(path) > 1 else path


def _steps(path: str) -> str:
    """Resolve ``.`` and ``..`` and join slashes."""
    if "/." not in path and "//" not in path:
        return path
    out: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del out[-1:]
        elif part not in ("", "."):
            out.append(part)
    tail = "/" if out and path.endswith(("/", "/.", "/..")) else ""
    return f"/{'/'.join(out)}{tail}"


def _query(query: str) -> str:
    pairs = _spell(query).lower().split("&")
    kept = [pair for pair in pairs if not _QUERY_SESSION.fullmatch(pair)]
    return "&".join(sorted(kept, key=lambda pair: pair.partition("=")))


def _spell(text: str) -> str:
    """Percent-encode what has to be, and nothing else: as Google's Safe Browsing spells URLs."""
    if "%" not in text and text.isascii() and text.isprintable() and " " not in text:
        return text
    data = text.encode("utf-8", "replace")
    while (plain := unquote_to_bytes(data)) != data:
        data = plain
    return "".join(chr(byte) if 0x20 < byte < 0x7F and byte not in b"#%" else f"%{byte:02X}"
                   for byte in data)  # fmt: skip
