"""What is known of a model without its weights: name, context, tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raygam.adapters.model_folder import LocalTokenizer, context_of, model_name
from raygam.adapters.vllm_chat import VllmOptions
from raygam.memory.errors import Misconfigured


def folder_with(path: Path, **config: Any) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize(
    ("config", "given", "context"),
    [
        ({"max_position_embeddings": 8192}, None, 8192),
        ({"max_position_embeddings": 8192}, 2048, 2048),
        ({"n_positions": 1024}, None, 1024),
        ({"text_config": {"max_position_embeddings": 4096}}, None, 4096),
        ({}, 2048, 2048),
    ],
)
def test_the_context_is_what_a_person_says_else_what_the_model_says(
    tmp_path: Path, config: dict[str, Any], given: int | None, context: int
) -> None:
    assert context_of(folder_with(tmp_path / "small", **config), given) == context


def test_where_nobody_says_it_the_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="set chat_context_tokens"):
        context_of(folder_with(tmp_path / "small", vocab_size=10), None)


def test_a_model_that_is_not_there_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"nowhere has no config\.json here.*vllm_model"):
        context_of(str(tmp_path / "nowhere"), None)


def test_a_folder_is_called_by_its_own_name(tmp_path: Path) -> None:
    assert model_name(folder_with(tmp_path / "Small-Instruct")) == "Small-Instruct"
    assert model_name("somebody/Small-Instruct") == "somebody/Small-Instruct"


def test_tokens_are_counted_without_those_that_frame_a_text(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    folder = folder_with(tmp_path / "small")
    tokenizer: Any = Tokenizer(models.WordLevel({"[UNK]": 0, "<s>": 1, "one": 2, "two": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.enable_truncation(max_length=2)
    tokenizer.save(str(tmp_path / "small" / "tokenizer.json"))
    counter = LocalTokenizer(folder)
    assert counter.count("one two one two") == 4
    assert counter.count("") == 0


def test_without_a_tokenizer_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"tokenizer\.json"):
        LocalTokenizer(folder_with(tmp_path / "small"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"kv_cache_memory_bytes": 4 * 1024**3}),
        ({"gpus": 0.25}, {"gpu_memory_utilization": 0.225}),
        ({"gpus": 1}, {}),
        ({"gpus": 2}, {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}),
        ({"gpus": 0.5, "engine": {"gpu_memory_utilization": 0.3}}, {"gpu_memory_utilization": 0.3}),
    ],
)
def test_the_engine_takes_its_share_of_the_machine(
    options: dict[str, Any], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    arguments = VllmOptions("somebody/small", 2048, 16, **options).engine_arguments()
    assert (arguments["model"], arguments["max_model_len"], arguments["max_num_seqs"]) == ("somebody/small", 2048, 16)
    share = ("kv_cache_memory_bytes", "gpu_memory_utilization", "tensor_parallel_size", "distributed_executor_backend")
    assert {name: arguments[name] for name in share if name in arguments} == expected
