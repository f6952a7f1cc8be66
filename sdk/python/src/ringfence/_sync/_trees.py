# Generated from ../_async/_trees.py by scripts/generate_sync.py; change that file.
"""What can be done with files beyond reading and writing them one by one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from .. import _archive as archive
from .. import _bridge_sync as bridge
from .. import _options as check
from .. import _sse as sse
from .. import _wire as wire
from .._bridge_sync import FileData
from .._exceptions import APIConnectionError
from .._file_models import FileChange, FileMatch, SearchResult
from .._models import FileInfo, json_list
from ._client import Client, _timeout

Path: TypeAlias = str | bytes | os.PathLike[str]
Seconds: TypeAlias = float | check.Unset | None

# An archive up to this size is kept in memory while it is on its way.
_IN_MEMORY = 8 << 20


class Trees:
    """The part of `sandbox.files` that works on whole directories, searches, watches and signs."""

    _client: Client
    _path: str

    def copy(
        self,
        path: Path,
        new_path: Path,
        *,
        recursive: bool = False,
        user: str | None = None,
        owner: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> FileInfo:
        """Copy a file, or with recursive a directory, within the sandbox, and return the copy.

        Args:
            path: what is copied. A link is copied as a link.
            new_path: the whole new path, absolute too; missing parents are made.
            recursive: whether a directory is copied with all that is in it.
            user: who copies.
            owner: who will own the copy. Default: who copies.
            request_timeout: seconds; see the class.

        Raises:
            FileNotFoundError: there is nothing at path.
            IsDirectoryError: it is a directory, and recursive is False.
        """
        call = "files.copy"
        body: dict[str, Any] = dict(
            [wire.path_param(call, "from", path), wire.path_param(call, "to", new_path), *_user(call, user)]
        )
        if check.boolean(call, "recursive", recursive):
            body["recursive"] = True
        if owner is not None:
            body["owner"] = check.text(call, "owner", owner)
        return FileInfo._from_json(self._post(call, "/copy", body, request_timeout))

    def chmod(
        self,
        path: Path,
        mode: int | str | None = None,
        *,
        owner: str | None = None,
        group: str | None = None,
        recursive: bool = False,
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> FileInfo:
        """Change a file's mode, owner or group; what is not given stays.

        Args:
            path: the file or directory.
            mode: permission bits, 0o644 or "0644".
            owner: a user's name or number.
            group: a group's name or number.
            recursive: do the same to all that is in a directory; links are left alone.
            user: who does it.
            request_timeout: seconds; see the class.
        """
        call = "files.chmod"
        body: dict[str, Any] = dict([wire.path_param(call, "path", path), *_user(call, user)])
        if (bits := check.file_mode(call, mode)) is not None:
            body["mode"] = bits
        for name, value in (("owner", owner), ("group", group)):
            if value is not None:
                body[name] = check.text(call, name, value)
        if check.boolean(call, "recursive", recursive):
            body["recursive"] = True
        return FileInfo._from_json(self._post(call, "/mode", body, request_timeout))

    def set_metadata(
        self,
        path: Path,
        metadata: Mapping[str, str] | None = None,
        *,
        remove: Iterable[str] = (),
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> FileInfo:
        """Set or remove a file's metadata (extended attributes of the namespace "user"); the rest stays.

        `get_info(path).metadata` reads it.

        Args:
            path: the file or directory.
            metadata: what is set.
            remove: names that are removed; one that is not there is no error.
            user: who does it.
            request_timeout: seconds; see the class.
        """
        call = "files.set_metadata"
        body: dict[str, Any] = dict([wire.path_param(call, "path", path), *_user(call, user)])
        body["set"] = check.text_mapping(call, "metadata", metadata) or {}
        body["remove"] = check.text_list(call, "remove", [*remove])
        return FileInfo._from_json(self._post(call, "/metadata", body, request_timeout))

    def checksum(
        self,
        path: Path,
        algorithm: str = "sha256",
        *,
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> str:
        """Return a file's checksum in hex, without moving its bytes.

        Args:
            path: the file.
            algorithm: "sha256", "sha512", "sha1", "md5" or "crc32c".
            user: who reads.
            request_timeout: seconds; see the class.
        """
        call = "files.checksum"
        params = [wire.path_param(call, "path", path), *_user(call, user)]
        params.append(("algorithm", check.text(call, "algorithm", algorithm)))
        request = wire.Call(
            "GET", self._path + "/checksum", params=params, request_timeout=_timeout(call, request_timeout)
        )
        return str((self._client._json(request)).get("checksum"))

    def search(
        self,
        path: Path,
        *,
        name: str | None = None,
        content: str | None = None,
        regex: bool = False,
        ignore_case: bool = False,
        depth: int | None = None,
        limit: int | None = None,
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> SearchResult:
        r"""Find files by name, lines by content, or lines in files of some names. Links are not followed.

        Args:
            path: the directory to look in.
            name: a pattern of the file's name: "*.py", "test_?.txt".
            content: text that a line holds.
            regex: content is a regular expression, in RE2's syntax.
            ignore_case: capital and small letters are the same, in content.
            depth: how many levels below path. Default: all.
            limit: how many matches at most. Default 1000.
            user: who looks. What they may not read is left out.
            request_timeout: seconds; see the class.
        """
        call = "files.search"
        params = [wire.path_param(call, "path", path), *_user(call, user)]
        for key, value in (("name", name), ("content", content)):
            if value is not None:
                params.append((key, check.text(call, key, value)))
        for key, flag in (("regex", regex), ("ignore_case", ignore_case)):
            if check.boolean(call, key, flag):
                params.append((key, "true"))
        for key, count in (("depth", depth), ("limit", limit)):
            if (number := check.integer_or_none(call, key, count)) is not None:
                params.append((key, str(number)))
        request = wire.Call(
            "GET", self._path + "/search", params=params, request_timeout=_timeout(call, request_timeout)
        )
        answer = self._client._json(request)
        matches = tuple(FileMatch._from_json(item) for item in json_list(answer, "matches"))
        return SearchResult(matches=matches, truncated=answer.get("truncated") is True)

    def read_archive(
        self,
        path: Path,
        format: str = "tar",
        *,
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> Iterator[bytes]:
        """Iterate over the bytes of an archive of a directory, or of one file. Names are relative to the directory.

        Whatever unpacks it has to treat it as hostile; `download_dir` does.

        Args:
            path: the directory.
            format: "tar", "tar.gz" or "zip".
            user: who reads.
            request_timeout: seconds; see the class.

        Raises:
            APIConnectionError: it broke off: an iteration that ends has given everything.
        """
        call = "files.read_archive"
        params = [wire.path_param(call, "path", path), *_user(call, user)]
        params.append(("format", check.text(call, "format", format)))
        request = wire.Call(
            "GET", self._path + "/archive", params=params, request_timeout=_timeout(call, request_timeout)
        )
        with (
            self._client._stream(request) as response,
            contextlib.closing(self._client._chunks(request, response)) as chunks,
        ):
            for chunk in chunks:
                yield chunk

    def write_archive(
        self,
        path: Path,
        data: FileData,
        format: str = "tar",
        *,
        user: str | None = None,
        owner: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> None:
        """Unpack an archive into a directory of the sandbox, which is made when it is missing.

        Args:
            path: the directory.
            data: the archive: bytes, a pathlib.Path of a local file, a file object or an iterable of bytes.
            format: "tar", "tar.gz" or "zip".
            user: who writes.
            owner: who will own what is made. Default: who writes.
            request_timeout: seconds; see the class.

        Raises:
            ArchiveRefusedError: an entry leads out of the directory, is a device, or is more than an archive may hold.
        """
        call = "files.write_archive"
        params = [wire.path_param(call, "path", path), *_user(call, user)]
        params.append(("format", check.text(call, "format", format)))
        if owner is not None:
            params.append(("owner", check.text(call, "owner", owner)))
        timeout = _timeout(call, request_timeout)
        with bridge.content_of(call, data) as content:
            request = wire.Call(
                "PUT",
                self._path + "/archive",
                params=params,
                content=content,
                headers={"Content-Type": "application/octet-stream"},
                request_timeout=timeout,
            )
            self._client._json(request)

    def download_dir(
        self,
        path: Path,
        target: str | os.PathLike[str],
        *,
        skip_refused: bool = False,
        max_bytes: int = archive.MAX_BYTES,
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> archive.Unpacked:
        """Copy a directory out of the sandbox, with all that is in it.

        What comes out of a sandbox is not trusted: nothing is written outside of target, whatever it holds, and neither
        devices nor links that lead out of it are made.

        Args:
            path: the directory in the sandbox.
            target: the local directory, which is made when it is missing; existing files in it are replaced.
            skip_refused: leave out what is refused, and name it in the result, rather than raise.
            max_bytes: how much may be written. Default 16 GiB.
            user: who reads.
            request_timeout: seconds; see the class.

        Raises:
            ArchiveRefusedError: there is such an entry; what was written until then stays.
            OSError: the local files cannot be written.
        """
        call = "files.download_dir"
        check.boolean(call, "skip_refused", skip_refused)
        limit = check.integer_or_none(call, "max_bytes", max_bytes) or 0
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as spool:
            stream = self.read_archive(path, "tar", user=user, request_timeout=request_timeout)
            for chunk in stream:
                bridge.in_thread(spool.write, chunk)
            spool.seek(0)
            return bridge.in_thread(archive.unpack, spool, target, skip=skip_refused, max_bytes=limit)

    def upload_dir(
        self,
        source: str | os.PathLike[str],
        path: Path,
        *,
        user: str | None = None,
        owner: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> None:
        """Copy a local directory into the sandbox, with all that is in it; existing files are replaced.

        Args:
            source: the local directory.
            path: the directory in the sandbox, which is made when it is missing.
            user: who writes.
            owner: who will own what is made. Default: who writes.
            request_timeout: seconds; see the class.

        Raises:
            ArchiveRefusedError: a link in it leads out of the directory.
            OSError: the local files cannot be read.
        """
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as spool:
            bridge.in_thread(archive.pack, source, spool)
            spool.seek(0)
            self.write_archive(path, spool, user=user, owner=owner, request_timeout=request_timeout)

    @contextlib.contextmanager
    def watch(
        self, path: Path, *, recursive: bool = False, user: str | None = None
    ) -> Generator[Iterator[FileChange], None]:
        """Watch a file or a directory, from the moment at which the block is entered.

            with sandbox.files.watch("/home/user", recursive=True) as changes:
                for change in changes:
                    print(change.type, change.path)

        Args:
            path: the file or directory.
            recursive: watch the directories below it too, also those that are made later.
            user: who looks.

        Raises:
            FileNotFoundError: there is nothing of that name.
            APIConnectionError: the connection broke; what happened since is not known.
        """
        call = "files.watch"
        params = [wire.path_param(call, "path", path), *_user(call, user)]
        if check.boolean(call, "recursive", recursive):
            params.append(("recursive", "true"))
        request = wire.Call("GET", self._path + "/watch", params=params, read_timeout=wire.STREAM_SILENCE)
        request.headers["Accept"] = "text/event-stream"
        watched = wire.path_text(path)
        with self._client._stream(request) as response:
            request_id = response.headers.get("x-request-id")

            def changes() -> Generator[FileChange | None, None, None]:
                decoder = sse.EventDecoder()
                with contextlib.closing(self._client._chunks(request, response)) as chunks:
                    for chunk in chunks:
                        for event in decoder.feed(chunk):
                            if event.name == "ready":
                                yield None
                            elif event.name == "change":
                                yield FileChange._from_json(sse.event_json(event))
                            elif event.name == "overflow":
                                yield FileChange(type="overflow", path=watched)
                            elif event.name == "gone":
                                yield FileChange(type="gone", path=watched)
                                return
                            elif event.name == "error":
                                error = wire.error_body(sse.event_json(event)) or {}
                                raise wire.api_error(error, status=response.status_code, request_id=request_id)
                raise APIConnectionError(
                    "the watch ended before it was left; what happens to the files now is not known",
                    hint="did the server stop? watch again, and look at what is there",
                    request_id=request_id,
                )

            with contextlib.closing(changes()) as stream:
                next(stream)  # ready: nothing that happens from here on is missed
                yield _known(stream)

    def download_url(
        self,
        path: Path,
        *,
        expires_in: int | None = None,
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> str:
        """Return a URL from which a browser can download a file without a key, until it expires.

        Args:
            path: the file.
            expires_in: seconds, 1 to 604800. Default 3600.
            user: who reads.
            request_timeout: seconds; see the class.
        """
        return self._sign("files.download_url", "read", path, expires_in, user, request_timeout)

    def upload_url(
        self,
        path: Path,
        *,
        expires_in: int | None = None,
        user: str | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> str:
        """Return a URL to which a file can be sent with PUT without a key, until it expires.

        Args:
            path: the file.
            expires_in: seconds, 1 to 604800. Default 3600.
            user: who writes.
            request_timeout: seconds; see the class.
        """
        return self._sign("files.upload_url", "write", path, expires_in, user, request_timeout)

    def _sign(
        self, call: str, operation: str, path: Path, expires_in: object, user: object, request_timeout: Seconds
    ) -> str:
        body: dict[str, Any] = dict([wire.path_param(call, "path", path), *_user(call, user)])
        body["operation"] = operation
        if (seconds := check.integer_or_none(call, "expires_in", expires_in)) is not None:
            body["expires_in_seconds"] = seconds
        return str((self._post(call, "/sign", body, request_timeout)).get("url"))

    def _post(self, call: str, path: str, body: dict[str, Any], request_timeout: Seconds) -> Mapping[str, Any]:
        timeout = _timeout(call, request_timeout)
        return self._client._json(wire.Call("POST", self._path + path, json=body, request_timeout=timeout))


def _known(stream: Iterator[FileChange | None]) -> Iterator[FileChange]:
    for change in stream:
        if change is not None:
            yield change


def _user(call: str, user: object) -> list[tuple[str, str]]:
    return [] if user is None else [("user", check.text(call, "user", user))]
