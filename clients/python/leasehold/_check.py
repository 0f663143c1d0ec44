"""What a program gives, before it goes to the keychain.

In:    values of the program. Out: the same, of a kind that can be sent; or ``Invalid``.
Never: lets anything through that the thread of the link, which works for all claims, could stumble over.
"""

from __future__ import annotations

import json
from typing import Any

from ._errors import Invalid

#: Longest line that a keychain reads, in bytes.
LINE_LEN_MAX = 1 << 20
#: What a line has beside its fields: its id, its operation.
FRAME_LEN = 64


def plain(line: dict[str, Any]) -> dict[str, Any]:
    """A copy of a request that is certain to be JSON, and that the program can't change any more."""
    copy: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for name, value in line.items():
        try:
            text = to_json(value)
            copy[name] = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise Invalid(f"{name!r} can't be sent: {error}") from error
        lengths[name] = len(name) + len(text)
    if sum(lengths.values()) + FRAME_LEN + 6 * len(lengths) > LINE_LEN_MAX:
        longest = max(lengths, key=lambda name: lengths[name])
        raise Invalid(f"{longest!r} is too long: a request may have {LINE_LEN_MAX} bytes")
    return copy


def to_json(value: Any) -> bytes:
    """The text of a value. Not in ASCII alone: a string that is no text is noticed here, not by the keychain."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def seconds(name: str, value: Any) -> float:
    """A time."""
    try:
        # A number in a string would be half a number: other places calculate with it.
        number = float("" if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError):
        raise Invalid(f"'{name}' must be a number of seconds, not {value!r}") from None
    if name == "max_hold" and number == 0:
        raise Invalid("a 'max_hold' of 0 would hold nothing; leave it out to hold without a limit")
    if not 0 <= number < 1e12 or (number == 0 and name not in ("timeout", "lead")):
        raise Invalid(f"'{name}' must be a number of seconds above 0, not {value!r}")
    return number
