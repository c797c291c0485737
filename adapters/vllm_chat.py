"""A chat model by vLLM's async engine in this process: requests of all callers are computed together.

vLLM comes with `raygam[llm]` (GPUs) or `make llm-cpu`; it is imported where an engine is started and
nowhere else. The engine computes in processes of its own, which end when it is closed; where the
process that holds it may be killed, see `actors/together.py`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..memory.chat import ChatAnswer, ChatRequest, Message
from ..memory.errors import Misconfigured, ModelAway, Rejected, TooLong
from ..memory.ports import ChatModel
from .model_folder import LocalTokenizer, context_of, model_name
from .vllm_figures import EngineFigures, Figures

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # the product sends nothing home
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork of a process with threads may stand still for ever
    "VLLM_LOGGING_LEVEL": "WARNING",
}
_CPU_CACHE_BYTES = 4 * 1024**3
"""Left to itself, the CPU build takes nine tenths of the machine's memory."""
_CLOSE_SECONDS = 10.0
_DIED = "its engine has died; the log of vLLM says why"


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What an engine is started with.

    Attributes:
        model: a folder with the model, or its name on a model hub.
        context_tokens: of a request and its answer together; None takes what the model says.
        max_num_seqs: requests computed together; more wait.
        gpus: of this engine: 0 is vLLM's CPU build, below 1 a share of one, above 1 the model is spread over them.
        temperature: of sampling; 0 takes the likeliest token each time.
        seed: of sampling.
        guided: the schema guides decoding; without it the answer's shape is left to the model.
        engine: further arguments of vLLM's engine, by its own names; they come before all others.
    """

    model: str
    context_tokens: int | None = None
    max_num_seqs: int = 32
    gpus: float = 0
    temperature: float = 0.0
    seed: int | None = None
    guided: bool = True
    engine: Mapping[str, Any] = field(default_factory=dict)

    def engine_arguments(self) -> dict[str, Any]:
        """Arguments of vLLM's `AsyncEngineArgs`.

        Raises:
            Misconfigured: the length of the model's context is not known.
        """
        arguments: dict[str, Any] = {
            "model": self.model,
            "max_model_len": context_of(self.model, self.context_tokens),
            "max_num_seqs": self.max_num_seqs,
            # Half of an answer's tokens would be the spaces and line ends of pretty JSON.
            "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
            "enable_log_requests": False,
        }
        if not self.gpus and "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
            arguments["kv_cache_memory_bytes"] = _CPU_CACHE_BYTES
        if 0 < self.gpus < 1:
            arguments["gpu_memory_utilization"] = round(0.9 * self.gpus, 4)
        elif self.gpus > 1:
            arguments |= {"tensor_parallel_size": int(self.gpus), "distributed_executor_backend": "mp"}
        return arguments | dict(self.engine)


class VllmChat:
    """A `ChatModel` in this process. Thread-safe.

    Args:
        options: what the engine is started with; `start` starts it.

    Raises:
        Misconfigured: the model's tokenizer or the length of its context is not at hand.
    """

    def __init__(self, options: VllmOptions) -> None:
        self.name = model_name(options.model)
        self.context_tokens = context_of(options.model, options.context_tokens)
        self._options = options
        self._tokenizer = LocalTokenizer(options.model)
        self._figures = Figures()
        self._engine: Any = None
        self._template: Any = None  # vLLM's own tokenizer; used on the loop's thread alone
        self._merges_system = False
        self._failure = ""
        self._closed = False
        self._numbers = itertools.count(1)
        self._under_way: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="raygam-vllm", daemon=True)

    @property
    def under_way(self) -> int:
        """Calls that have no answer yet."""
        return len(self._under_way)

    @property
    def failure(self) -> str:
        """Why it will answer no more, empty as long as it may."""
        if not self._failure and self._engine is not None and self._engine.errored:
            self._failure = _DIED
        return self._failure

    def figures(self) -> EngineFigures:
        """What the engine has counted of itself so far."""
        return self._figures.so_far()

    def count_tokens(self, text: str) -> int:
        """Tokens of a text by the model's own tokenizer, without those that frame a message."""
        return self._tokenizer.count(text)

    def start(self) -> None:
        """Load the model; returns when it answers. Takes a minute on a CPU, several on GPUs.

        Raises:
            Misconfigured: vLLM is not installed, or does not take the model or an argument.
        """
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def complete(self, request: ChatRequest, seconds: float) -> ChatAnswer:
        """Call the model once; errors as the port says."""
        future = asyncio.run_coroutine_threadsafe(self._complete(request, seconds), self._loop)
        return future.result()

    async def answer(self, request: ChatRequest, seconds: float) -> ChatAnswer:
        """The same for an event loop; a call that is cancelled is computed no further."""
        future = asyncio.run_coroutine_threadsafe(self._complete(request, seconds), self._loop)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End; calls under way raise `ModelAway` at once."""
        if self._closed:
            return
        self._closed = True
        self._failure = self._failure or "it was closed"
        if self._thread.is_alive():
            ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            try:
                ending.result(_CLOSE_SECONDS)
            except concurrent.futures.TimeoutError:
                return  # it is loading a model still; the loop's thread ends with the process
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _start(self) -> None:
        arguments = self._options.engine_arguments()
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise self._failed(
                f"vLLM cannot be imported ({error}); `pip install raygam[llm]` installs it for GPUs, `make llm-cpu` its "
                "CPU build"
            ) from error
        try:
            engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=[self._figures.logger])
        except Exception as error:  # vLLM raises whatever its parts raise
            raise self._failed(
                f"vLLM does not start with the model {self._options.model} ({type(error).__name__}: {error}); its log "
                "says more. Look at vllm_model, chat_gpus, chat_context_tokens and vllm_options"
            ) from error
        self._template = engine.get_tokenizer()
        self._merges_system = not self._takes_system()
        self._engine = engine

    def _failed(self, message: str) -> Misconfigured:
        self._failure = message
        return Misconfigured(message)

    async def _end(self) -> None:
        for task in list(self._under_way):
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        if self._engine is not None:
            self._engine.shutdown()

    async def _complete(self, request: ChatRequest, seconds: float) -> ChatAnswer:
        if self._engine is None or self.failure:
            raise ModelAway(f"the model {self.name} is not at hand: {self._failure or 'it is being loaded'}")
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            async with asyncio.timeout(seconds):
                return await self._generate(request)
        except TimeoutError:
            raise ModelAway(f"the model {self.name} gave no answer within {seconds:g} s") from None
        except asyncio.CancelledError:
            if self._closed:
                raise ModelAway(f"the model {self.name} is not at hand: {self._failure}") from None
            raise
        finally:
            self._under_way.discard(task)

    async def _generate(self, request: ChatRequest) -> ChatAnswer:
        from vllm.exceptions import VLLMClientError
        from vllm.inputs import TokensPrompt
        from vllm.v1.engine.exceptions import EngineDeadError

        tokens = self._rendered(request.messages)
        if len(tokens) + request.max_tokens > self.context_tokens:
            raise TooLong(
                f"a request of {len(tokens)} tokens and {request.max_tokens} of its answer do not fit the "
                f"{self.context_tokens} tokens of {self.name}; it must be split"
            )
        said = []
        try:
            number = f"{next(self._numbers)}"
            sampling = self._sampling(request)
            async for one in self._engine.generate(TokensPrompt(prompt_token_ids=tokens), sampling, number):
                said.append(one)
        except EngineDeadError as error:
            self._failure = _DIED
            raise ModelAway(f"the model {self.name} is not at hand: {self._failure}", at_work=True) from error
        except (VLLMClientError, ValueError) as error:
            raise Rejected(f"vLLM does not take the request ({request.schema_name}): {error}") from error
        except Exception as error:  # one request's accident, or too many that wait: the next may pass
            raise ModelAway(f"the model {self.name} failed ({error.__cause__ or error!r})", at_work=True) from error
        output = said[-1].outputs[0] if said else None
        if output is None or output.finish_reason not in ("stop", "length"):
            why = output and output.finish_reason
            raise ModelAway(f"the model {self.name} broke off an answer ({why})", at_work=True)
        return ChatAnswer(output.text, len(tokens), len(output.token_ids), output.finish_reason == "length")

    def _sampling(self, request: ChatRequest) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        return SamplingParams(
            temperature=self._options.temperature,
            seed=self._options.seed,
            max_tokens=request.max_tokens,
            output_kind=RequestOutputKind.FINAL_ONLY,
            structured_outputs=StructuredOutputsParams(json=dict(request.schema)) if self._options.guided else None,
        )

    def _rendered(self, messages: tuple[Message, ...]) -> list[int]:
        """The messages as the model was trained to read them, up to where its answer begins."""
        said = [{"role": message.role, "content": message.text} for message in messages]
        if self._merges_system and said and said[0]["role"] == "system" and len(said) > 1:
            first, second, *rest = said
            said = [{"role": second["role"], "content": f"{first['content']}\n\n{second['content']}"}, *rest]
        text = self._template.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        tokens: list[int] = self._template.encode(text, add_special_tokens=False)
        return tokens

    def _takes_system(self) -> bool:
        """Whether the model's template knows the role "system"; some raise where they meet it.

        Raises:
            Misconfigured: there is no template: the model was not trained to answer messages.
        """
        from jinja2 import TemplateError

        user = {"role": "user", "content": "user"}
        try:
            self._template.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
        except (ValueError, TemplateError) as error:
            raise self._failed(
                f"the model {self._options.model} has no chat template ({error}); name one that was trained to answer "
                "messages (an instruct model) in vllm_model"
            ) from error
        try:
            self._template.apply_chat_template([{"role": "system", "content": "system"}, user], tokenize=False)
        except TemplateError:
            return False
        return True


def _is_a_chat_model(chat: VllmChat) -> ChatModel:
    return chat
