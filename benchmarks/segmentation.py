"""Boundary errors on DialSeg711: how well topic changes are found without training.

    python -m benchmarks.segmentation --data dialseg711.json --json OUT
    python -m benchmarks.segmentation --data dialseg711.json --detector llm --endpoint http://127.0.0.1:8000/v1 --json OUT

The file is a list of `{"utterances": [text, …], "segments": [length, …]}`; roles alternate
user, assistant. Pk and WindowDiff: per dialogue, window half its mean reference segment,
mean over dialogues. `boundary_f1` is micro-averaged over exact positions. A chat model is asked once
for each dialogue; one whose answers never fit counts as having seen no boundary, and is reported as `failed`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from benchmarks.chat_endpoint import chat_for
from benchmarks.results import Results
from raygam.adapters.minilm_embedder import MiniLMEmbedder
from raygam.memory.boundaries import TextTiling
from raygam.memory.chat import ModelCall
from raygam.memory.errors import BadAnswer, Misconfigured, ModelAway
from raygam.memory.judges import ChatDetector
from raygam.memory.model import Event, User
from raygam.memory.ports import BoundaryDetector, Embedder
from raygam.pipeline.asking import Asker

DETECTORS: dict[str, Callable[[], BoundaryDetector]] = {"text-tiling": TextTiling}
LLM = "llm"
SOURCE = (
    "DialSeg711 comes with Xu et al. 2021, “Topic-Aware Multi-turn Dialogue Modeling” (https://github.com/xyease/TADAM); "
    'expected is a JSON list of {"utterances": [text, …], "segments": [length, …]}'
)
_ROLES = ("user", "assistant")
_BATCH = 256
_ASK_SECONDS = 600.0

console = Console(stderr=True)
app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A dialogue and its reference cuts (first event of each new segment, the first excepted)."""

    events: list[Event]
    cuts: list[int]


class OddFile(Exception):
    """The data file is missing or has another form; the text says what is wrong."""


def load(path: Path) -> list[Dialogue]:
    """Read the dialogues.

    Raises:
        OddFile: no such file, or it has another form.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OddFile(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise OddFile(f"{path} is not JSON: {error}") from error
    if not isinstance(document, list) or not document:
        raise OddFile(f"{path} holds no list of dialogues")
    return [_dialogue(entry, number, path) for number, entry in enumerate(document)]


def _dialogue(entry: Any, number: int, path: Path) -> Dialogue:
    utterances = entry.get("utterances") if isinstance(entry, dict) else None
    segments = entry.get("segments") if isinstance(entry, dict) else None
    if not (isinstance(utterances, list) and utterances and all(isinstance(text, str) for text in utterances)):
        raise OddFile(f"{path}: dialogue {number} has no list of texts under `utterances`")
    lengths = isinstance(segments, list) and all(type(length) is int and length > 0 for length in segments)
    if not isinstance(segments, list) or not lengths or sum(segments) != len(utterances):
        raise OddFile(f"{path}: dialogue {number} needs `segments`, positive lengths that add up to its utterances")
    user = User("default", f"dialogue-{number}")
    events = [
        Event(user, at + 1, f"{number}-{at}", "s", _ROLES[at % 2], _ROLES[at % 2], text, at * 1_000_000)
        for at, text in enumerate(utterances)
    ]
    return Dialogue(events, [int(cut) for cut in np.cumsum(segments)[:-1]])


def half_segment(length: int, reference: Sequence[int]) -> int:
    """The window: half the mean reference segment in events, rounded as Python rounds, at least 1."""
    return max(1, round(length / (len(reference) + 1) / 2))


def pk(length: int, reference: Sequence[int], found: Sequence[int], window: int) -> float:
    """Share of pairs `window` events apart on which both disagree whether a cut lies between (Beeferman et al.)."""
    wanted, given = _between(length, reference, window), _between(length, found, window)
    return float(np.mean((wanted > 0) != (given > 0))) if wanted.size else 0.0


def window_diff(length: int, reference: Sequence[int], found: Sequence[int], window: int) -> float:
    """Share of pairs `window` events apart between which the numbers of cuts differ (Pevzner and Hearst)."""
    wanted, given = _between(length, reference, window), _between(length, found, window)
    return float(np.mean(wanted != given)) if wanted.size else 0.0


def boundary_f1(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
    """F1 of exact cut positions over all dialogues' `(reference, found)`; 1 if there is nothing to find or found."""
    hits = sum(len(set(reference) & set(found)) for reference, found in pairs)
    total = sum(len(reference) + len(found) for reference, found in pairs)
    return 2 * hits / total if total else 1.0


def _between(length: int, cuts: Sequence[int], window: int) -> NDArray[np.int64]:
    """Cuts between event `i` and event `i + window`, for each `i`."""
    here = np.zeros(length, dtype=np.int64)
    here[list(cuts)] = 1
    passed = np.cumsum(here)
    return passed[window:] - passed[:-window]


def embed(dialogues: Sequence[Dialogue], embedder: Embedder) -> list[NDArray[np.float32]]:
    """Embed all events, each text once; one matrix per dialogue."""
    texts = sorted({event.embedded_text for dialogue in dialogues for event in dialogue.events}, key=len)
    vectors: dict[str, NDArray[np.float32]] = {}
    with Progress(console=console) as progress:
        bar = progress.add_task("embedding", total=len(texts))
        for start in range(0, len(texts), _BATCH):
            part = texts[start : start + _BATCH]
            vectors.update(zip(part, embedder.embed(part), strict=True))
            progress.advance(bar, len(part))
    return [np.stack([vectors[event.embedded_text] for event in dialogue.events]) for dialogue in dialogues]


def measure(
    dialogues: Sequence[Dialogue], vectors: Sequence[NDArray[np.float32]], detector: BoundaryDetector, force: bool
) -> dict[str, float]:
    """Return pk, window_diff, boundary_f1 and turns_per_second (the detector alone)."""
    found: list[list[int]] = []
    started = time.perf_counter()
    for dialogue, matrix in zip(dialogues, vectors, strict=True):
        found.append([cut.index for cut in detector.boundaries(dialogue.events, matrix, force=force)])
    return figures_of(dialogues, found, time.perf_counter() - started)


def measure_llm(results: Results, dialogues: Sequence[Dialogue], asker: Asker) -> None:
    """Ask a chat model for each dialogue's boundaries, many at a time; add its figures."""
    calls: list[ModelCall] = []
    failed = 0

    def ask(dialogue: Dialogue) -> list[int] | None:
        each = asker.for_task(dialogue.events[0].user, {}, calls.append, time.monotonic() + _ASK_SECONDS)
        vectors = np.zeros((len(dialogue.events), 1), dtype=np.float32)
        try:
            found = ChatDetector(each, TextTiling()).boundaries(dialogue.events, vectors, force=False)
        except BadAnswer:
            return None
        return [cut.index for cut in found]

    started = time.perf_counter()
    found: list[list[int]] = []
    with ThreadPoolExecutor(asker.limits.concurrency) as pool, Progress(console=console) as progress:
        bar = progress.add_task(f"asking {asker.model.name}", total=len(dialogues))
        try:
            for cuts in pool.map(ask, dialogues):
                failed += cuts is None
                found.append(cuts or [])
                progress.advance(bar)
        finally:
            asker.close()  # whoever is still asked is not waited for
    figures = figures_of(dialogues, found, time.perf_counter() - started)
    params = {"detector": LLM, "model": asker.model.name, "force": False, "dialogues": len(dialogues)}
    for metric, value in figures.items():
        results.add(metric, value, "turns/s" if metric == "turns_per_second" else "fraction", **params)
    results.add("failed", failed, "dialogues", **params)
    results.add("llm_calls", sum(call.calls for call in calls), "calls", **params)
    results.add("llm_tokens", sum(call.prompt_tokens for call in calls), "tokens", kind="prompt", **params)
    results.add("llm_tokens", sum(call.completion_tokens for call in calls), "tokens", kind="completion", **params)


def figures_of(dialogues: Sequence[Dialogue], found: Sequence[Sequence[int]], seconds: float) -> dict[str, float]:
    """Return pk, window_diff, boundary_f1 and turns_per_second of these cuts."""
    errors: list[tuple[float, float]] = []
    for dialogue, cuts in zip(dialogues, found, strict=True):
        length, window = len(dialogue.events), half_segment(len(dialogue.events), dialogue.cuts)
        errors.append((pk(length, dialogue.cuts, cuts, window), window_diff(length, dialogue.cuts, cuts, window)))
    means = np.mean(errors, axis=0)
    return {
        "pk": float(means[0]),
        "window_diff": float(means[1]),
        "boundary_f1": boundary_f1([(dialogue.cuts, cuts) for dialogue, cuts in zip(dialogues, found, strict=True)]),
        "turns_per_second": sum(len(dialogue.events) for dialogue in dialogues) / max(seconds, 1e-9),
    }


@app.command()
def main(
    data: Annotated[Path, typer.Option(help="DialSeg711 as JSON (github.com/xyease/TADAM).")],
    detector: Annotated[str, typer.Option(help=f"One of: {', '.join((*DETECTORS, LLM))}.")] = "text-tiling",
    endpoint: Annotated[str | None, typer.Option(help="For llm: an OpenAI-compatible endpoint, with its /v1.")] = None,
    model: Annotated[str | None, typer.Option(help="For llm: the model's name; default: the first it lists.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="For llm: a file with the endpoint's key.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="For llm: calls under way at a time.")] = 16,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N dialogues.")] = None,
    seed: Annotated[int, typer.Option(help="Recorded with the results; nothing here is random.")] = 7,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the results here; - is stdout.")] = None,
) -> None:
    """Measure boundary errors on DialSeg711."""
    if detector not in (*DETECTORS, LLM):
        raise typer.BadParameter(f"{detector!r} is none of: {', '.join((*DETECTORS, LLM))}", param_hint="--detector")
    if (endpoint is not None) != (detector == LLM):
        raise typer.BadParameter("--detector llm and --endpoint go together", param_hint="--endpoint")
    results = Results("segmentation", seed)
    try:
        dialogues = load(data)[:limit]
        if endpoint is not None:
            measure_llm(results, dialogues, chat_for(endpoint, model, key_file, concurrency=concurrency))
            results.show()
            results.write(json_out)
            return
        vectors = embed(dialogues, MiniLMEmbedder())
    except OddFile as error:
        console.print(f"error: {error}\n{SOURCE}", style="red", markup=False)
        raise typer.Exit(2) from error
    except (Misconfigured, ModelAway) as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from error
    for force in (False, True):
        figures = measure(dialogues, vectors, DETECTORS[detector](), force)
        params = {"detector": detector, "force": force, "dialogues": len(dialogues)}
        for metric, value in figures.items():
            unit = "turns/s" if metric == "turns_per_second" else "fraction"
            results.add(metric, value, unit, **params)
    results.show()
    results.write(json_out)


if __name__ == "__main__":
    app()
