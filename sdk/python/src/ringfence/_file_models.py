"""What is told about files beyond what they are, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from ._models import _Reader, decode_base64

ChangeType = Literal["create", "modify", "remove", "rename_from", "rename_to", "attrib", "overflow", "gone"]


def _path(r: _Reader, what: str) -> str:
    encoded = r.text_or_none("path_base64")
    if encoded is not None:
        return decode_base64(encoded, what).decode("utf-8", "surrogateescape")
    return r.text("path")


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """Something that happened to a watched file or directory.

    Attributes:
        type: "create", "modify" (its content), "remove", "rename_from" and "rename_to" (the two names of one move),
            "attrib" (mode, owner, times); "overflow": more happened than could be told, look again; "gone": what is
            watched was itself removed, and the watch ends.
        path: the file; the watched path for "overflow" and "gone".
        is_dir: whether it is a directory.
        cookie: the same number in the two changes of one move; 0 otherwise.
    """

    type: ChangeType
    path: str
    is_dir: bool = False
    cookie: int = 0

    @staticmethod
    def _from_json(value: object) -> FileChange:
        r = _Reader(value, "file change")
        return FileChange(
            type=cast("ChangeType", r.text("type")),
            path=_path(r, "file change"),
            is_dir=r.boolean("is_dir"),
            cookie=r.integer_or_none("cookie") or 0,
        )


@dataclass(frozen=True, kw_only=True)
class FileMatch:
    """A file that a search found, or a line in it.

    Attributes:
        path: the file.
        type: "file", "directory", "symlink" or "other".
        line: the line's number from 1, where content was searched; else None.
        column: the byte in the line, from 1, at which the match begins; else None.
        text: the line, without its end; else None.
    """

    path: str
    type: str
    line: int | None = None
    column: int | None = None
    text: str | None = None

    @staticmethod
    def _from_json(value: object) -> FileMatch:
        r = _Reader(value, "match")
        return FileMatch(
            path=_path(r, "match"),
            type=r.text_or_none("type") or "file",
            line=r.integer_or_none("line"),
            column=r.integer_or_none("column"),
            text=r.text_or_none("text"),
        )


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
        matches: in the order of their paths.
        truncated: whether there are more than the limit.
    """

    matches: tuple[FileMatch, ...]
    truncated: bool
