"""What a host or a URL looks like where it is named: in text, JSON, scripts, other URLs.

Patterns of bytes, for what is not taken apart: of JSON the letter of ``\\n`` stands right before a
name, of a URL in a query the digits of ``%2F``. Neither belongs to it.
"""

from __future__ import annotations

import re
from typing import Final

_NO_PART: Final = (  # in hexadecimal digits: what is no letter, digit, hyphen, dot, underscore
    rb"(?i:[01][0-9a-f]|2[0-9a-cf]|3[a-f]|40|5[b-e]|60|7[b-f]|[89a-f][0-9a-f])"
)
_ESCAPED: Final = b"|".join((
    rb"(?<=\\[nrtbf])",
    *(rb"(?<=" + lead + _NO_PART + rb")" for lead in (rb"%", rb"%25", rb"\\x", rb"\\u00")),
    rb"(?<=\\u(?!00)(?i:[0-9a-f]{4}))",
))  # fmt: skip
_BEFORE: Final = rb"(?:(?<![\w.-])|" + _ESCAPED + rb")"
_BEFORE_OR_ABOVE: Final = rb"(?:(?<![\w-])|" + _ESCAPED + rb")"
_BEHIND: Final = rb"(?![\w-]|\.\w)"
_BEHIND_OR_BELOW: Final = rb"(?![\w-])"

# What would make another URL of one that ends there: a full stop alone would not.
_GOES_ON: Final = rb"(?![\w%/?=-]|\\/|\\(?:u00|x)(?i:2[56f]|3[df])|\.+\w"
_MORE: Final = rb"(?i:2[56f]|3[df]|[89a-f])"


def host_pattern(host: str, backwards: str = "") -> re.Pattern[bytes]:
    """Where *host* is named; ``*.example.com``: or one below it.

    ``example.com`` is no part of ``www.example.com``, nor of ``example.com.test``. *backwards*: the
    name with its labels in reverse order, if that is sought, too.
    """
    name = host.removeprefix("*.")
    below = name != host
    forms = [_form(_BEFORE_OR_ABOVE if below else _BEFORE, name, _BEHIND)]
    if backwards:
        forms.append(_form(_BEFORE, backwards, _BEHIND_OR_BELOW if below else _BEHIND))
    return re.compile(b"|".join(forms), re.IGNORECASE)


def _form(before: bytes, name: str, behind: bytes) -> bytes:
    text = re.escape(name.encode())
    # To look for the name first is ten times as fast.
    return rb"(?=" + text + rb")" + before + text + behind


def url_pattern(url: str) -> re.Pattern[bytes]:
    """Where *url*, and no longer one, is named: as it is, escaped as in JSON, or in another URL."""
    scheme, _, rest = url.encode().partition(b":")
    spelled = b"".join(_spelled(rest[at : at + 1]) for at in range(len(rest)))
    # `&` ends one that has no query, and one that is the value of a parameter.
    forms = [
        rb"(?::|\\(?:u00|x)(?i:3a))" + spelled + _GOES_ON + (rb"|&)" if b"?" in rest else rb")"),
        *(lead + rb"(?i:3a)" + spelled + rb"(?![\w/?-]|" + lead + _MORE + rb"|\.+\w)"
          for lead in (rb"%", rb"%25")),
    ]  # fmt: skip
    return re.compile(re.escape(scheme) + rb"(?:" + b"|".join(forms) + rb")")


def _spelled(sign: bytes) -> bytes:
    """How one sign of a URL may be written."""
    if sign.isalnum() or sign in b"-._~":
        return re.escape(sign)
    code = sign.hex().encode()
    ways = [re.escape(sign), rb"%(?:25)?(?i:" + code + rb")", rb"\\(?:u00|x)(?i:" + code + rb")"]
    ways += [rb"\\/"] if sign == b"/" else []
    # The longest first: `&` begins `&amp;`, and `%` begins `%25`.
    ways = [b"&amp;", *ways] if sign == b"&" else ways
    return rb"(?:" + b"|".join([*ways[1:], ways[0]] if sign == b"%" else ways) + rb")"
