"""Chat endpoints for benchmarks: one that somebody names, the scripted one, or a vLLM server started for the run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from benchmarks.kafka_broker import free_ports
from benchmarks.scripted_model import ScriptedModel
from raygam.adapters.openai_chat import OpenAIChat
from raygam.memory.errors import Misconfigured, RaygamError
from raygam.pipeline import chat_runtime
from raygam.pipeline.asking import Asker
from raygam.pipeline.config import read_settings

SCRIPTED = "scripted"
VLLM = "vllm"
_START_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a benchmark's chat model is.

    Attributes:
        url: with its version.
        model: the model's name there.
        metrics_url: Prometheus text of a vLLM server that this run started; None otherwise.
        max_num_seqs: requests that this server decodes together.
    """

    url: str
    model: str
    metrics_url: str | None = None
    max_num_seqs: int = 0


def only_model(url: str, key: SecretStr | None = None) -> str:
    """The first model that an endpoint lists.

    Raises:
        Misconfigured: it lists none.
        ModelAway, Refused: it does not answer, or not to us.
    """
    endpoint = OpenAIChat(url, None, api_key=key)
    try:
        names = endpoint.served().models
    finally:
        endpoint.close()
    if not names:
        raise Misconfigured(f"{url} lists no models; name one with --model")
    return names[0]


def chat_for(url: str, model: str | None, key_file: Path | None = None, *, concurrency: int) -> Asker:
    """An asker of an endpoint's model; the first that it lists if none is named.

    Raises:
        Misconfigured: it lists none, or the key's file cannot be read.
        ModelAway, Refused: it does not answer, or not to us.
    """
    settings = read_settings(chat_url=url, chat_model=model, chat_key_file=key_file, chat_concurrency=concurrency)
    name = model or only_model(url, settings.chat_secret())
    return chat_runtime.asker(chat_runtime.open_endpoint(settings, name), settings)


@contextmanager
def endpoint(named: str, model: str | None, *, max_num_seqs: int = 16) -> Iterator[Endpoint]:
    """The endpoint at a URL, or one of our own for `scripted` and `vllm`.

    Raises:
        Misconfigured: there is no vLLM or no model for it, or the endpoint lists no model.
    """
    if named == SCRIPTED:
        with ScriptedModel() as scripted:
            yield Endpoint(scripted.url, scripted.name)
    elif named == VLLM:
        with _vllm_server(max_num_seqs) as started:
            yield started
    else:
        yield Endpoint(named, model or only_model(named))


@contextmanager
def _vllm_server(max_num_seqs: int) -> Iterator[Endpoint]:
    from benchmarks.smollm import model_folder

    folder = model_folder()
    if folder is None:
        raise Misconfigured("there is no model for vLLM: make llm-cpu installs one")
    (port,) = free_ports(1)
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--host", "127.0.0.1"),
        *("--port", str(port), "--max-model-len", "4096", "--dtype", "float32", "--enforce-eager"),
        *("--max-num-seqs", str(max_num_seqs), "--served-model-name", "smollm2"),
        *("--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}'),
    ]
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_served(server, f"{url}/v1")
        yield Endpoint(f"{url}/v1", "smollm2", f"{url}/metrics", max_num_seqs)
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until_served(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        if server.poll() is not None:
            raise Misconfigured(f"vLLM's server ended with {server.returncode}; is it installed (make llm-cpu)?")
        try:
            only_model(url)
            return
        except RaygamError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
