"""The composition root of one process: the only place that chooses adapters."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..adapters.faiss_index import FaissFlatIndex
from ..adapters.jsonl_source import JsonlSource
from ..adapters.minilm_embedder import NAME as MINILM
from ..adapters.minilm_embedder import MiniLMEmbedder, MiniLMTokenCounter, find_weights
from ..adapters.sqlite_store import SqliteStore
from ..adapters.stub_embedder import StubEmbedder
from ..memory.boundaries import TextTiling
from ..memory.errors import Misconfigured
from ..memory.model import TEMPLATE_VERSION
from ..memory.ports import ChatModel, Embedder, Store
from ..memory.relations import RuleRelationScorer
from ..memory.summary import ExtractiveSummarizer
from ..memory.writes import StateFacts
from .batching import BatchingEmbedder, Behind
from .chat_worker import ChatWorker
from .config import Settings
from .engine import Engine
from .host import ShardHost
from .host_status import HostSettings
from .intake import Intake
from .jobs import TopicJob
from .local import LocalEngine
from .location import AnyState, StateLocation, located
from .metrics import Metrics, NoMetrics
from .publisher import MessageSink
from .reading import Reading
from .topic_feed import TopicReader
from .worker import Models, SlowPath, Worker

if TYPE_CHECKING:
    from ..adapters.postgres_store import PostgresStore

STUB = "stub"
_STUB_DIMENSION = 384


def tune_collector() -> None:
    """Set Python's cycle collector for a process that is ours; a library leaves its host's alone.

    A batch makes tens of thousands of short-lived values and no cycles, and every full
    collection walks all that the imports made: a third of the fast path's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def make_embedder(name: str, settings: Settings) -> Embedder:
    """Make an embedder by its short name or by the name recorded with a state.

    Raises:
        Misconfigured: there is no such embedder here, or no weights for it.
    """
    if name in ("minilm", MINILM):
        return MiniLMEmbedder(settings.model_dir)
    if name == STUB:
        return StubEmbedder(_STUB_DIMENSION)
    if name.startswith("stub-") and name.removeprefix("stub-").isdigit():
        return StubEmbedder(int(name.removeprefix("stub-")))
    raise Misconfigured(f"the state was made with the embedding model {name}, which this version does not have")


def make_models(embedder: Embedder) -> Models:
    """The slow path without an LLM: text tiling, extraction and rules."""
    return Models(embedder, TextTiling(), ExtractiveSummarizer(), RuleRelationScorer())


def make_worker(
    models: Models,
    settings: Settings,
    *,
    chat: ChatModel | None = None,
    metrics: Metrics | None = None,
    share: int = 1,
) -> SlowPath:
    """A worker of the slow path: one of rules, or one that asks chat models.

    Args:
        models: rules, and the embedder.
        settings: name the chat models, if any.
        chat: the model that serves all ports, if it is not an endpoint's.
        metrics: where figures go.
        share: workers that share the cap on calls under way and the tenants' budgets.

    Raises:
        Misconfigured: the settings name a model that needs Ray, or contradict each other.
    """
    if not settings.chats:
        return Worker(models, settings.worker_group)
    from . import chat_runtime  # its client takes a while to load

    concurrency = max(1, settings.chat_concurrency // share)
    minds = chat_runtime.minds(models, settings, chat, metrics or NoMetrics(), concurrency=concurrency, share=share)
    return ChatWorker(minds, concurrency=concurrency, lease_seconds=settings.lease_seconds)


def locate(state: str | Path) -> StateLocation:
    """Where the state is that a person names: a directory, or `postgresql://USER@HOST:PORT/DATABASE`.

    What libpq's environment says (PGHOST, PGPASSWORD, …) is read here, once: other processes are given it.

    Raises:
        Misconfigured: the address is none.
    """
    if isinstance(state, Path):
        return StateLocation.of_directory(state)
    if "://" in state:
        if _postgres().is_address(state):
            from ..adapters.postgres_connection import Server

            server = Server.from_here(state)
            return StateLocation(server.where, server.identity, None, server.address, server.one_node)
        raise Misconfigured(
            f"there is no state at an address that begins with {state.partition('://')[0]:.20}://; it is a directory, "
            "or postgresql://USER@HOST:PORT/DATABASE"
        )
    return StateLocation.of_directory(Path(state))


def for_all_nodes(state: StateLocation) -> StateLocation:
    """The location as processes elsewhere can use it, the password of this machine's password file in it.

    Raises:
        Misconfigured: the server refuses.
        Retryable: it does not answer.
    """
    if state.directory is not None:
        return state.absolute()
    return replace(state, address=_postgres().portable(state.address))


def open_engine(state: AnyState, settings: Settings, *, workers: int | None = None) -> Engine:
    """Open a state for writing, making it if there is none.

    Args:
        state: where it is.
        settings: the settings; what they leave open is taken from the state.
        workers: threads of the slow path instead of the settings' number.

    Raises:
        StateLocked: another engine has it.
        Misconfigured: the settings contradict what the state was made with.
        Retryable: its database does not answer.
    """
    place = located(state)
    embedder, facts = _embedder_and_facts(place, settings)
    models = make_models(embedder)
    count = settings.workers_here(workers)
    store = _create_or_open(place, facts)
    try:
        return Engine(
            store,
            models,
            Intake(facts, embedder, settings.record_limits),
            settings.shard,
            clock_us=lambda: time.time_ns() // 1000,
            workers=count,
            worker_group=settings.worker_group,
            max_open_tasks=settings.open_tasks_limit,
            max_waiting_turns=settings.waiting_turns_limit,
            new_worker=lambda: make_worker(models, settings),
        )
    except BaseException:
        store.close()
        raise


def open_local(state: AnyState, settings: Settings, *, workers: int | None = None) -> LocalEngine:
    """Open a state for following a topic in this process; arguments and errors are those of `open_engine`."""
    place = located(state)
    model, facts = _embedder_and_facts(place, settings)
    with ExitStack() as opened:  # what is open is closed again if the next cannot be opened
        store = _create_or_open(place, facts)
        opened.callback(store.close)
        embedder, slow_path, end_model = _shared(model, settings)
        opened.callback(end_model)
        reading = reading_of(open_store(place), embedder, settings)
        opened.callback(reading.close)
        host = ShardHost(
            "local",
            os.getpid(),
            store,
            reading,
            Intake(facts, embedder, settings.record_limits),
            host_settings(settings),
            lambda: time.time_ns() // 1000,
            open_source,
            place.directory,
            open_topic=lambda job: open_topic(job, facts),
            make_sink=lambda job: message_sink(settings, job),
        )
        count = settings.workers_here(workers)
        engine = LocalEngine(
            host,
            facts,
            [store.reader(at) for at in range(facts.partitions)],
            [make_worker(make_models(slow_path), settings) for _ in range(count)],
            on_close=end_model,
        )
        opened.pop_all()
        return engine


def _shared(model: Embedder, settings: Settings) -> tuple[Embedder, Embedder, Callable[[], None]]:
    """A model for turns and queries, the same for the slow path, which waits behind them, and what ends it.

    The stub is faster than any waiting.
    """
    if model.name.startswith(STUB):
        return model, model, lambda: None
    count_tokens = make_token_counter(model.name, settings)
    model.embed(["warm"])  # loads it: the first record shall not wait for that
    shared = BatchingEmbedder(model, count_tokens=count_tokens)
    return shared, Behind(shared), shared.close


def host_settings(settings: Settings) -> HostSettings:
    """What a host of shards is set to."""
    return HostSettings(
        settings.shard,
        settings.open_tasks_limit,
        settings.waiting_turns_limit,
        settings.min_free_bytes,
        max_unsent_updates=settings.max_unsent_updates,
    )


def recorded_facts(state: AnyState) -> StateFacts | None:
    """What a state was made with; None where there is none yet."""
    place = located(state)
    if place.directory is None:
        return _postgres().recorded_facts(place.address)
    return SqliteStore.recorded_facts(place.directory)


def facts_for(state: AnyState, settings: Settings) -> StateFacts:
    """What to ask of a state: given settings count, others follow what was recorded; loads no model.

    Raises:
        Misconfigured: there is something that is no state, or no such embedder here.
    """
    return _embedder_and_facts(located(state), settings)[1]


def make_token_counter(name: str, settings: Settings) -> Callable[[str], int] | None:
    """Count as an embedder's tokenizer does, without its weights; None if it has none."""
    return MiniLMTokenCounter(settings.model_dir) if name in ("minilm", MINILM) else None


def open_reading(state: AnyState, settings: Settings) -> Reading:
    """Open a state for queries, beside a writer or without one; changes nothing.

    Raises:
        Misconfigured: there is no state, or another embedder is asked for than it was made with.
    """
    store = open_store(state)
    try:
        facts = store.facts
        embedder = make_embedder(settings.embedder or facts.embedder, settings)
        if (embedder.name, embedder.dimension) != (facts.embedder, facts.dimension):
            raise Misconfigured(
                f"{state} was made with the embedding model {facts.embedder} ({facts.dimension} dimensions), the "
                f"settings ask for {embedder.name} ({embedder.dimension} dimensions); leave the embedder unset, or "
                "stream the dialogue into a new state"
            )
        return reading_of(store, embedder, settings)
    except BaseException:
        store.close()
        raise


def reading_of(store: Store, embedder: Embedder, settings: Settings) -> Reading:
    """Queries over an opened store; closing the reading closes the store."""
    return Reading(
        store,
        embedder,
        FaissFlatIndex(embedder.dimension, settings.index_bytes),
        max_users=settings.max_viewed_users,
        context_tokens=settings.context_tokens,
    )


def open_made(state: AnyState) -> Store:
    """Open a state for writing as it was made, without an engine and its models.

    Raises:
        StateLocked: an engine has it.
        Misconfigured: there is no state.
        Retryable: its database does not answer.
    """
    place = located(state)
    facts = recorded_facts(place)
    if facts is None:
        raise Misconfigured(f"no state at {place}; `raygam run SOURCE --state {place}` makes one")
    return _create_or_open(place, facts)


def open_store(state: AnyState) -> Store:
    """Open a state read-only.

    Raises:
        Misconfigured: there is no state.
        Retryable: its database does not answer.
    """
    place = located(state)
    if place.directory is None:
        return _postgres().open_read_only(place.address)
    return SqliteStore.open_read_only(place.directory)


def join_store(state: StateLocation, facts: StateFacts, cluster: str) -> Store:
    """Open a state for writing as one process of a cluster, making it if there is none.

    Raises:
        StateLocked: an engine of one process has it, or another cluster.
        Misconfigured, Retryable: as `open_engine`.
    """
    if state.directory is None:
        return _postgres().join(state.address, facts, cluster)
    return SqliteStore.join(state.directory, facts, cluster)


def open_source(path: Path) -> JsonlSource:
    """Open a file of JSON lines."""
    return JsonlSource(path)


def open_topic(job: TopicJob, facts: StateFacts) -> TopicReader:
    """Open a topic, which must have the state's partitions."""
    from . import kafka_runtime  # the client takes half a second to load

    return kafka_runtime.open_reader(job.settings, facts.partitions)


def message_sink(settings: Settings, job: TopicJob | None) -> MessageSink:
    """Where the messages of a host go: to the brokers of its settings, else of the topic that it reads.

    Raises:
        Misconfigured: neither names one.
    """
    from . import kafka_runtime

    named = settings if settings.kafka_brokers is not None or job is None else job.settings
    return kafka_runtime.open_messages(named, settings.kafka_updates_topic or named.kafka_updates_topic)


def embedder_at_hand(settings: Settings) -> str:
    """Say which embedder a new state would get here, and from where."""
    if settings.embedder == STUB:
        return "stub (hashed words; stands in for a model)"
    weights = find_weights(settings.model_dir)
    return f"{MINILM} from {weights}" if weights else f"none: weights of {MINILM} are missing"


def _postgres() -> type[PostgresStore]:
    """Its driver takes a fifth of a second to load, which a command over a directory need not wait for."""
    from ..adapters.postgres_store import PostgresStore

    return PostgresStore


def _create_or_open(state: StateLocation, facts: StateFacts) -> Store:
    if state.directory is None:
        return _postgres().create_or_open(state.address, facts)
    return SqliteStore.create_or_open(state.directory, facts)


def _embedder_and_facts(state: StateLocation, settings: Settings) -> tuple[Embedder, StateFacts]:
    recorded = recorded_facts(state)
    embedder = make_embedder(settings.embedder or (recorded.embedder if recorded else "minilm"), settings)
    return embedder, _facts(settings, embedder, recorded)


def _facts(settings: Settings, embedder: Embedder, recorded: StateFacts | None) -> StateFacts:
    """What to ask of the state: given settings count, others follow what was recorded."""
    given = settings.model_fields_set
    return StateFacts(
        partitions=recorded.partitions if recorded and "partitions" not in given else settings.partitions,
        partitioner=recorded.partitioner if recorded and "partitioner" not in given else settings.partitioner,
        embedder=embedder.name,
        dimension=embedder.dimension,
        template=TEMPLATE_VERSION,
    )
