# Generated from ../_async/_lifecycle.py by scripts/generate_sync.py; change that file.
"""Pausing, copying and keeping sandboxes, and what happens to them by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import _options as check
from .. import _wire as wire
from .._dual import Dual
from .._lifecycle_models import OnTimeout, SnapshotInfo, deadlines, snapshot_id
from .._models import SandboxInfo, SecretStr, json_list
from ._client import Client, _timeout, client_for

if TYPE_CHECKING:
    from typing_extensions import Self

Seconds: TypeAlias = float | check.Unset | None


class Lifecycle:
    """The part of `Sandbox` that is about its life."""

    _client: Client
    _id: str
    _info: SandboxInfo | None
    _token: SecretStr | None

    @classmethod
    def _of(cls, client: Client, id: str, info: SandboxInfo | None, token: str | None) -> Self:
        raise NotImplementedError

    def pause(self, *, request_timeout: float | None = wire.LIFECYCLE_TIMEOUT) -> SandboxInfo:
        """Save its memory and written disk and take it off the host. One that is paused is no error.

        What runs in it goes on after `resume()`. Whoever follows a command gets SandboxPausedError, and can go on
        reading where that was: iterate over the same process again, or `commands.connect()` to it. With `auto_resume`
        the next command, file call or port request wakes the sandbox by itself.

        Args:
            request_timeout: seconds to wait for the server. Default 300; None: no limit.

        Raises:
            ResourceExhaustedError: there is no room for what is saved. The sandbox runs on.
            SandboxEndedError: it has ended.
        """
        return self._operate("pause", {}, request_timeout, repeatable=True)

    def resume(self, *, request_timeout: float | None = wire.LIFECYCLE_TIMEOUT) -> SandboxInfo:
        """Bring a paused sandbox back as it was, with its id and token. One that runs is no error.

        Args:
            request_timeout: seconds to wait for the server. Default 300; None: no limit.

        Raises:
            ResourceExhaustedError: the host has no room; it is still paused.
            FailedPreconditionError: what was saved cannot be used on this host; the hint says what to do.
            SandboxEndedError: it has ended.
        """
        return self._operate("resume", {}, request_timeout, repeatable=True)

    def restore(
        self, snapshot: str | SnapshotInfo, *, request_timeout: float | None = wire.LIFECYCLE_TIMEOUT
    ) -> SandboxInfo:
        """Make it what it was in a snapshot; what it was until now is lost.

        It keeps its id, token, name and environment. The snapshot has to be of the same template and size.

        Args:
            snapshot: a snapshot's id, or what `snapshot()` returned.
            request_timeout: seconds to wait for the server. Default 300; None: no limit.

        Raises:
            NotFoundError: there is no such snapshot.
            FailedPreconditionError: the snapshot cannot be used for this sandbox or on this host.
        """
        body = {"snapshot": snapshot_id("sandbox.restore", snapshot)}
        return self._operate("restore", body, request_timeout, repeatable=False)

    def _operate(
        self, what: str, body: dict[str, Any], request_timeout: float | None, *, repeatable: bool
    ) -> SandboxInfo:
        wait = _timeout("sandbox." + what, request_timeout)
        call = wire.Call("POST", wire.sandbox_path(self._id, what), json=body, request_timeout=wait)
        call.repeatable = repeatable
        self._info = SandboxInfo._from_json(self._client._json(call))
        return self._info

    def fork(self, count: int = 1, *, request_timeout: float | None = wire.LIFECYCLE_TIMEOUT) -> list[Self]:
        """Copy it, with what runs in it; it goes on itself.

        The copies have its memory, files, environment, metadata and deadlines, and ids and tokens of their own. All or
        none are made. They do not end with this one: end each, or use it in an `with` block.

        Args:
            count: how many copies, 1 to 100.
            request_timeout: seconds to wait for the server. Default 300; None: no limit.

        Raises:
            ResourceExhaustedError: the host has no room for all of them.
        """
        call = "sandbox.fork"
        body = {"count": check.integer_or_none(call, "count", count)}
        path = wire.sandbox_path(self._id, "fork")
        answer = self._client._json(wire.Call("POST", path, json=body, request_timeout=_timeout(call, request_timeout)))
        return [self._made(item) for item in json_list(answer, "sandboxes")]

    def _made(self, item: object) -> Self:
        info, token = wire.made_sandbox(item)
        return self._of(self._client, info.id, info, token)

    def snapshot(
        self, name: str | None = None, *, request_timeout: float | None = wire.LIFECYCLE_TIMEOUT
    ) -> SnapshotInfo:
        """Keep its memory and written disk of this instant. It goes on; a paused one is not woken.

        The snapshot outlives the sandbox. Any number of sandboxes can start from it, `create(snapshot=…)`, and this one
        can go back to it, `restore()`. What starts from it gets none of this sandbox's `env`, but all that is in the
        memory and the files of its programs.

        Args:
            name: what it is for, at most 128 bytes; it need not be unique.
            request_timeout: seconds to wait for the server. Default 300; None: no limit.

        Raises:
            ResourceExhaustedError: there is no room for it. The sandbox runs on.
        """
        call = "sandbox.snapshot"
        body = {} if name is None else {"name": check.text(call, "name", name)}
        path = wire.sandbox_path(self._id, "snapshots")
        wait = _timeout(call, request_timeout)
        return SnapshotInfo._from_json(self._client._json(wire.Call("POST", path, json=body, request_timeout=wait)))

    create_snapshot = snapshot

    @classmethod
    def _list_snapshots_of(
        cls,
        sandbox_id: str | None = None,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        request_timeout: Seconds = check.UNSET,
        client: Client | None = None,
    ) -> Iterator[SnapshotInfo]:
        """Iterate over snapshots, newest first. Pages are asked for as the iteration goes on.

        Called on the class, `Sandbox.list_snapshots()`, for all of them or those of one sandbox, which may have
        ended; or on a sandbox, for its own.
        """
        call = "Sandbox.list_snapshots"
        id = None if sandbox_id is None else check.sandbox_id(call, sandbox_id)
        wait = _timeout(call, request_timeout)
        return _snapshots(client_for(call, client, api_key, base_url), id, wait)

    def _list_snapshots(self, *, request_timeout: Seconds = check.UNSET) -> Iterator[SnapshotInfo]:
        """Iterate over this sandbox's snapshots, newest first."""
        return _snapshots(self._client, self._id, _timeout("sandbox.list_snapshots", request_timeout))

    list_snapshots = Dual(_list_snapshots_of, _list_snapshots)

    @classmethod
    def get_snapshot(
        cls,
        snapshot: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        request_timeout: Seconds = check.UNSET,
        client: Client | None = None,
    ) -> SnapshotInfo:
        """Return what the server knows of a snapshot.

        Raises:
            NotFoundError: there is no such snapshot.
        """
        call = "Sandbox.get_snapshot"
        path = wire.snapshot_path(snapshot_id(call, snapshot))
        wait = _timeout(call, request_timeout)
        client = client_for(call, client, api_key, base_url)
        return SnapshotInfo._from_json(client._json(wire.Call("GET", path, request_timeout=wait)))

    @classmethod
    def delete_snapshot(
        cls,
        snapshot: str | SnapshotInfo,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        request_timeout: Seconds = check.UNSET,
        client: Client | None = None,
    ) -> None:
        """Delete a snapshot. Sandboxes that started from it go on.

        Args:
            snapshot: its id, or what `snapshot()` returned.
            api_key: Default: the environment variable RINGFENCE_API_KEY.
            base_url: Default: the environment variable RINGFENCE_URL, else http://127.0.0.1:7070.
            request_timeout: seconds to wait for the server. Default 60; None: no limit.
            client: a client to use, instead of the one that all sandboxes of a server and key share.

        Raises:
            NotFoundError: there is no such snapshot.
        """
        call = "Sandbox.delete_snapshot"
        path = wire.snapshot_path(snapshot_id(call, snapshot))
        wait = _timeout(call, request_timeout)
        client = client_for(call, client, api_key, base_url)
        # Not repeated by itself: a second try would not find what the first one deleted.
        client._request(wire.Call("DELETE", path, request_timeout=wait, repeatable=False))

    def update(
        self,
        *,
        timeout: Seconds = check.UNSET,
        timeout_seconds: Seconds = check.UNSET,
        on_timeout: OnTimeout | None = None,
        idle_timeout_seconds: Seconds = check.UNSET,
        auto_delete_seconds: Seconds = check.UNSET,
        auto_resume: bool | None = None,
        metadata: Mapping[str, str] | None = None,
        request_timeout: Seconds = check.UNSET,
    ) -> SandboxInfo:
        """Change its deadlines and its metadata, in whatever state it is. What is left out stays.

        Args:
            timeout: seconds that it runs from now, and from each resume; then on_timeout. None: no limit.
            timeout_seconds: another name of timeout.
            on_timeout: "kill" or "pause": what happens after timeout and idle_timeout_seconds.
            idle_timeout_seconds: the same after so long without a command, file call or port traffic. None: never.
            auto_delete_seconds: it is deleted so long after it was paused; 0: at once. None: never.
            auto_resume: whether a call on the paused sandbox wakes it; else it raises SandboxPausedError.
            metadata: keys and values of your own, in place of all that there are.
            request_timeout: seconds to wait for the server. Default 60; None: no limit.

        Returns:
            The sandbox as it is now: `expires_at`, `idle_at` and `delete_at` are the instants that these lead to.

        Raises:
            InvalidArgumentError: a value is out of its range; `field` names it.
            SandboxEndedError: it has ended.
        """
        call = "sandbox.update"
        life = check.one_of(call, "timeout", timeout, "timeout_seconds", timeout_seconds)
        body = deadlines(call, life, on_timeout, idle_timeout_seconds, auto_delete_seconds, auto_resume)
        if metadata is not None:
            body["metadata"] = check.text_mapping(call, "metadata", metadata)
        wait = _timeout(call, request_timeout)
        request = wire.Call("PATCH", wire.sandbox_path(self._id), json=body, request_timeout=wait, repeatable=True)
        self._info = SandboxInfo._from_json(self._client._json(request))
        return self._info

    def set_timeout(self, timeout: float | None) -> SandboxInfo:
        """Set how long it runs from now, and from each resume; the same as `update(timeout=…)`.

        Args:
            timeout: seconds, more or less than what was left; None: no limit.
        """
        return self.update(timeout=timeout)


def _snapshots(client: Client, sandbox_id: str | None, wait: Seconds) -> Generator[SnapshotInfo, None, None]:
    params = [] if sandbox_id is None else [("sandbox_id", sandbox_id)]
    with contextlib.closing(client._pages("/v1/snapshots", params, "snapshots", wait)) as items:
        for item in items:
            yield SnapshotInfo._from_json(item)
