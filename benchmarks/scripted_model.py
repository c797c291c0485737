"""A chat model that needs no model: OpenAI's API over real HTTP, answers by rules, faults on demand.

    python -m benchmarks.scripted_model --port 8000 --seconds 0.2

Tests and benchmarks drive the thinking path with it. What is scripted comes first, in the order of
arrival; every other request is answered by `scripted_judgement`. `GET /stats` tells another process
what was asked of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from benchmarks.scripted_judgement import count_tokens, judged

NAME = "scripted"
_HELD_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of one request for a completion.

    Attributes:
        text: the model's words; None for its own judgement.
        status: of HTTP; others than 200 carry `text` as the error's message.
        headers: more of them.
        body: sent instead of a completion, as it is.
        cut_off: the text reached the request's `max_tokens`.
        usage: whether tokens are counted for the client.
        seconds: before it answers.
        held: it answers when this is set.
        sent_share: of the reply's bytes, after which the connection is reset; 0 sends none.
    """

    text: str | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    cut_off: bool = False
    usage: bool = True
    seconds: float = 0.0
    held: threading.Event | None = None
    sent_share: float = 1.0


class Raw(str):
    """A judgement that is sent as it is, whatever it is."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for a completion.

    Attributes:
        prompt: the schema's name.
        document: of the request.
        began: when it came, on the monotonic clock.
    """

    prompt: str
    document: Mapping[str, Any]
    began: float


class ScriptedModel:
    """A server on a loopback port, from `start` or `with` on; what was asked of it stays over a `kill`.

    Args:
        port: to listen on; 0 for a free one, kept from then on.
        name: of the model; `aliases` are served too, and not listed. `standing` names by prompt what becomes of
            every request that no scripted step meets.
        names: that it lists; None for `name` alone.
        key: a bearer's token that it asks for.
        context_tokens: request and answer together; more is answered as vLLM does.
        says_context: whether its list of models tells that.
        tokenizes: whether it has vLLM's `/tokenize`.
        seconds: of each answer, beside its step's.
        judge: what it answers where nothing is scripted.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        name: str = NAME,
        names: Sequence[str] | None = None,
        key: str | None = None,
        context_tokens: int = 8192,
        says_context: bool = True,
        tokenizes: bool = True,
        seconds: float = 0.0,
        judge: Callable[[Any, Any], Any] = judged,
    ) -> None:
        self.name = name
        self.names = [name] if names is None else names
        self.aliases: set[str] = set()
        self.key = key
        self.context_tokens = context_tokens
        self.says_context = says_context
        self.tokenizes = tokenizes
        self.seconds = seconds
        self.judge = judge
        self.asked: list[Asked] = []
        self.standing: dict[str, Step] = {}
        self.tokenized = 0
        self.most_at_once = 0
        self.at_once = 0
        self.ended = threading.Event()
        self._port = port
        self._steps: deque[Step] = deque()
        self._changed = threading.Condition()
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        """Where the API is."""
        return f"http://127.0.0.1:{self._port}/v1"

    def script(self, *steps: Step) -> None:
        """Put steps behind those that wait."""
        with self._changed:
            self._steps.extend(steps)

    @property
    def waiting_steps(self) -> int:
        """Steps that no request has met yet."""
        return len(self._steps)

    def calls(self) -> Counter[str]:
        """Requests for completions by prompt."""
        return Counter(each.prompt for each in list(self.asked))

    def wait_for_calls(self, count: int, seconds: float = 20.0) -> None:
        """Wait until so many completions have been asked for.

        Raises:
            AssertionError: they have not.
        """
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, seconds), self.calls()

    def start(self) -> Self:
        """Listen."""
        self.ended.clear()
        self._server = _Server(("127.0.0.1", self._port), self)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="scripted", daemon=True).start()
        return self

    def kill(self) -> None:
        """Reset all connections and listen no more."""
        server, self._server = self._server, None
        if server is not None:
            self.ended.set()
            server.shutdown()
            server.server_close()
            server.reset_all()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def met(self, document: Mapping[str, Any]) -> Step:
        """Take note of a request and say what becomes of it."""
        form = (document.get("response_format") or {}).get("json_schema") or {}
        with self._changed:
            self.asked.append(Asked(form.get("name", ""), document, time.monotonic()))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self._changed.notify_all()
            if self._steps:
                return self._steps.popleft()
            return self.standing.get(form.get("name", ""), Step())

    def over(self) -> None:
        """The request is answered."""
        with self._changed:
            self.at_once -= 1
            self._changed.notify_all()

    def stats(self) -> dict[str, Any]:
        """What was asked, for another process."""
        return {
            "calls": dict(self.calls()),
            "most_at_once": self.most_at_once,
            "at_once": self.at_once,
            "tokenized": self.tokenized,
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, address: tuple[str, int], model: ScriptedModel) -> None:
        self.model = model
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nobody's fault."""

    def reset_all(self) -> None:
        with self._lock:
            for connection in self._open:
                _reset(connection)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        model = self.server.model
        if self.path == "/stats":
            self._reply(200, model.stats())
        elif self.path != "/v1/models":
            self._reply(404, {"detail": "Not Found"})
        elif self._welcome():
            more = {"max_model_len": model.context_tokens} if model.says_context else {}
            self._reply(200, {"data": [{"id": name, "object": "model", **more} for name in model.names]})

    def do_POST(self) -> None:
        model = self.server.model
        document = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        if not self._welcome():
            return
        if self.path == "/tokenize" and model.tokenizes:
            model.tokenized += 1
            self._reply(200, {"count": count_tokens(document["prompt"]), "max_model_len": model.context_tokens})
        elif self.path != "/v1/chat/completions":
            self._reply(404, {"detail": "Not Found"})
        elif document.get("model") not in {model.name, *model.aliases}:
            self._reply(404, _error(f"The model `{document.get('model')}` does not exist.", "NotFoundError"))
        else:
            step = model.met(document)
            try:
                self._complete(document, step)
            finally:
                model.over()

    def _welcome(self) -> bool:
        key = self.server.model.key
        if key is None or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        given = self.headers.get("Authorization", "")
        self._reply(401, _error(f"Incorrect API key provided: {given.removeprefix('Bearer ')}.", "invalid_api_key"))
        return False

    def _complete(self, document: Mapping[str, Any], step: Step) -> None:
        model = self.server.model
        model.ended.wait(model.seconds + step.seconds)
        if step.held is not None:
            step.held.wait(_HELD_SECONDS)
        if step.status != 200:
            body = step.body if step.body is not None else _error(step.text or "scripted", "scripted")
            self._reply(step.status, body, step.headers, step.sent_share)
            return
        prompt = sum(count_tokens(str(message["content"])) + 4 for message in document["messages"])
        limit = document.get("max_tokens") or document.get("max_completion_tokens") or model.context_tokens
        if prompt + limit > model.context_tokens:
            said = (
                f"This model's maximum context length is {model.context_tokens} tokens. However, you requested "
                f"{limit} output tokens and your prompt contains {prompt} input tokens."
            )
            self._reply(400, _error(said, "BadRequestError"))
            return
        if step.body is not None:
            self._reply(200, step.body, step.headers, step.sent_share)
            return
        text, cut_off = step.text, step.cut_off
        if text is None:
            form = (document.get("response_format") or {}).get("json_schema") or {}
            judgement = model.judge(document["messages"], form.get("schema", {}))
            text = judgement if isinstance(judgement, Raw) else json.dumps(judgement, ensure_ascii=False)
            if count_tokens(text) > limit:
                text, cut_off = text[: 2 * limit], True
        completion: dict[str, Any] = {
            "object": "chat.completion",
            "model": model.name,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "length" if cut_off else "stop",
                }
            ],
        }
        if step.usage:
            completion["usage"] = {"prompt_tokens": prompt, "completion_tokens": count_tokens(text)}
        self._reply(200, completion, step.headers, step.sent_share)

    def _reply(self, status: int, body: Any, headers: Mapping[str, str] | None = None, sent_share: float = 1.0) -> None:
        """Send a reply in one piece, or a share of it and a reset."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()  # halves of code points too, as escapes
        lines = [f"HTTP/1.1 {status} {self.responses.get(status, ('Scripted',))[0]}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines += ["Content-Type: application/json", f"Content-Length: {len(raw)}"]
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        if sent_share >= 1:
            self.wfile.write(head + raw)
            return
        if sent_share > 0:
            self.wfile.write(head + raw[: int(len(raw) * sent_share)])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_WR)  # what was sent arrives before the end
        else:
            _reset(self.connection)
        self.close_connection = True


def _error(message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _reset(connection: socket.socket) -> None:
    """End a connection as a killed process does."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scripted_model", description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1; default: a free one")
    parser.add_argument("--name", default=NAME, help="of the model")
    parser.add_argument("--key", help="a key that callers must have")
    parser.add_argument("--context-tokens", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=0.0, help="before each answer")
    options = parser.parse_args()
    model = ScriptedModel(
        port=options.port,
        name=options.name,
        key=options.key,
        context_tokens=options.context_tokens,
        seconds=options.seconds,
    )
    with model:
        print(f"{model.name} answers at {model.url}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
