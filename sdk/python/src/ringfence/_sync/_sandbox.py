# Generated from ../_async/_sandbox.py by scripts/generate_sync.py; change that file.
"""Sandboxes: creating, finding and ending them."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import _bridge_sync as bridge
from .. import _options as check
from .. import _wire as wire
from .._dual import Dual
from .._exceptions import NotFoundError, SandboxEndedError
from .._lifecycle_models import OnTimeout, SnapshotInfo, deadlines, snapshot_id
from .._models import NetworkConfig, SandboxInfo, SecretStr, json_list
from .._network_models import NetworkFlow, NetworkLog
from .._port_models import Event, Metrics
from ._client import Client, _timeout, client_for
from ._commands import Commands
from ._files import Files
from ._lifecycle import Lifecycle, Seconds
from ._ports import Ports, events, metrics, metrics_history
from ._terminals import Terminals

if TYPE_CHECKING:
    from typing_extensions import Self

_Params: TypeAlias = list[tuple[str, str]]


class Sandbox(Lifecycle):
    """One isolated machine that runs commands and holds files.

    Made by `Sandbox.create()` or `Sandbox.connect(id)`. It is ended by `sandbox.kill()`,
    by leaving an `with` block, by its life limit, or by the server; it does not end when this object is dropped
    or the program ends.

        with Sandbox.create(template="code-interpreter") as sandbox:
            sandbox.files.write("/home/user/cell.py", "print(6 * 7)")
            result = sandbox.commands.run("python cell.py", timeout=60)
            print(result.exit_code, result.stdout)

    Attributes:
        commands: runs commands in it.
        files: reads and writes its files.
        pty: opens terminals in it.
        ports: reaches what listens in it.
    """

    commands: Commands
    files: Files
    pty: Terminals
    ports: Ports

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise TypeError("use Sandbox.create() to make a sandbox, or Sandbox.connect(id) for one that runs")

    @classmethod
    def _of(cls, client: Client, id: str, info: SandboxInfo | None, token: str | None) -> Self:
        self = cls.__new__(cls)
        self._client = client
        self._id = id
        self._info = info
        self._token = None if token is None else SecretStr(token)
        self.commands = Commands(client, id)
        self.files = Files(client, id)
        self.pty = Terminals(client, id)
        self.ports = Ports(client, id)
        return self

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"<Sandbox id={self._id!r}{name}>"

    @property
    def id(self) -> str:
        """Its id, 20 of [a-z0-9]."""
        return self._id

    @property
    def sandbox_id(self) -> str:
        """The same as `id`."""
        return self._id

    @property
    def name(self) -> str:
        """What its creator called it, or ""."""
        return self._info.name if self._info else ""

    @property
    def template(self) -> str:
        """The canonical name of its template, or "" where only an access token is known."""
        return self._info.template if self._info else ""

    @property
    def metadata(self) -> dict[str, str]:
        """Its creator's own keys and values."""
        return dict(self._info.metadata) if self._info else {}

    @property
    def access_token(self) -> SecretStr | None:
        """What opens the commands and files of this sandbox and nothing else, 64 hex digits.

        Only `create` is told it; None after `connect` by id. Its repr does not show it.
        """
        return self._token

    @property
    def client(self) -> Client:
        """The client that it uses; other sandboxes may use it too."""
        return self._client

    @classmethod
    def create(
        cls,
        template: str | None = None,
        *,
        from_template: str | None = None,
        name: str | None = None,
        timeout: float | None = None,
        timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        user: str | None = None,
        vcpu: int | None = None,
        memory_mib: int | None = None,
        disk_mib: int | None = None,
        network: NetworkConfig | None = None,
        snapshot: str | SnapshotInfo | None = None,
        from_snapshot: str | SnapshotInfo | None = None,
        on_timeout: OnTimeout | None = None,
        idle_timeout_seconds: float | None = None,
        auto_delete_seconds: float | None = None,
        auto_resume: bool | None = None,
        idempotency_key: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        request_timeout: Seconds = check.UNSET,
        client: Client | None = None,
    ) -> Self:
        """Make a sandbox and return it when it runs.

        Args:
            template: what to make it from. Default: "code-interpreter".
            from_template: another name of template.
            name: a name for people to read, at most 128 bytes; it need not be unique.
            timeout: seconds that it runs, from its creation and from each resume, above 0; then on_timeout.
                Default None: no limit.
            timeout_seconds: another name of timeout.
            env: variables for every command in it.
            envs: another name of env.
            metadata: keys and values of your own, to find it by.
            user: who runs commands unless a call says otherwise. Default: the template's. On files root acts.
            vcpu: cores, 1 or more. Default: the template's size, 2 unless it says otherwise.
            memory_mib: MiB of memory, 128 or more. Default: the template's, 2048 unless it says otherwise.
            disk_mib: MiB that can be written, 16 or more. Default: the template's, 8192 unless it says otherwise.
            network: what it may reach. Default: the public internet; see NetworkConfig.
            snapshot: the id of a snapshot to start from, or what `sandbox.snapshot()` returned, in place of a template.
                The size is the snapshot's.
            from_snapshot: another name of snapshot.
            on_timeout: "kill" (the default) or "pause": what happens after timeout and idle_timeout_seconds.
            idle_timeout_seconds: the same after so long without a command, file call or port traffic; what is under way
                counts. Default None: never.
            auto_delete_seconds: it is deleted so long after it was paused; 0: at once. Default None: never.
            auto_resume: whether a call on the paused sandbox wakes it. Default: it does; with False the call raises
                SandboxPausedError.
            idempotency_key: a name for this call, at most 255 printable characters of ASCII. Another create of the same
                name and options makes nothing and returns the sandbox of the first one; so the call is repeated by
                itself when the connection breaks.
            api_key: Default: the environment variable RINGFENCE_API_KEY.
            base_url: Default: the environment variable RINGFENCE_URL, else http://127.0.0.1:7070.
            request_timeout: seconds to wait for the server. Default 60; None: no limit.
            client: a client to use, instead of the one that all sandboxes of a server and key share.

        Raises:
            AuthenticationError: there is no API key, or the server does not know it.
            TemplateNotFoundError: there is no such template; the hint lists near names.
            NotFoundError: there is no such snapshot.
            FailedPreconditionError: the snapshot cannot be used on this host, or idempotency_key named other options.
            InvalidArgumentError: an option is out of its range; `field` names it.
            NotYetSupportedError: an option or policy is known, but not there yet.
            ResourceExhaustedError: the host has no room; `retry_after` says when to try again.
            APIConnectionError: the server does not answer. Without idempotency_key the call is not repeated by
                itself: it may have been heard.
            TypeError, ValueError: an option is wrong; nothing was sent.
        """
        call = "Sandbox.create"
        body: dict[str, Any] = {}
        source = check.one_of_optional(call, "template", template, "from_template", from_template)
        life = check.one_of_optional(call, "timeout", timeout, "timeout_seconds", timeout_seconds)
        variables = check.one_of_optional(call, "env", env, "envs", envs)
        for key, value in (("template", source), ("name", name), ("user", user)):
            if value is not None:
                body[key] = check.text(call, key, value)
        start = check.one_of_optional(call, "snapshot", snapshot, "from_snapshot", from_snapshot)
        if start is not None:
            body["snapshot"] = snapshot_id(call, start)
        limits = deadlines(call, life, on_timeout, idle_timeout_seconds, auto_delete_seconds, auto_resume)
        body.update((key, value) for key, value in limits.items() if value is not None)
        for key, size in (("vcpu", vcpu), ("memory_mib", memory_mib), ("disk_mib", disk_mib)):
            if size is not None:
                body[key] = check.integer_or_none(call, key, size)
        for key, mapping in (("env", variables), ("metadata", metadata)):
            if mapping is not None:
                body[key] = check.text_mapping(call, key, mapping)
        if network is not None:
            body["network"] = _policy(call, network)
        wait = _timeout(call, request_timeout)
        request = wire.Call("POST", "/v1/sandboxes", json=body, request_timeout=wait)
        if idempotency_key is not None:
            request.headers["Idempotency-Key"] = check.header(call, "idempotency_key", idempotency_key)
            request.repeatable = True
        client = client_for(call, client, api_key, base_url)
        info, token = wire.made_sandbox(client._json(request))
        return cls._of(client, info.id, info, token)

    @classmethod
    def connect(
        cls,
        sandbox_id: str,
        *,
        access_token: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        request_timeout: Seconds = check.UNSET,
        client: Client | None = None,
    ) -> Self:
        """Return a sandbox that exists already. A paused one is not woken by this.

        Args:
            sandbox_id: its id.
            access_token: its own token, in place of an API key. Commands and files are then all that it opens, and
                whether the sandbox runs shows with the first of them.
            api_key: Default: the environment variable RINGFENCE_API_KEY.
            base_url: Default: the environment variable RINGFENCE_URL, else http://127.0.0.1:7070.
            request_timeout: seconds to wait for the server. Default 60; None: no limit.
            client: a client to use, instead of the one that all sandboxes of a server and key share.

        Raises:
            NotFoundError: there is no such sandbox.
            SandboxEndedError: it has ended.
        """
        call = "Sandbox.connect"
        id = check.sandbox_id(call, sandbox_id)
        wait = _timeout(call, request_timeout)
        if access_token is not None:
            if api_key is not None or client is not None:
                raise TypeError(f"{call}: access_token takes the place of api_key and client; give one of them")
            token = check.text(call, "access_token", access_token)
            return cls._of(client_for(call, None, token, base_url), id, None, token)
        client = client_for(call, client, api_key, base_url)
        info = _get(client, id, wait)
        if info.ended:
            raise SandboxEndedError(
                f"sandbox {id} has ended: {info.detail or info.reason or info.state}",
                hint="make another with Sandbox.create()",
            )
        return cls._of(client, id, info, None)

    @classmethod
    def list(
        cls,
        *,
        metadata: Mapping[str, str] | None = None,
        state: str | Sequence[str] | None = None,
        page_size: int | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        request_timeout: Seconds = check.UNSET,
        client: Client | None = None,
    ) -> Iterator[SandboxInfo]:
        """Iterate over the sandboxes, newest first. Pages are asked for as the iteration goes on.

        Args:
            metadata: only those that have all of these keys with these values.
            state: only those in this state, or in one of these. Default: all that have not ended.
            page_size: how many to ask for at a time, 1 to 1000. Default 100.
            api_key: Default: the environment variable RINGFENCE_API_KEY.
            base_url: Default: the environment variable RINGFENCE_URL, else http://127.0.0.1:7070.
            request_timeout: seconds to wait for the server, for each page. Default 60; None: no limit.
            client: a client to use, instead of the one that all sandboxes of a server and key share.
        """
        call = "Sandbox.list"
        params: _Params = []
        for key, value in (check.text_mapping(call, "metadata", metadata) or {}).items():
            params.append((f"metadata.{key}", value))
        if state is not None:
            states = (
                [check.text(call, "state", state)] if isinstance(state, str) else check.text_list(call, "state", state)
            )
            params.append(("state", ",".join(states)))
        size = check.integer_or_none(call, "page_size", page_size)
        if size is not None:
            params.append(("limit", str(size)))
        wait = _timeout(call, request_timeout)
        return cls._pages(client_for(call, client, api_key, base_url), params, wait)

    @staticmethod
    def _pages(client: Client, params: _Params, wait: Seconds) -> Generator[SandboxInfo, None, None]:
        with contextlib.closing(client._pages("/v1/sandboxes", params, "sandboxes", wait)) as items:
            for item in items:
                yield SandboxInfo._from_json(item)

    @classmethod
    def _get_info_of(
        cls,
        sandbox_id: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        request_timeout: Seconds = check.UNSET,
        client: Client | None = None,
    ) -> SandboxInfo:
        """Return what the server knows of a sandbox; of an ended one too, for 7 days.

        Called on the class with an id, `Sandbox.get_info(id, api_key=…, base_url=…)`, or on a sandbox without one.

        Raises:
            NotFoundError: there is no such sandbox.
        """
        call = "Sandbox.get_info"
        id = check.sandbox_id(call, sandbox_id)
        wait = _timeout(call, request_timeout)
        return _get(client_for(call, client, api_key, base_url), id, wait)

    def _get_info(self, *, request_timeout: Seconds = check.UNSET) -> SandboxInfo:
        """Return what the server knows of this sandbox; also after it ended, for 7 days."""
        self._info = _get(self._client, self._id, _timeout("sandbox.get_info", request_timeout))
        return self._info

    get_info = Dual(_get_info_of, _get_info)

    def get_access_token(self) -> SecretStr:
        """Ask for a token that opens the commands and files of this sandbox and nothing else. It needs an API key.

        It is the same each time, and ends with the sandbox. It is another one than `access_token`, and worth the same.
        """
        call = wire.Call("POST", wire.sandbox_path(self._id, "token"), json={}, repeatable=True)
        return wire.access_token(self._client._json(call))

    def metrics(self) -> Metrics:
        """Return what the sandbox uses now: processor, memory, disk, network."""
        return metrics(self._client, wire.sandbox_path(self._id))

    def metrics_history(
        self, since: datetime.datetime | None = None, until: datetime.datetime | None = None
    ) -> Sequence[Metrics]:
        """Return what the sandbox used, a sample every 5 seconds, of the last 24 hours, as far as the server has run.

        Args:
            since: an instant, with a time zone. Default: as long ago as there is.
            until: the same. Default: now.
        """
        return metrics_history(self._client, wire.sandbox_path(self._id), since, until)

    def update_network(self, network: NetworkConfig) -> None:
        """Put another network policy in place of the whole present one.

        It holds for new connections at once, and open ones that it denies are cut. It needs an API key.

        Raises:
            InvalidArgumentError: a bad entry; its field names it.
        """
        body = _policy("sandbox.update_network", network)
        path = wire.sandbox_path(self._id, "network")
        self._client._json(wire.Call("PUT", path, json=body, repeatable=True))

    def get_network(self) -> NetworkConfig:
        """Return the network policy that is in force."""
        answer = self._client._json(wire.Call("GET", wire.sandbox_path(self._id, "network")))
        return NetworkConfig._from_json(answer)

    def get_network_log(
        self,
        verdict: str | None = None,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        wait: int | None = None,
    ) -> NetworkLog:
        """Return rows of the network log: where the sandbox connected, and where it may not.

        The oldest change comes first: a connection when it begins and again, under the same id, when it has ended.
        The newest 1000 rows are kept, until the server restarts.

        Args:
            verdict: only "allowed", "denied" or "failed". Default: all.
            cursor: next_cursor of the page before. Default: from the oldest row that is kept.
            limit: how many rows, 1 to 1000. Default 100.
            wait: how many seconds to wait for the first row, at most 60. Default: not at all.
        """
        call = "sandbox.get_network_log"
        params: _Params = []
        for name, value in (
            ("verdict", check.text_or_none(call, "verdict", verdict)),
            ("cursor", check.text_or_none(call, "cursor", cursor)),
            ("limit", check.integer_or_none(call, "limit", limit)),
            ("wait_seconds", check.integer_or_none(call, "wait", wait)),
        ):
            if value is not None:
                params.append((name, str(value)))
        answer = self._client._json(
            wire.Call(
                "GET", wire.sandbox_path(self._id, "network/log"), params=params, request_timeout=60.0 + (wait or 0)
            )
        )
        flows = tuple(NetworkFlow._from_json(item) for item in json_list(answer, "flows"))
        return NetworkLog(flows, str(answer.get("next_cursor", "")))

    def network_flows(
        self, verdict: str | None = None, *, cursor: str | None = None, follow: bool = False
    ) -> Generator[NetworkFlow, None, None]:
        """Iterate over the rows of the network log. Pages are asked for as the iteration goes on.

        The oldest change comes first: a connection when it begins and again, under the same id, when it has ended.

        Args:
            verdict: only "allowed", "denied" or "failed". Default: all.
            cursor: next_cursor of a page, to go on behind it. Default: from the oldest row that is kept.
            follow: wait for more at the end, for as long as the iteration is kept up. Default: stop there.
        """
        waiting = 30 if check.boolean("sandbox.network_flows", "follow", follow) else None
        while True:
            log = self.get_network_log(verdict, cursor=cursor, limit=1000, wait=waiting)
            for flow in log.flows:
                yield flow
            if not log.flows and not follow:
                return
            cursor = log.next_cursor

    def events(self, after: str | None = None) -> Iterator[Event]:
        """Iterate over what happens to the sandbox, for as long as the iteration is kept up.

        A connection that breaks is made again; what could not be kept meanwhile shows as an event "gap".

        Args:
            after: the id of an event, to go on behind it. Default: with all that the server still has.
        """
        return events(self._client, wire.sandbox_path(self._id, "events"), after)

    @classmethod
    def _kill_of(
        cls,
        sandbox_id: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        request_timeout: Seconds = check.UNSET,
        client: Client | None = None,
    ) -> None:
        """End a sandbox and remove all that it had. One that has ended already is no error.

        Called on the class with an id, `Sandbox.kill(id, api_key=…, base_url=…)`, or on a sandbox without one.

        Raises:
            NotFoundError: there is no such sandbox.
        """
        call = "Sandbox.kill"
        id = check.sandbox_id(call, sandbox_id)
        wait = _timeout(call, request_timeout)
        _delete(client_for(call, client, api_key, base_url), id, wait)

    def _kill(self, *, request_timeout: Seconds = check.UNSET) -> None:
        """End this sandbox and remove all that it had. One that has ended already is no error."""
        _delete(self._client, self._id, _timeout("sandbox.kill", request_timeout))

    kill = Dual(_kill_of, _kill)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the sandbox. If the block raised, that is what is raised, whatever becomes of the sandbox."""
        try:
            bridge.finish(self._kill)
        except NotFoundError:
            pass  # gone is what was wanted
        except Exception as failure:
            if exc is None:
                raise
            wire.add_note(exc, f"and the sandbox {self._id} could not be killed: {failure}")


def _policy(call: str, network: NetworkConfig) -> dict[str, Any]:
    if not isinstance(network, NetworkConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{call}: network must be a NetworkConfig, got {type(network).__name__}")
    policy: dict[str, Any] = {"allow_out": [*network.allow_out], "deny_out": [*network.deny_out]}
    if network.allow_internet_access is not None:
        policy["allow_internet_access"] = network.allow_internet_access
    if network.closed_ports:
        policy["closed_ports"] = True
    return policy


def _get(client: Client, id: str, wait: Seconds) -> SandboxInfo:
    return SandboxInfo._from_json(client._json(wire.Call("GET", wire.sandbox_path(id), request_timeout=wait)))


def _delete(client: Client, id: str, wait: Seconds) -> None:
    client._request(wire.Call("DELETE", wire.sandbox_path(id), request_timeout=wait))
