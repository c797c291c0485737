"""How much of a question's evidence retrieval finds, on LoCoMo.

    python -m benchmarks.locomo_retrieval --data locomo10.json --mode gam,flat --json OUT

Each conversation is one user's memory, ingested through the whole pipeline without an
LLM; each question is a query. Definitions are those of docs/design/retrieval.md.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks import locomo
from benchmarks.results import Results
from raygam import Memory
from raygam.memory.ports import Embedder
from raygam.memory.retrieval import MODES
from raygam.memory.text import count_tokens as plain_tokens
from raygam.pipeline import runtime
from raygam.pipeline.config import read_settings

LARGE_MEMORY = 600
"""Shares and latency are stated for memories of at least this many events."""

console = Console(stderr=True)
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Answer:
    """What one query found, and what it should have found."""

    conversation: str
    category: int
    found: list[str]
    evidence: frozenset[str]
    found_sessions: list[str]
    evidence_sessions: frozenset[str]
    candidate_share: float
    context_tokens: int
    events: int
    overhead_ms: float


def recall(found: Sequence[str], evidence: frozenset[str], depth: int) -> float:
    """Fraction of the evidence among the first `depth`."""
    return len(evidence & set(found[:depth])) / len(evidence)


def reciprocal_rank(found: Sequence[str], evidence: frozenset[str]) -> float:
    """One over the place of the first evidence; 0 if none is there."""
    return next((1 / place for place, ref in enumerate(found, start=1) if ref in evidence), 0.0)


def ndcg(found: Sequence[str], evidence: frozenset[str], depth: int) -> float:
    """Discounted gain over that of a ranking with all evidence in front."""
    gain = sum(1 / math.log2(place + 1) for place, ref in enumerate(found[:depth], start=1) if ref in evidence)
    return gain / sum(1 / math.log2(place + 1) for place in range(1, min(depth, len(evidence)) + 1))


def ask(
    memory: Memory,
    conversation: locomo.Conversation,
    mode: str,
    depth: int,
    embedder: Embedder,
    count_tokens: Callable[[str], int],
) -> Iterable[Answer]:
    """Put every question of a conversation to its memory.

    Each question is embedded once more right after its search: the difference is what the
    search takes beyond embedding, whatever else the machine does.
    """
    session_of = conversation.session_of
    for question in conversation.questions:
        started = time.perf_counter()
        result = memory.search(conversation.name, question.text, k=depth, mode=mode)
        searched = time.perf_counter()
        embedder.embed([question.text])
        embedded = time.perf_counter()
        found = [ranked.event.message_id for ranked in result.memories]
        yield Answer(
            conversation.name,
            question.category,
            found,
            question.evidence,
            list(dict.fromkeys(session_of[message_id] for message_id in found)),
            frozenset(session_of[message_id] for message_id in question.evidence),
            result.candidate_share,
            count_tokens(memory.context(result)),
            len(conversation.turns),
            ((searched - started) - (embedded - searched)) * 1000,
        )


def report(results: Results, answers: Sequence[Answer], mode: str, depth: int) -> None:
    """Add the rows of one mode, all categories and conversations first."""
    conversations = dict.fromkeys(answer.conversation for answer in answers)
    scopes: list[tuple[str, str, list[Answer]]] = [
        ("1-4", "all", [answer for answer in answers if answer.category in locomo.CATEGORIES])
    ]
    scopes += [
        (str(category), "all", [answer for answer in answers if answer.category == category])
        for category in locomo.CATEGORIES
    ]
    scopes += [
        ("1-4", name, [a for a in answers if a.conversation == name and a.category in locomo.CATEGORIES])
        for name in conversations
    ]
    for categories, conversation, scope in scopes:
        if scope:
            _report_scope(results, scope, mode, depth, categories, conversation)


def _report_scope(
    results: Results, scope: Sequence[Answer], mode: str, depth: int, categories: str, conversation: str
) -> None:
    for granularity in ("turn", "session"):
        pairs = [
            (a.found, a.evidence) if granularity == "turn" else (a.found_sessions, a.evidence_sessions) for a in scope
        ]
        figures = {
            f"recall@{depth}": [recall(found, evidence, depth) for found, evidence in pairs],
            "hit@1": [float(bool(found) and found[0] in evidence) for found, evidence in pairs],
            "mrr": [reciprocal_rank(found, evidence) for found, evidence in pairs],
            f"ndcg@{depth}": [ndcg(found, evidence, depth) for found, evidence in pairs],
        }
        for metric, values in figures.items():
            results.add(
                metric,
                statistics.fmean(values),
                "fraction",
                mode=mode,
                granularity=granularity,
                categories=categories,
                conversation=conversation,
                questions=len(values),
            )
    if categories != "1-4":
        return
    params = {"mode": mode, "categories": categories, "conversation": conversation, "k": depth}
    large = [answer for answer in scope if answer.events >= LARGE_MEMORY]
    if large:
        shares = [answer.candidate_share for answer in large]
        results.add(
            "candidate_share",
            statistics.fmean(shares),
            "fraction",
            **params,
            max=round(max(shares), 4),
            min_events=LARGE_MEMORY,
        )
        overhead = statistics.median(answer.overhead_ms for answer in large)
        results.add("overhead_ms_p50", overhead, "ms", **params, min_events=LARGE_MEMORY)
    results.add("context_tokens", statistics.fmean(answer.context_tokens for answer in scope), "tokens", **params)


@app.command()
def main(
    data: Annotated[Path, typer.Option(help="LoCoMo's JSON file (snap-research/locomo).")],
    mode: Annotated[str, typer.Option(help="Modes, separated by commas; the first is the headline.")] = "gam,flat",
    k: Annotated[int, typer.Option(min=1, help="Depth of the ranking.")] = 10,
    embedder: Annotated[str, typer.Option(help="minilm or stub")] = "minilm",
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the results here; - is stdout.")] = None,
) -> None:
    """Measure evidence recall per turn and per session."""
    modes = [name.strip() for name in mode.split(",") if name.strip()]
    unknown = [name for name in modes if name not in MODES]
    if unknown or not modes:
        console.print(f"unknown mode {', '.join(unknown) or '(none)'}; choose from {', '.join(MODES)}", style="red")
        raise typer.Exit(2)
    try:
        conversations = locomo.load(data)
    except locomo.OddData as odd:
        console.print(str(odd), style="red", markup=False)
        raise typer.Exit(2) from None
    results = Results("locomo_retrieval", seed=0)
    model = runtime.make_embedder(embedder, read_settings(embedder=embedder))
    count_tokens: Callable[[str], int] = getattr(model, "count_tokens", plain_tokens)
    answers: dict[str, list[Answer]] = {name: [] for name in modes}
    with (
        tempfile.TemporaryDirectory(prefix="raygam-locomo-") as folder,
        Memory(Path(folder) / "state", embedder=embedder) as memory,
        Progress(console=console) as progress,
    ):
        work = progress.add_task("conversations", total=len(conversations) * (1 + len(modes)))
        for conversation in conversations:
            progress.update(work, description=f"{conversation.name}: {len(conversation.turns)} turns")
            memory.add(conversation.turns)
            memory.flush(conversation.name)
            progress.advance(work)
            for name in modes:
                answers[name].extend(ask(memory, conversation, name, k, model, count_tokens))
                progress.advance(work)
    for name in modes:
        report(results, answers[name], name, k)
    results.show()
    results.write(json_out)


if __name__ == "__main__":
    app()
