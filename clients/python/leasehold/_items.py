"""What a claim holds: one resource or several, each alone, shared, or in slots.

In:    arguments of ``claim``. Out: the words of a request, and what was granted.
Never: decides who fits beside whom; the server does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Union

from ._errors import Invalid

#: A resource to hold with another: its name, or how it is wanted, as ``{"resource": "r", "mode": "shared"}``.
Also = Union[str, "dict[str, Any]"]


@dataclass(frozen=True)
class Item:
    """One resource of a claim, as it was granted."""

    #: What is held.
    resource: str
    #: ``exclusive``, ``shared`` or ``slots``.
    mode: str
    #: The numbers of the slots, from 1.
    slots: tuple[int, ...]
    #: The fencing token for this resource.
    token: int | None


def shared(resource: str) -> dict[str, Any]:
    """For ``also``: a resource that is held together with others that share it."""
    return {"resource": resource, "mode": "shared"}


def slots(resource: str, take: int, of: int) -> dict[str, Any]:
    """For ``also``: some slots of a resource."""
    return {"resource": resource, "take": take, "of": of}


def words(
    resource: str, is_shared: bool, wanted_slots: tuple[int, int] | None, also: Iterable[Also] | None
) -> dict[str, Any]:
    """The words of a request."""
    if not isinstance(resource, str):
        raise Invalid("the name of a resource must be a string")
    if is_shared and wanted_slots is not None:
        raise Invalid("'shared' and 'slots' can't be together: slots are shared by those who take others")
    first: dict[str, Any] = {"resource": resource}
    if is_shared:
        first = shared(resource)
    elif wanted_slots is not None:
        first = slots(resource, *_pair(wanted_slots))
    if isinstance(also, str):
        raise Invalid("'also' must be a list of resources, not a string")
    others = [{"resource": other} if isinstance(other, str) else other for other in also or ()]
    if not all(isinstance(other, dict) and isinstance(other.get("resource"), str) for other in others):
        raise Invalid("'also' must be names of resources, leasehold.shared(name), or leasehold.slots(name, take, of)")
    if not others:
        return first
    return {"resources": [first, *others]}


def resources(line: dict[str, Any]) -> tuple[str, ...]:
    """The names in a request."""
    items = line.get("resources") or [line]
    return tuple(item["resource"] for item in items)


def granted(resource: str, answer: dict[str, Any]) -> tuple[Item, ...]:
    """What the keychain says that a claim holds."""
    items = answer.get("items")
    if items is None:
        return (Item(resource, "exclusive", (), answer["token"]),)
    return tuple(Item(item["resource"], item["mode"], tuple(item["slots"]), item["token"]) for item in items)


def _pair(wanted: tuple[int, int]) -> tuple[int, int]:
    try:
        take, of = wanted
    except (TypeError, ValueError):
        raise Invalid(f"'slots' must be how many of how many, as (1, 5), not {wanted!r}") from None
    return take, of
