"""Checks of options: what is plainly wrong is a TypeError or ValueError before anything is sent.

Ranges and defaults are the server's; only what could not be sent at all, or would
silently mean something else, is refused here.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar, cast

T = TypeVar("T")


class Unset(enum.Enum):
    """The type of UNSET, which tells an option that was not given from None."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET


def one_of(call: str, name: str, value: T | Unset, other_name: str, other: T | Unset) -> T | Unset:
    """Return the one of two spellings of one option that was given."""
    if not isinstance(value, Unset) and not isinstance(other, Unset):
        raise TypeError(f"{call}: {name} and {other_name} are two names of one option; give one of them")
    return other if isinstance(value, Unset) else value


def one_of_optional(call: str, name: str, value: T | None, other_name: str, other: T | None) -> T | None:
    """Do the same for options that None leaves unset."""
    if value is not None and other is not None:
        raise TypeError(f"{call}: {name} and {other_name} are two names of one option; give one of them")
    return other if value is None else value


def text(call: str, name: str, value: object) -> str:
    """Return value, a str that UTF-8 can carry."""
    if not isinstance(value, str):
        raise TypeError(f"{call}: {name} must be a str, got {_kind(value)}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{call}: {name} holds surrogates, which UTF-8 cannot carry: {value!r}") from None
    return str(value)


def header(call: str, name: str, value: object) -> str:
    """Return value, a str that a header can carry."""
    checked = text(call, name, value)
    if not checked or not checked.isascii() or not checked.isprintable():
        raise ValueError(f"{call}: {name} must be printable characters of ASCII, got {value!r}")
    return checked


def text_or_none(call: str, name: str, value: object) -> str | None:
    """Return value, a str or None."""
    return None if value is None else text(call, name, value)


def number(call: str, name: str, value: object) -> float:
    """Return value, a finite int or float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{call}: {name} must be a number of seconds or None, got {_kind(value)}")
    if not math.isfinite(value):
        raise ValueError(f"{call}: {name} must be finite; None means no limit")
    return value


def integer_or_none(call: str, name: str, value: object) -> int | None:
    """Return value, an int or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{call}: {name} must be an int, got {_kind(value)}")
    return value


def boolean(call: str, name: str, value: object) -> bool:
    """Return value, a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{call}: {name} must be a bool, got {_kind(value)}")
    return value


def text_mapping(call: str, name: str, value: object) -> dict[str, str] | None:
    """Return value, a mapping of str to str, or None."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise TypeError(f"{call}: {name} must be a dict of str to str, got {_kind(value)}")
    checked: dict[str, str] = {}
    for key, item in cast("Mapping[object, object]", value).items():
        if not isinstance(key, str) or not isinstance(item, str):
            raise TypeError(f"{call}: {name} must be a dict of str to str, but {key!r} is {_kind(item)}")
        checked[text(call, f"a key of {name}", key)] = text(call, f"{name}[{key!r}]", item)
    return checked


def text_list(call: str, name: str, value: object) -> list[str]:
    """Return value, a list or tuple of str."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"{call}: {name} must be a list of str, got {_kind(value)}")
    return [text(call, f"{name}[{i}]", item) for i, item in enumerate(cast("Sequence[object]", value))]


_ID = re.compile(r"[A-Za-z0-9_-]+")


def sandbox_id(call: str, value: object) -> str:
    """Return value, a str that can be a sandbox's id."""
    if not isinstance(value, str):
        raise TypeError(f"{call}: a sandbox's id is a str, got {_kind(value)}")
    if not _ID.fullmatch(value):
        raise ValueError(f"{call}: {value!r} is not a sandbox's id; those are 20 of [a-z0-9]")
    return str(value)


def file_mode(call: str, value: object) -> str | None:
    """Return permission bits as the octal digits that the API takes."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"{call}: mode must be an int such as 0o644 or octal digits such as '0644', got {_kind(value)}")
    if isinstance(value, str):
        digits = value.removeprefix("0o")
        if not re.fullmatch(r"[0-7]{1,5}", digits):
            raise ValueError(f"{call}: mode {value!r} is not octal; write it as '0644' or 0o644")
        return digits.zfill(4)
    if not 0 <= value <= 0o7777:
        raise ValueError(f"{call}: mode {value!r} is outside 0 to 0o7777; write it in octal, as 0o644")
    if 0o777 < value <= 777 and re.fullmatch(r"[0-7]{3}", str(value)):
        # As octal digits it is what people write; as a number, bits that nobody wants.
        raise ValueError(f"{call}: mode {value!r} is decimal; write 0o{value} or {str(value)!r}")
    return f"{value:04o}"


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
