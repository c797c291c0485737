"""The settings that concern chat models; fields of the one settings tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, SecretStr

from ..memory.errors import Misconfigured

PORTS = ("boundaries", "consolidation", "relations")

SHARE_OF_LEASE = 0.9
"""Of a lease's time a task may be thought about; what is left is for handing it in."""


class ChatFields(BaseModel):
    """Which model thinks, where it is, and what it may cost.

    One of `chat_url` and `vllm_model` names it; without them rules think, and none of these matters.
    """

    boundaries: Literal["embedding", "llm"] | None = Field(
        None, description="what finds boundaries; default: the chat model if one is named, else embeddings"
    )
    consolidation: Literal["extractive", "llm"] | None = Field(
        None, description="what writes summaries; default: the chat model if one is named, else extraction"
    )
    relations: Literal["rules", "llm"] | None = Field(
        None, description="what judges relations; default: the chat model if one is named, else rules"
    )
    chat_url: str | None = Field(
        None, description="an OpenAI-compatible endpoint, up to and with its version: http://127.0.0.1:8000/v1"
    )
    chat_model: str | None = Field(
        None, min_length=1, description="the model's name there; default: the only one that it lists"
    )
    boundaries_model: str | None = Field(None, min_length=1, description="another model there for boundaries")
    consolidation_model: str | None = Field(None, min_length=1, description="another model there for summaries")
    relations_model: str | None = Field(None, min_length=1, description="another model there for relations")
    chat_key: SecretStr | None = Field(None, description="the endpoint's key; never shown")
    chat_key_file: Path | None = Field(None, description="a file that holds the key, instead")
    chat_ca_file: Path | None = Field(
        None,
        description="certificates (PEM) of the authorities that the endpoint's is checked by; default: the system's",
    )
    chat_tokenizer: Path | None = Field(
        None, description="the model's tokenizer.json, or its folder; default: the endpoint counts, or bytes do"
    )
    chat_context_tokens: int | None = Field(
        None, ge=1024, description="the model's context; default: what the endpoint says, else 8,192"
    )
    chat_guided: bool = Field(True, description="ask the model to decode along the answer's JSON schema")
    chat_temperature: float = Field(0.0, ge=0, le=2, description="sampling; 0 says the likeliest *")
    chat_seed: int | None = Field(0, description="of sampling, where the endpoint takes one")
    chat_timeout_seconds: float = Field(120, gt=0, le=3600, description="how long one call may take *")
    chat_tries: int = Field(3, ge=1, le=10, description="calls for one question before its task is parked *")
    chat_concurrency: int = Field(32, ge=1, le=4096, description="calls under way at a time, at most, in all *")
    chat_tenant_tokens_per_minute: int | None = Field(
        None, ge=1, description="tokens of one tenant, in and out; its tasks wait while they are used up"
    )
    chat_off_tenants: tuple[str, ...] = Field((), description="tenants whose memory rules make, whatever is set above")

    vllm_model: str | None = Field(
        None, min_length=1, description="a model for vLLM replicas on Ray: a folder, or a name that vLLM finds"
    )
    chat_replicas: int = Field(1, ge=1, le=256, description="vLLM replicas on Ray *")
    chat_gpus: float = Field(0, ge=0, le=64, description="GPUs of each; 0 is the CPU build")
    chat_start_seconds: float = Field(900, gt=0, le=7200, description="a replica that starts may take so long *")
    vllm_max_num_seqs: int = Field(32, ge=1, le=4096, description="requests that one replica decodes together *")
    vllm_options: dict[str, Any] = Field({}, description="further arguments of vLLM's engine, by their names")

    @property
    def chats(self) -> bool:
        """Whether a chat model is named."""
        return self.chat_url is not None or self.vllm_model is not None

    def thinks(self, port: str) -> bool:
        """Whether the chat model serves a port, one of `PORTS`."""
        chosen = getattr(self, port)
        return self.chats if chosen is None else bool(chosen == "llm")

    def model_for(self, port: str) -> str | None:
        """The endpoint's model that serves a port, None for its only one."""
        named: str | None = getattr(self, f"{port}_model")
        return named or self.chat_model

    def check_chat(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            Misconfigured: the message says which settings and what to do.
        """
        if self.chat_url is not None and self.vllm_model is not None:
            raise Misconfigured("chat_url and vllm_model both name a chat model; leave one out")
        if not self.chats:
            asked = [f"{port} = llm" for port in PORTS if getattr(self, port) == "llm"]
            asked += [f"{port}_model" for port in PORTS if getattr(self, f"{port}_model")]
            if asked:
                raise Misconfigured(
                    f"{', '.join(asked)} asks for a chat model, and none is named: set chat_url (an endpoint) or "
                    "vllm_model (replicas on Ray)"
                )
        if self.vllm_model is not None and any(getattr(self, f"{port}_model") for port in PORTS):
            raise Misconfigured(
                "boundaries_model, consolidation_model and relations_model name models of an endpoint (chat_url); "
                "vLLM replicas serve one model"
            )

    def chat_secret(self) -> SecretStr | None:
        """The key, from the setting or from its file.

        Raises:
            Misconfigured: both are given, or the file cannot be read.
        """
        if self.chat_key_file is None:
            return self.chat_key
        if self.chat_key is not None:
            raise Misconfigured("chat_key and chat_key_file are both set; leave one out")
        try:
            return SecretStr(self.chat_key_file.read_text(encoding="utf-8").rstrip("\r\n"))
        except (OSError, UnicodeDecodeError) as error:
            raise Misconfigured(f"chat_key_file {self.chat_key_file} cannot be read: {error}") from None
