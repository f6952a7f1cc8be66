"""The HTTP client that sandboxes share."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from types import TracebackType

import httpx

from .. import _bridge_async as bridge
from .. import _options as check
from .. import _wire as wire
from .._exceptions import APIConnectionError, UnavailableError
from .._models import Json, SecretStr, TemplateInfo, json_list, json_object


class AsyncClient:
    """A connection to a Ringfence server: its URL, an API key, and a pool of connections.

    `AsyncSandbox.create()` and its like make one and share it between all sandboxes of the same server and key, so that
    a thousand sandboxes use one pool; make one yourself to set what those do not.

    It may be used from every event loop, each of which gets connections of its own, and in a
    process that was forked after it was made.

    Args:
        api_key: `rf_…`. Default: the environment variable RINGFENCE_API_KEY.
        base_url: Default: the environment variable RINGFENCE_URL, else http://127.0.0.1:7070. A server on this machine
            is reached directly, whatever proxy the environment names.
        request_timeout: seconds to wait for a connection, for an answer, and for each further part of it; not for a
            command, which has a deadline of its own. Default 60; None: no limit.
        max_connections: how many connections may be open at once; calls beyond it wait. Default 1000.
        transport: an httpx transport to use instead of the network, as tests do.

    Raises:
        AuthenticationError: there is no API key.
        ValueError: base_url is not a URL.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        request_timeout: float | None = wire.DEFAULT_REQUEST_TIMEOUT,
        max_connections: int = 1000,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = wire.resolve_url(base_url)
        self._key = wire.resolve_key(api_key)
        self._timeout = wire.request_timeout("AsyncClient", request_timeout)
        size = check.integer_or_none("AsyncClient", "max_connections", max_connections)
        if size is None or size < 1:
            raise ValueError("AsyncClient: max_connections must be 1 or more")
        self._max_connections = size
        self._transport = transport
        self._pools = bridge.Pools(self._make_pool)
        self._closed = False

    def __repr__(self) -> str:
        return f"AsyncClient(base_url={self._url!r})"

    @property
    def base_url(self) -> str:
        """The server's URL, without a slash at its end."""
        return self._url

    @property
    def api_key(self) -> SecretStr:
        """The API key; its repr does not show it."""
        return self._key

    async def health(self, *, request_timeout: float | check.Unset | None = check.UNSET) -> str:
        """Return the server's version; it answers without looking at the API key.

        Raises:
            APIConnectionError: no server answers at the URL.
        """
        call = wire.Call("GET", "/health", request_timeout=_timeout("AsyncClient.health", request_timeout))
        version = (await self._json(call)).get("version")
        return version if isinstance(version, str) else ""

    async def templates(self, *, request_timeout: float | check.Unset | None = check.UNSET) -> list[TemplateInfo]:
        """Return the templates that sandboxes can be made from."""
        call = wire.Call("GET", "/v1/templates", request_timeout=_timeout("AsyncClient.templates", request_timeout))
        answer = await self._json(call)
        return [TemplateInfo._from_json(item) for item in json_list(answer, "templates")]

    async def template(self, name: str, *, request_timeout: float | check.Unset | None = check.UNSET) -> TemplateInfo:
        """Return one template, by its name or an alias.

        Raises:
            TemplateNotFoundError: there is none of that name; the hint lists near ones.
        """
        name = check.text("AsyncClient.template", "name", name)
        call = wire.Call(
            "GET", wire.template_path(name), request_timeout=_timeout("AsyncClient.template", request_timeout)
        )
        return TemplateInfo._from_json(await self._json(call))

    async def aclose(self) -> None:
        """Close the connections. Sandboxes go on; calls after this raise RuntimeError."""
        self._closed = True
        await self._pools.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _make_pool(self) -> httpx.AsyncClient:
        transport = self._transport or bridge.transport(
            wire.limits(self._max_connections), wire.proxy_of(self._url), wire.socket_options(), self._url
        )
        return httpx.AsyncClient(
            transport=transport,
            follow_redirects=False,
            # An encoded answer would have other byte ranges, and a stream would arrive late.
            headers={"User-Agent": wire.USER_AGENT, "Accept-Encoding": "identity"},
        )

    async def _json(self, call: wire.Call) -> Json:
        """Make a call and return its JSON object."""
        response, body = await self._request(call)
        return json_object(wire.json_answer(response, body, self._url), "answer")

    async def _pages(
        self, path: str, params: list[tuple[str, str]], name: str, wait: float | check.Unset | None
    ) -> AsyncGenerator[object, None]:
        """Yield what a list holds under a name, page after page."""
        cursor: str | None = None
        while True:
            page = params if cursor is None else [*params, ("cursor", cursor)]
            answer = await self._json(wire.Call("GET", path, params=page, request_timeout=wait))
            for item in json_list(answer, name):
                yield item
            cursor = answer.get("next_cursor")
            if not cursor:
                return

    async def _request(self, call: wire.Call) -> tuple[httpx.Response, bytes]:
        """Make a call and return the answer with its body; an answer of 300 or more is raised.

        A call that can be repeated is made up to two times more when the connection fails or the server is unavailable.
        """
        attempt = 0
        while True:
            try:
                response = await self._send(call)
                try:
                    return response, await response.aread()
                except httpx.TransportError as exc:
                    raise wire.transport_error(exc, call, self._url) from exc
                finally:
                    await response.aclose()
            except (APIConnectionError, UnavailableError) as exc:
                attempt += 1
                if not wire.may_repeat(call, exc, attempt):
                    raise
                await bridge.sleep(wire.retry_wait(attempt, exc.retry_after))

    @contextlib.asynccontextmanager
    async def _stream(self, call: wire.Call) -> AsyncGenerator[httpx.Response, None]:
        """Make a call and give the answer before its body was read; an answer of 300 or more is raised."""
        attempt = 0
        while True:
            try:
                response = await self._send(call)
                break
            except (APIConnectionError, UnavailableError) as exc:
                attempt += 1
                if not wire.may_repeat(call, exc, attempt):
                    raise
                await bridge.sleep(wire.retry_wait(attempt, exc.retry_after))
        try:
            yield response
        finally:
            await response.aclose()

    async def _chunks(self, call: wire.Call, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """Yield an answer's body as it arrives."""
        if response.is_stream_consumed:
            yield response.content  # a transport of a test may have it at once
            return
        try:
            async for chunk in response.aiter_raw():
                yield chunk
        except httpx.TransportError as exc:
            raise wire.transport_error(exc, call, self._url) from exc

    async def _send(self, call: wire.Call) -> httpx.Response:
        """Send a request and return the answer with its body still to be read, or raise what it refuses."""
        if self._closed:
            raise RuntimeError("this AsyncClient was closed")
        pool = await self._pools.current()
        content = call.body()
        request = pool.build_request(
            call.method,
            self._url + call.path,
            params=tuple(call.params) or None,
            content=content,
            headers={"Authorization": f"Bearer {self._key}", **call.headers},
            timeout=call.timeout(self._timeout),
        )
        try:
            response = await pool.send(request, stream=True)
        except httpx.TransportError as exc:
            raise wire.transport_error(exc, call, self._url) from exc
        if response.status_code < 300:
            return response
        try:
            body = await response.aread()
        except httpx.TransportError as exc:
            raise wire.transport_error(exc, call, self._url) from exc
        finally:
            await response.aclose()
        error = wire.error_of(response, body, self._url)
        raise error from None


def _timeout(call: str, value: float | check.Unset | None) -> float | check.Unset | None:
    return value if isinstance(value, check.Unset) else wire.request_timeout(call, value)


_shared: dict[tuple[str, str], AsyncClient] = {}


async def _close_shared() -> None:
    for client in list(_shared.values()):
        await client.aclose()


bridge.at_exit(_close_shared)


def client_for(call: str, client: AsyncClient | None, api_key: str | None, base_url: str | None) -> AsyncClient:
    """Return the client that was given, or the one that all sandboxes of a server and key share."""
    if client is not None:
        if not isinstance(client, AsyncClient):
            raise TypeError(f"{call}: client must be an AsyncClient, got {type(client).__name__}")
        if api_key is not None or base_url is not None:
            raise TypeError(f"{call}: client has a key and a URL already; give either it or api_key and base_url")
        return client
    url, key = wire.resolve_url(base_url), wire.resolve_key(api_key)
    if (found := _shared.get((url, str(key)))) is not None and found._closed:
        _shared.pop((url, str(key)), None)
    # Atomic without a lock, which a fork could leave locked for ever; a client makes no connection until it is used.
    return _shared.setdefault((url, str(key)), AsyncClient(api_key=key, base_url=url))
