"""The composition root on Ray: builds what each actor holds, and starts or joins an engine.

The functions `make_*` run in the actors' own processes.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from ..adapters.model_folder import LocalTokenizer, context_of, model_name
from ..adapters.vllm_chat import VllmChat, VllmOptions
from ..memory.errors import Misconfigured, RaygamError, Retryable
from ..memory.ports import Store
from ..pipeline import runtime
from ..pipeline.batching import BatchingEmbedder
from ..pipeline.chat_config import PORTS
from ..pipeline.config import Settings
from ..pipeline.host import ShardHost
from ..pipeline.intake import Intake
from ..pipeline.location import AnyState, located
from . import calls
from .chat_actor import ChatActor, ChatParts
from .embedder_actor import EmbedderActor, RemoteEmbedder
from .fleet import ActorKind
from .guard import SupervisorGuard
from .metrics import RayMetrics
from .process import placed
from .remote_chat import RemoteChat
from .routes import Routes
from .shard_actor import ShardActor
from .spec import NAMESPACE, ClusterSpec
from .supervisor import Supervisor
from .together import end_together
from .worker_actor import WorkerActor, WorkerParts


def make_host(name: str, spec: ClusterSpec) -> ShardHost:
    """Build what a shard actor holds."""
    runtime.tune_collector()
    settings = spec.settings
    embedder = remote_embedder(spec, Routes(spec.supervisor))
    store = runtime.join_store(spec.state, spec.facts, spec.lock_name)
    try:
        host = ShardHost(
            name.partition(":")[0],
            os.getpid(),
            store,
            runtime.reading_of(runtime.open_store(spec.state), embedder, settings),
            Intake(spec.facts, embedder, settings.record_limits),
            runtime.host_settings(settings),
            lambda: time.time_ns() // 1000,
            runtime.open_source,
            spec.state.directory,
            RayMetrics(),
            lambda job: runtime.open_topic(job, spec.facts),
            lambda job: runtime.message_sink(settings, job),
        )
    except BaseException:
        store.close()
        raise
    SupervisorGuard(spec.supervisor, settings.ray_stuck_seconds).start()
    return host


def make_embedder(name: str, spec: ClusterSpec) -> BatchingEmbedder:
    """Build what an embedder actor holds: the model, one thread, loaded before the first text."""
    if not spec.facts.embedder.startswith("stub"):
        import torch

        torch.set_num_threads(1)  # replicas scale better than threads
    embedder = runtime.make_embedder(spec.facts.embedder, spec.settings)
    embedder.embed(["warm"])
    return BatchingEmbedder(embedder, name=name.partition(":")[0], metrics=RayMetrics())


def make_worker(name: str, spec: ClusterSpec) -> WorkerParts:
    """Build what a worker actor holds."""
    runtime.tune_collector()
    routes = Routes(spec.supervisor)
    store = runtime.open_store(spec.state)
    models = runtime.make_models(remote_embedder(spec, routes, behind=True))
    readers = [store.reader(at) for at in range(spec.facts.partitions)]
    metrics = RayMetrics()
    thinks = spec.settings.vllm_model is not None and any(map(spec.settings.thinks, PORTS))
    chat = remote_chat(spec.settings, routes) if thinks else None
    worker = runtime.make_worker(models, spec.settings, chat=chat, metrics=metrics, share=max(spec.workers, 1))
    return WorkerParts(worker, routes, readers, metrics)


def remote_embedder(spec: ClusterSpec, routes: Routes, *, behind: bool = False) -> RemoteEmbedder:
    """The engine's embedder as its actors, drivers and endpoints use it; `behind` is the slow path's."""
    count_tokens = runtime.make_token_counter(spec.facts.embedder, spec.settings)
    return RemoteEmbedder(spec.facts.embedder, spec.facts.dimension, routes.embedders, count_tokens, behind=behind)


def make_chat(name: str, spec: ClusterSpec) -> ChatParts:
    """Build what a replica of the chat model holds."""
    end_together()
    settings = spec.settings
    options = VllmOptions(
        _vllm_model(settings),
        settings.chat_context_tokens,
        settings.vllm_max_num_seqs,
        settings.chat_gpus,
        settings.chat_temperature,
        settings.chat_seed,
        settings.chat_guided,
        settings.vllm_options,
    )
    return ChatParts(VllmChat(options), settings.chat_start_seconds)


def remote_chat(settings: Settings, routes: Routes) -> RemoteChat:
    """The engine's chat model as its workers use it.

    Args:
        settings: of the engine.
        routes: to its replicas.

    Raises:
        Misconfigured: no model is named, or its tokenizer is not at hand.
    """
    model = _vllm_model(settings)
    context = context_of(model, settings.chat_context_tokens)
    return RemoteChat(model_name(model), context, LocalTokenizer(model).count, routes.chats)


def _vllm_model(settings: Settings) -> str:
    if settings.vllm_model is None:
        raise Misconfigured("no chat model for replicas is named; set vllm_model to a model's folder or name")
    return settings.vllm_model


KINDS = {
    "embedder": ActorKind(EmbedderActor, make_embedder, 64),
    "shard": ActorKind(ShardActor, make_host, 64),
    "worker": ActorKind(WorkerActor, make_worker, 4),
    "chat": ActorKind(ChatActor, make_chat, 1024, anywhere=True, gpus=lambda settings: settings.chat_gpus),
}


class Cluster:
    """An engine on Ray, as a driver holds it: starts or joins it, commands it, ends it.

    Args:
        spec: the engine.
        store: this process' share of the state's lock.
        joined: whether another driver had started the engine.
        ours: whether this process started Ray itself.
    """

    def __init__(self, spec: ClusterSpec, store: Store, *, joined: bool, ours: bool) -> None:
        self.spec = spec
        self.joined = joined
        self.routes = Routes(spec.supervisor)
        self._store = store
        self._ours = ours
        self._closed = False

    @classmethod
    def open(
        cls,
        state: AnyState,
        settings: Settings,
        *,
        shards: int | None = None,
        workers: int | None = None,
        address: str | None = None,
    ) -> Cluster:
        """Start an engine over a state, or join the one that runs; wait until it is ready.

        Args:
            state: where it is; made if it is missing.
            settings: the settings; what they leave open is taken from the state.
            shards: shard actors instead of the settings' number.
            workers: worker actors instead of the settings' number.
            address: a running Ray cluster ("auto" finds one here); None starts Ray on this machine.

        Raises:
            StateLocked: an engine of one process has the state, or another cluster.
            Misconfigured: the settings contradict the state, or Ray cannot be reached.
            Retryable: the engine was not ready in time, or the database does not answer.
        """
        place = runtime.for_all_nodes(located(state))
        count = settings.workers_on_ray(workers)
        facts = runtime.facts_for(place, settings)
        ours = connect(address, settings.ray_metrics_port)
        try:
            context = _ray().get_runtime_context()
            spec = ClusterSpec(
                place,
                facts,
                settings,
                cluster=context.gcs_address,
                node=context.get_node_id() if place.one_node else "",
                shards=min(shards or settings.shards, facts.partitions),
                workers=count,
                embedders=settings.embedder_replicas,
                chats=settings.chat_replicas if settings.vllm_model is not None else 0,
            )
            store = runtime.join_store(place, facts, spec.lock_name)
        except BaseException:
            if ours:
                _ray().shutdown()
            raise
        cluster = cls(spec, store, joined=_runs(spec), ours=ours)
        try:
            start_supervisor(spec)
            cluster.wait_until_ready()
        except BaseException:
            cluster.close()
            raise
        return cluster

    @property
    def supervisor(self) -> Any:
        """The supervisor's handle.

        Raises:
            Dead: it has ended.
        """
        return calls.find(self.spec.supervisor)

    def ask(self, method: str, *arguments: Any, seconds: float = 60.0) -> Any:
        """Call the supervisor; while Ray starts it again after its death, ask again.

        All its methods bear repeating.

        Raises:
            Unreachable: it did not answer in time.
            Retryable: the engine was ended by somebody else.
            RaygamError: what it answered.
        """
        deadline = time.monotonic() + seconds
        while True:
            left = max(deadline - time.monotonic(), 0.1)
            try:
                supervisor = self.supervisor  # has its name also while Ray starts it again
            except calls.Dead:
                raise Retryable(
                    f"the engine over {self.spec.state} has ended (`raygam engine stop` ends it, and so does its Ray "
                    "cluster); what is stored stays, and the next run goes on from there"
                ) from None
            try:
                return calls.result(getattr(supervisor, method).remote(*arguments), left, f"supervisor.{method}")
            except calls.Unreachable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)

    def wait_until_ready(self) -> None:
        """Wait until every partition has a shard.

        Raises:
            Retryable: it has not in time; the message says what stood in the way.
        """
        deadline = time.monotonic() + self.spec.settings.ray_start_seconds
        while True:
            progress = self.ask("progress")
            if progress.ready:
                return
            if time.monotonic() >= deadline:
                raise Retryable(
                    f"the engine was not ready within {self.spec.settings.ray_start_seconds:g} s (setting "
                    f"ray_start_seconds): {len(progress.owned)} of {progress.partitions} partitions have a shard; "
                    + ("; ".join(progress.obstacles) or "no actor said why; their logs are in Ray's session folder")
                )
            time.sleep(0.05)

    def move(self, partition: int, shard: int) -> float:
        """Move a partition to a shard; returns the seconds that it answered nobody."""
        seconds: float = self.ask("move", partition, shard)
        return seconds

    def close(self, *, end: bool | None = None) -> None:
        """Let go of the engine; twice is once.

        Args:
            end: whether it ends; None ends it if this driver has started it.
        """
        if self._closed:
            return
        self._closed = True
        ray = _ray()
        try:
            if not self.joined if end is None else end:
                try:
                    self.ask("close", seconds=120)
                except RaygamError:
                    if not self._ours:
                        raise
                finally:
                    _end(self.spec)
        finally:
            self._store.close()
            if self._ours:
                ray.shutdown()


def connect(address: str | None, metrics_port: int | None = None) -> bool:
    """Be connected to Ray; return whether this process started it.

    Args:
        address: a running Ray cluster; None starts Ray on this machine.
        metrics_port: where a Ray that is started here serves its metrics; None lets Ray choose.

    Raises:
        Misconfigured: there is no cluster at the address, or the port is taken.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # the product sends nothing home
    ray = _ray()
    if ray.is_initialized():
        return False
    common: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        if metrics_port is not None:
            _check_free(metrics_port)
        ray.init(
            address="local",
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            _metrics_export_port=metrics_port,
            **common,
        )
        return True
    try:
        _check_answers(address)
        ray.init(address=address, **common)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        raise Misconfigured(
            f"no Ray cluster at {address} ({error}); `raygam run … --ray` starts an engine with one of its own, "
            "`ray start --head` a cluster that stays. A command that may do without an engine does: leave --address out"
        ) from error
    return False


def _check_answers(address: str) -> None:
    """Ray tries for many minutes where nobody listens.

    Raises:
        OSError: nobody does.
    """
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


def _check_free(port: int) -> None:
    """Ray would go without metrics, and say so in a log file only."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as error:
            raise Misconfigured(
                f"port {port} for metrics cannot be had ({error.strerror}); set ray_metrics_port to a free one"
            ) from None


def start_supervisor(spec: ClusterSpec, name: str | None = None) -> Any:
    """Start the engine's supervisor, or find it. Ray starts it again when it dies."""
    remote: Any = _ray().remote(Supervisor)
    options = remote.options(
        name=name or spec.supervisor,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=32,
        num_cpus=0,
        scheduling_strategy=placed(spec.node),
    )
    return options.remote(spec, KINDS, RayMetrics)


def _runs(spec: ClusterSpec) -> bool:
    try:
        calls.find(spec.supervisor)
    except calls.Dead:
        return False
    return True


def _end(spec: ClusterSpec) -> None:
    """End the supervisor for good."""
    try:
        _ray().kill(calls.find(spec.supervisor), no_restart=True)
    except calls.Dead:
        return


def _ray() -> Any:
    import ray

    return ray
