# Generated from ../_async/_files.py by scripts/generate_sync.py; change that file.
"""Reading and writing files in a sandbox."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, cast

from .. import _bridge_sync as bridge
from .. import _options as check
from .. import _wire as wire
from .._bridge_sync import FileData
from .._exceptions import FileNotFoundError, NotDirectoryError
from .._models import FileInfo, json_list
from .._source import Writable
from ._client import Client, _timeout
from ._trees import Trees, _user

Path: TypeAlias = str | bytes | os.PathLike[str]
Seconds: TypeAlias = float | check.Unset | None
_Infos: TypeAlias = list[FileInfo]

# How many files write_many sends at once.
_CONCURRENCY = 8


class Files(Trees):
    """Reads and writes the files of one sandbox; it is `sandbox.files`.

    A path is absolute and says which file in the sandbox is meant: a str, a pathlib.PurePosixPath, or bytes. A name
    that is not UTF-8 is given as bytes, or as a str with surrogate escapes, as `list` returns it.

    `user` says who acts, as far as permissions go; root when left out. `request_timeout` is in seconds and
    holds for a connection, for the answer and for each further part of it, not for the whole of a transfer; None means
    no limit, and by default it is the client's, 60.

    Every method may raise InvalidArgumentError (a path that is not absolute, an unknown user), FilePermissionError,
    SandboxEndedError and APIConnectionError.
    """

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self._client = client
        self._path = wire.sandbox_path(sandbox_id, "files")

    def read(
        self,
        path: Path,
        *,
        offset: int = 0,
        length: int | None = None,
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> bytes:
        """Return the bytes of a file, or of a part of it.

        Args:
            path: the file.
            offset: bytes from its start, 0 or more.
            length: bytes at most. Default None: to the end.
            user: who reads.
            request_timeout: seconds; see the class.

        Raises:
            FileNotFoundError: there is no such file.
            IsDirectoryError: it is a directory.
            RangeInvalidError: offset is beyond the file's end.
        """
        parts = bytearray()
        stream = self._read("files.read", path, offset, length, user, request_timeout)
        with contextlib.closing(stream) as chunks:
            for chunk in chunks:
                parts += chunk
        return bytes(parts)

    def read_text(
        self,
        path: Path,
        encoding: str = "utf-8",
        *,
        errors: str = "strict",
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> str:
        """Return a file as text; line ends are left as they are.

        Args:
            path: the file.
            encoding: one of Python's encodings.
            errors: what to do about bytes that are none: "strict", "replace", …, as in bytes.decode.
            user: who reads.
            request_timeout: seconds; see the class.

        Raises:
            UnicodeDecodeError: the bytes are not of that encoding.
            FileNotFoundError, IsDirectoryError: as `read`.
        """
        return (self.read(path, user=user, request_timeout=request_timeout)).decode(encoding, errors)

    def read_stream(
        self,
        path: Path,
        *,
        offset: int = 0,
        length: int | None = None,
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> Iterator[bytes]:
        """Iterate over a file's bytes in portions of any size, so that no more than one is in memory.

        The arguments and errors are those of `read`; errors are raised when the iteration begins. A connection that
        breaks midway raises APIConnectionError: an iteration that ends has given everything.
        """
        wire.path_param("files.read_stream", "path", path)
        return self._read("files.read_stream", path, offset, length, user, request_timeout)

    def read_to(
        self,
        path: Path,
        target: str | os.PathLike[str] | Writable,
        *,
        offset: int = 0,
        length: int | None = None,
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> int:
        """Copy a file of any size out of the sandbox, and return how many bytes it has.

        Args:
            path: the file in the sandbox.
            target: a local path, or a binary file object. A local file appears under its name only when it is whole.
            offset: bytes from its start, 0 or more.
            length: bytes at most. Default None: to the end.
            user: who reads.
            request_timeout: seconds; see the class.

        Raises:
            FileNotFoundError, IsDirectoryError, RangeInvalidError: as `read`; no local file was made.
            OSError: the local file cannot be written.
        """
        total = 0
        stream = self._read("files.read_to", path, offset, length, user, request_timeout)
        with contextlib.closing(stream) as chunks:
            # The first portion comes before the local file: an error leaves nothing behind.
            first = next(chunks, b"")
            with bridge.target_of("files.read_to", target) as write:
                if first:
                    write(first)
                    total += len(first)
                for chunk in chunks:
                    write(chunk)
                    total += len(chunk)
        return total

    def write(
        self,
        path: Path,
        data: FileData,
        *,
        user: str | None = None,
        owner: str | None = None,
        mode: int | str | None = None,
        create_only: bool = False,
        if_match: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> FileInfo:
        """Write a file whole, replacing what was there; missing parent directories are made.

        A reader sees the old file or the new one, never a part. If anything fails on the way, the old one stays.

        Args:
            path: the file in the sandbox.
            data: its content: str (sent as UTF-8), bytes, a pathlib.Path of a local file, a file object, or an iterable
                of bytes. The last three are sent in portions, whatever their size.
            user: who writes.
            owner: who will own the file and the directories that are made. Default: `user`, or without one the
                sandbox's user; a file that is there keeps its owner.
            mode: permission bits, 0o644 or "0644". Default: those of the file that is replaced, else 0644.
            create_only: write only if there is nothing of that name.
            if_match: write only if the file is still the one whose `etag` this is.
            request_timeout: seconds; see the class.

        Raises:
            PreconditionFailedError: create_only or if_match does not hold; nothing was written.
            IsDirectoryError: there is a directory of that name.
            NotDirectoryError: a parent is not a directory.
            DiskFullError: the sandbox's disk is full.
            OSError: the local file cannot be read.
        """
        headers: dict[str, str] = {}
        if check.boolean("files.write", "create_only", create_only):
            headers["If-None-Match"] = "*"
        if if_match is not None:
            headers["If-Match"] = check.text("files.write", "if_match", if_match)
        return self._write("files.write", path, data, user, owner, mode, request_timeout, headers)

    def write_many(
        self,
        files: Mapping[str, FileData] | Iterable[Mapping[str, Any] | tuple[Path, FileData]],
        *,
        user: str | None = None,
        owner: str | None = None,
        mode: int | str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> _Infos:
        """Write several files, eight at a time, and return what was written in the same order.

        The first failure is raised; files that were written before it stay.

        Args:
            files: {path: data}, or a list of (path, data) or of {"path": …, "data": …}, where the latter may also
                have a "mode". Data is what `write` takes.
            user: who writes.
            owner: as for `write`.
            mode: permission bits of those that have none of their own.
            request_timeout: seconds; see the class.

        Raises:
            TypeError: the list is not such a list; nothing was written.
            IsDirectoryError, NotDirectoryError, DiskFullError, OSError: as `write`.
        """
        call = "files.write_many"
        items = [(path, data, mode if own is None else own) for path, data, own in _items(call, files)]
        for path, _, bits in items:
            wire.path_param(call, "path", path)
            check.file_mode(call, bits)
        return bridge.gather(
            [
                functools.partial(self._write, call, path, data, user, owner, bits, request_timeout)
                for path, data, bits in items
            ],
            _CONCURRENCY,
        )

    def list(
        self,
        path: Path,
        depth: int = 1,
        *,
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> _Infos:
        """Return what is in a directory.

        Args:
            path: the directory.
            depth: 1 for its own entries, 2 for theirs too, up to 64. Links are not followed.
            user: who looks.
            request_timeout: seconds; see the class.

        Raises:
            FileNotFoundError: there is no such directory.
            NotDirectoryError: it is something else.
            InvalidArgumentError: there are more than 100,000 entries.
        """
        call = "files.list"
        params = [wire.path_param(call, "path", path), *_user(call, user)]
        levels = check.integer_or_none(call, "depth", depth)
        if levels is not None:
            params.append(("depth", str(levels)))
        timeout = _timeout(call, request_timeout)
        found: _Infos = []
        cursor: str | None = None
        while True:
            page = params if cursor is None else [*params, ("cursor", cursor)]
            answer = self._client._json(wire.Call("GET", self._path + "/list", params=page, request_timeout=timeout))
            found.extend(FileInfo._from_json(entry) for entry in json_list(answer, "entries"))
            cursor = answer.get("next_cursor")
            if not cursor:
                return found

    def get_info(self, path: Path, *, user: str | None = None, request_timeout: Seconds = check.UNSET) -> FileInfo:
        """Return a file's size, type, mode, owner and time. A link is described, not followed.

        Args:
            path: the file or directory.
            user: who looks.
            request_timeout: seconds; see the class.

        Raises:
            FileNotFoundError: there is nothing of that name.
        """
        call = "files.get_info"
        params = [wire.path_param(call, "path", path), *_user(call, user)]
        request = wire.Call("GET", self._path + "/stat", params=params, request_timeout=_timeout(call, request_timeout))
        return FileInfo._from_json(self._client._json(request))

    def stat(self, path: Path, *, user: str | None = None, request_timeout: Seconds = check.UNSET) -> FileInfo:
        """Do the same as `get_info`."""
        return self.get_info(path, user=user, request_timeout=request_timeout)

    def exists(self, path: Path, *, user: str | None = None, request_timeout: Seconds = check.UNSET) -> bool:
        """Return whether there is anything of that name: a file, a directory, a link even if it points nowhere.

        Args:
            path: the file or directory.
            user: who looks. What they may not see raises FilePermissionError.
            request_timeout: seconds; see the class.
        """
        try:
            self.get_info(path, user=user, request_timeout=request_timeout)
        except (FileNotFoundError, NotDirectoryError):
            return False
        return True

    def make_dir(
        self,
        path: Path,
        *,
        user: str | None = None,
        owner: str | None = None,
        mode: int | str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> FileInfo:
        """Make a directory and its missing parents; one that exists already is no error.

        Args:
            path: the directory.
            user: who makes it.
            owner: who will own what is made. Default: `user`, or without one the sandbox's user.
            mode: permission bits, 0o755 or "0755". Default: 0755.
            request_timeout: seconds; see the class.

        Raises:
            FileExistsError: there is something else of that name.
            NotDirectoryError: a parent is not a directory.
        """
        call = "files.make_dir"
        body = dict([wire.path_param(call, "path", path), *_user(call, user)])
        body.update(_owner_mode(call, owner, mode))
        request = wire.Call("POST", self._path + "/mkdir", json=body, request_timeout=_timeout(call, request_timeout))
        return FileInfo._from_json(self._client._json(request))

    def rename(
        self, path: Path, new_path: Path, *, user: str | None = None, request_timeout: Seconds = check.UNSET
    ) -> FileInfo:
        """Move a file or a directory, and return it under its new name. An existing file is replaced.

        Args:
            path: what is moved.
            new_path: the whole new path, absolute too.
            user: who moves it.
            request_timeout: seconds; see the class.

        Raises:
            FileNotFoundError: there is nothing at path.
            IsDirectoryError, DirectoryNotEmptyError: new_path is a directory that cannot be replaced.
        """
        call = "files.rename"
        body = dict([wire.path_param(call, "from", path), wire.path_param(call, "to", new_path), *_user(call, user)])
        request = wire.Call("POST", self._path + "/rename", json=body, request_timeout=_timeout(call, request_timeout))
        return FileInfo._from_json(self._client._json(request))

    def remove(
        self,
        path: Path,
        *,
        recursive: bool = False,
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> None:
        """Remove a file, a link, or a directory.

        Args:
            path: what is removed.
            recursive: whether a directory goes with all that is in it; without it only an empty one does.
            user: who removes it.
            request_timeout: seconds; see the class.

        Raises:
            FileNotFoundError: there is nothing of that name.
            DirectoryNotEmptyError: it is a directory that holds something, and recursive is False.
        """
        call = "files.remove"
        params = [wire.path_param(call, "path", path), *_user(call, user)]
        if check.boolean(call, "recursive", recursive):
            params.append(("recursive", "true"))
        # Not repeated when the connection fails: the second answer would be that there is no such file.
        request = wire.Call(
            "DELETE",
            self._path,
            params=params,
            repeatable=False,
            request_timeout=_timeout(call, request_timeout),
        )
        self._client._request(request)

    def _read(
        self,
        call: str,
        path: Path,
        offset: object,
        length: object,
        user: object,
        request_timeout: Seconds,
    ) -> Generator[bytes, None, None]:
        start, count = wire.byte_range(call, offset, length)
        request = wire.Call(
            "GET",
            self._path,
            params=[wire.path_param(call, "path", path), *_user(call, user)],
            headers=wire.range_header(start, count),
            request_timeout=_timeout(call, request_timeout),
        )
        with self._client._stream(request) as response:
            cutter = wire.RangeCutter(response, start, count)
            if cutter.done:
                return
            with contextlib.closing(self._client._chunks(request, response)) as chunks:
                for chunk in chunks:
                    if portion := cutter.cut(chunk):
                        yield portion
                    if cutter.done and response.status_code != 206:
                        return  # the server sends the whole file, range or not

    def _write(
        self,
        call: str,
        path: Path,
        data: FileData,
        user: object,
        owner: object,
        mode: object,
        request_timeout: Seconds,
        headers: Mapping[str, str] | None = None,
    ) -> FileInfo:
        params = [wire.path_param(call, "path", path), *_user(call, user)]
        params.extend(_owner_mode(call, owner, mode).items())
        timeout = _timeout(call, request_timeout)
        with bridge.content_of(call, data) as content:
            request = wire.Call(
                "PUT",
                self._path,
                params=params,
                content=content,
                headers={"Content-Type": "application/octet-stream", **(headers or {})},
                request_timeout=timeout,
            )
            return FileInfo._from_json(self._client._json(request))


def _owner_mode(call: str, owner: object, mode: object) -> dict[str, str]:
    fields: dict[str, str] = {}
    if owner is not None:
        fields["owner"] = check.text(call, "owner", owner)
    if (bits := check.file_mode(call, mode)) is not None:
        fields["mode"] = bits
    return fields


def _items(call: str, files: object) -> list[tuple[Path, FileData, Any]]:
    """Return what write_many was given as (path, data, mode)."""
    if isinstance(files, Mapping):
        return [(path, data, None) for path, data in cast("Mapping[Path, FileData]", files).items()]
    if isinstance(files, (str, bytes)) or not isinstance(files, Iterable):
        raise TypeError(f"{call}: files must be a dict or a list, got {type(files).__name__}")
    items: list[tuple[Path, FileData, Any]] = []
    for i, item in enumerate(cast("Iterable[object]", files)):
        if isinstance(item, Mapping):
            entry = cast("Mapping[str, Any]", item)
            unknown = sorted(str(key) for key in entry if key not in ("path", "data", "mode"))
            if unknown or "path" not in entry or "data" not in entry:
                problem = f"unknown {', '.join(unknown)}" if unknown else "path or data is missing"
                raise TypeError(f'{call}: files[{i}] must be {{"path": …, "data": …}}: {problem}')
            items.append((entry["path"], entry["data"], entry.get("mode")))
        elif isinstance(item, tuple) and len(cast("tuple[object, ...]", item)) == 2:
            path, data = cast("tuple[Path, FileData]", item)
            items.append((path, data, None))
        else:
            raise TypeError(f'{call}: files[{i}] must be (path, data) or {{"path": …, "data": …}}')
    return items
