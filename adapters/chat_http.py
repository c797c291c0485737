"""HTTP to a chat model's server: one thread with an event loop, in which all calls of a process are under way.

What a transport fails with becomes `ModelAway` or, where only a person can help, `Refused`. What the
server says is the caller's to judge (`chat_replies`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import ssl
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from pydantic import SecretStr

from ..memory.errors import Misconfigured, ModelAway, RaygamError, Refused

_MAX_REPLY_BYTES = 16 * 1024 * 1024
_CONNECT_SECONDS = 10.0
_IDLE_SECONDS = 4.0  # uvicorn, and so vLLM, closes idle connections after 5 s; a call must not meet that moment
_BESIDE = 16
"""Tokens are counted while all completions are under way: that must not wait for one of them to end."""
_CLOSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server said.

    Attributes:
        status: of HTTP.
        headers: names in lower case.
        body: whole.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class ChatHttp:
    """Connections to one endpoint. Thread-safe; the thread starts with the first call.

    Args:
        url: where the API is ("http://host:8000/v1"), without user or password.
        key: sent as a bearer's token; never shown.
        calls: completions under way at most, by their callers' word; each has a connection, and some are left for
            the short requests beside them.
        ca_file: a certificate (PEM) to trust beside the system's.

    Raises:
        Misconfigured: the URL is none, or the file holds no certificate.
    """

    def __init__(self, url: str, key: SecretStr | None, calls: int, ca_file: Path | None = None) -> None:
        self.url = checked_url(url)
        self._key = key
        self._most_connections = calls + _BESIDE
        self._tls = _trusting(ca_file) if ca_file else None
        self._lock = threading.Lock()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._session: aiohttp.ClientSession | None = None
        self._calls: set[asyncio.Task[Any]] = set()

    def get(self, url: str, seconds: float) -> Reply:
        """Ask for a page.

        Raises:
            ModelAway, Refused: as `post`.
        """
        return self._wait(self._send("GET", url, None, seconds))

    def post(self, url: str, document: Mapping[str, Any], seconds: float) -> Reply:
        """Send a JSON document.

        Raises:
            ModelAway: no whole reply within `seconds`, or this was closed.
            Refused: TLS fails: the certificate is not trusted, or the port does not speak it.
        """
        return self._wait(self._send("POST", url, json.dumps(document, ensure_ascii=False).encode(), seconds))

    def close(self) -> None:
        """End all calls at once, with `ModelAway` for who waits for them."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
        if loop is None:
            return
        assert self._thread is not None
        asyncio.run_coroutine_threadsafe(self._end(), loop).result(_CLOSE_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        loop.close()

    def _wait(self, call: Coroutine[Any, Any, Reply]) -> Reply:
        with self._lock:
            if self._closed:
                call.close()
                raise self._ended()
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="raygam-chat", daemon=True)
                self._thread.start()
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._ended() from None
        finally:
            future.cancel()  # who waits was interrupted: nobody needs the reply

    def _ended(self) -> ModelAway:
        return ModelAway(f"calls of the chat model at {self.url} were ended here, since its user ends")

    async def _send(self, method: str, url: str, body: bytes | None, seconds: float) -> Reply:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            async with asyncio.timeout(seconds):
                async with self._opened().request(method, url, data=body, allow_redirects=False) as response:
                    found = bytearray()
                    async for part in response.content.iter_any():
                        found += part
                        if len(found) > _MAX_REPLY_BYTES:
                            raise ModelAway(f"{self.url} sends more than {_MAX_REPLY_BYTES} bytes; is it a chat model?")
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    return Reply(response.status, headers, bytes(found))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._what_failed(error, seconds) from None
        finally:
            self._calls.discard(task)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {"Content-Type": "application/json"}
            if self._key is not None:
                headers["Authorization"] = f"Bearer {self._key.get_secret_value()}"
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._most_connections, keepalive_timeout=_IDLE_SECONDS, ssl=self._tls or True
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                headers=headers,
            )
        return self._session

    async def _end(self) -> None:
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def _what_failed(self, error: Exception, seconds: float) -> RaygamError:
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return Refused(
                f"the certificate of {self.url} is not trusted here ({_reason(error)}); set chat_ca_file to the "
                "certificate of the authority that signed it, or name the host in chat_url as the certificate does"
            )
        if isinstance(error, aiohttp.ClientConnectorSSLError):
            return Refused(
                f"{self.url} does not answer to TLS ({_reason(error)}); write http:// in chat_url, or name the port with TLS"
            )
        if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
            return ModelAway(
                f"no chat model answers at {self.url} ({_reason(error)}); is it running, and is this its address (chat_url)?"
            )
        if isinstance(error, TimeoutError):
            return ModelAway(
                f"the chat model at {self.url} gave no whole answer within {seconds:.0f} s (chat_timeout_seconds)"
            )
        return ModelAway(
            f"{self.url} ended the connection before its answer was whole ({_reason(error)})", at_work=True
        )


def checked_url(url: str) -> str:
    """An endpoint's address without a slash at its end.

    Raises:
        Misconfigured: it is no address of HTTP, or holds a password.
    """
    url = url.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound:
        raise Misconfigured(
            f"chat_url {'is empty' if not url else 'is no address'}; write it as http://HOST:PORT/v1, as the server's "
            "documentation gives it (vLLM: http://127.0.0.1:8000/v1, Ollama: http://127.0.0.1:11434/v1)"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise Misconfigured(
            "chat_url holds a user, a password or a query; leave them out and give what identifies you as chat_key"
        )
    return url


def _trusting(ca_file: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise Misconfigured(f"chat_ca_file {ca_file} holds no certificates in PEM form ({_reason(error)})") from None
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        found = error.certificate_error
        return getattr(found, "verify_message", None) or str(found)
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, ssl.SSLError):
        return (cause.reason or str(cause)).replace("_", " ").lower()
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__
