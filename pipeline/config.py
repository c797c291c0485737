"""The one settings tree: environment, then a TOML file, then these defaults.

Read once, in a composition root, and passed on as values. Every field can be set by
`RAYGAM_<FIELD>` or in the file that `RAYGAM_CONFIG` names (`raygam.toml` beside you,
if there is one).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from ..memory.errors import Misconfigured
from ..memory.progression import Limits
from .chat_config import SHARE_OF_LEASE, ChatFields
from .kafka_config import KafkaFields
from .records import RecordLimits
from .shard import ShardSettings

CONFIG_VARIABLE = "RAYGAM_CONFIG"
DEFAULT_CONFIG = "raygam.toml"


_MAX_MINUTES = 100 * 366 * 24 * 60  # beyond a century nothing ends; and times stay inside 64 bits


class Settings(KafkaFields, ChatFields, BaseSettings):
    """Settings of one engine. Values marked * are ours; the papers give none."""

    model_config = SettingsConfigDict(env_prefix="RAYGAM_", extra="forbid")

    embedder: Literal["minilm", "stub"] | None = Field(
        None, description="embedding model; default: the one the state was made with, else minilm"
    )
    model_dir: Path | None = Field(None, description="folder with the embedder's weights; default: the package's")
    partitions: int = Field(8, ge=1, le=4096, description="partitions of a new state *")
    partitioner: Literal["murmur2", "crc32"] = Field("murmur2", description="how keys map to partitions")

    session_gap_minutes: float = Field(30, gt=0, le=_MAX_MINUTES, description="event time that ends a session *")
    pause_minutes: float = Field(
        10, gt=0, le=_MAX_MINUTES, description="gap inside a session that asks for boundaries *"
    )
    max_buffer_tokens: int = Field(2048, ge=16, description="a larger buffer is looked at (GAM)")
    max_time_jump_minutes: float = Field(
        24 * 60, gt=0, le=_MAX_MINUTES, description="event time that one turn alone moves a user on by at most *"
    )

    max_text_bytes: int = Field(32 * 1024, ge=1, description="text and captions of one turn *")
    max_record_bytes: int = Field(1024 * 1024, ge=256, le=16 * 1024 * 1024, description="one whole record *")
    chunk_bytes: int | None = Field(
        None,
        ge=1024,
        le=256 * 1024 * 1024,
        description="how much of a file is read at a time; default: 1 MiB for the stub, 128 KiB for a model *",
    )

    workers: int = Field(1, ge=0, le=64, description="threads of the slow path; 0 works only while draining")
    worker_group: int = Field(128, ge=1, le=1024, description="tasks applied together *")
    lease_seconds: float = Field(300, gt=0, le=7 * 86400, description="how long a worker may take for a task *")
    max_attempts: int = Field(5, ge=1, description="leases of a task before it is parked *")
    max_open_tasks: int | None = Field(
        None, ge=1, description="reading waits while more tasks are open; default: 2,000, with a chat model 200,000 *"
    )
    max_waiting_turns: int | None = Field(
        None,
        ge=1,
        description="reading waits while more turns are behind open tasks; default: 100,000, with a chat model 1,000,000 *",
    )
    min_free_bytes: int = Field(
        256 * 1024 * 1024, ge=0, description="on Ray, reading waits while the state's disk has less room *"
    )

    shards: int = Field(2, ge=1, le=1024, description="shard actors on Ray *")
    embedder_replicas: int = Field(1, ge=1, le=256, description="embedder actors on Ray *")
    ray_heartbeat_seconds: float = Field(0.5, gt=0, le=60, description="the supervisor's rounds *")
    ray_stuck_seconds: float = Field(5, gt=0, le=3600, description="an actor without an answer is replaced *")
    ray_start_seconds: float = Field(90, gt=0, le=3600, description="the same for one that is starting *")
    ray_drain_seconds: float = Field(
        2, ge=0, le=60, description="a partition that moves waits so long for tasks that workers have in hand *"
    )
    ray_metrics_port: int | None = Field(
        None, ge=1, le=65535, description="where a Ray that raygam starts serves /metrics; default: Ray picks one"
    )

    serve_deadline_seconds: float = Field(
        5, gt=0, le=60, description="a request is answered within it, or with 503; a request may name another *"
    )
    serve_replicas: int = Field(1, ge=1, le=64, description="processes that take HTTP requests *")
    serve_max_requests: int = Field(256, ge=1, le=65536, description="requests under way in one of them *")
    serve_max_body_bytes: int = Field(
        4 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024, description="one request's body *"
    )

    max_resident_users: int = Field(2048, ge=1, description="users a partition's writer holds in memory *")
    max_viewed_users: int = Field(256, ge=1, description="users whose graphs stay in memory for queries *")
    index_bytes: int = Field(256 * 1024 * 1024, ge=1, description="vectors held in memory for queries *")
    context_tokens: int = Field(1370, ge=16, description="budget of the linearised context (GAM)")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments over environment over file."""
        named = os.environ.get(CONFIG_VARIABLE)
        if named and not Path(named).is_file():
            raise Misconfigured(f"{CONFIG_VARIABLE} names {named}, which is no file")
        file = TomlConfigSettingsSource(settings_cls, Path(named or DEFAULT_CONFIG))
        return init_settings, env_settings, file

    def chunk_for(self, embedder: str) -> int:
        """Bytes of a file to read, embed and apply at a time.

        A model takes seconds for what the stub does at once, and a run can be stopped
        and shows progress only between chunks.
        """
        if self.chunk_bytes is not None:
            return self.chunk_bytes
        return 1024 * 1024 if embedder.startswith("stub") else 128 * 1024

    def workers_here(self, workers: int | None = None) -> int:
        """Workers in one process; with a chat model one claims for as many threads as there may be calls."""
        count = self.workers if workers is None else workers
        return min(count, 1) if self.chats else count

    def workers_on_ray(self, workers: int | None = None) -> int:
        """Worker actors; they share the calls of a chat model.

        Raises:
            Misconfigured: there are not so many calls.
        """
        count = self.workers if workers is None else workers
        if self.chats and count > self.chat_concurrency:
            raise Misconfigured(
                f"{count} workers cannot share {self.chat_concurrency} calls of the chat model: raise chat_concurrency, "
                "or take fewer workers"
            )
        return count

    @property
    def open_tasks_limit(self) -> int:
        """Tasks above which reading waits. A slow chat model is behind for hours, and the stream is not to wait for it."""
        return self.max_open_tasks or (200_000 if self.chats else 2000)

    @property
    def waiting_turns_limit(self) -> int:
        """Turns behind open tasks above which reading waits."""
        return self.max_waiting_turns or (1_000_000 if self.chats else 100_000)

    @property
    def limits(self) -> Limits:
        """The maintenance settings."""
        return Limits(
            session_gap_us=int(self.session_gap_minutes * 60_000_000),
            pause_us=int(self.pause_minutes * 60_000_000),
            max_buffer_tokens=self.max_buffer_tokens,
            max_time_jump_us=int(self.max_time_jump_minutes * 60_000_000),
        )

    @property
    def record_limits(self) -> RecordLimits:
        """The sizes above which a record is refused."""
        return RecordLimits(self.max_text_bytes, self.max_record_bytes)

    @property
    def shard(self) -> ShardSettings:
        """The shard's settings."""
        return ShardSettings(
            self.limits, self.lease_seconds, self.max_attempts, self.max_resident_users, self.outbox_rules
        )


def read_settings(**given: object) -> Settings:
    """Read the settings; arguments that are None count as not given.

    Raises:
        Misconfigured: a value is wrong; the message names the field and what it takes.
    """
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}{_given(item)}" for item in error.errors()]
        raise Misconfigured(
            "settings are wrong: " + "; ".join(lines) + "; see `raygam doctor --settings` for names and defaults"
        ) from None
    except ValueError as error:
        raise Misconfigured(f"settings cannot be read: {error}") from None
    settings.check_chat()
    longest = SHARE_OF_LEASE * settings.lease_seconds
    if settings.chats and settings.chat_timeout_seconds > longest:
        raise Misconfigured(
            f"chat_timeout_seconds {settings.chat_timeout_seconds:g} is more than a task has for all its calls: {longest:g} s, "
            f"which is {SHARE_OF_LEASE:g} of lease_seconds; raise lease_seconds, or lower it"
        )
    return settings


def _given(item: Mapping[str, Any]) -> str:
    """What was given, unless it may be a secret: a password, or anything under a name that is misspelt."""
    if item["type"] == "extra_forbidden" or "password" in str(item["loc"]) or "key" in str(item["loc"]):
        return ""
    return f" (got {item.get('input')!r:.80})"
