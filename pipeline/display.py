"""How results look to a person: tables and lines on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

errors = Console(stderr=True)
"""Where everything goes that is no result: progress, notes, errors."""

output = Console() if sys.stdout.isatty() else Console(width=160)
"""Where results go, unless `--json` asks for one object; into a file or a pipe, wide enough for every table."""

_CONTROLS = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    127: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


def note(text: str, style: str = "yellow") -> None:
    """Tell the person something beside the result, as it is: no markup, no line broken inside a path."""
    errors.print(shown(text), style=style, markup=False, highlight=False, soft_wrap=True)


def shown(value: Any) -> Any:
    """The same document with control characters as pictures: dialogue must not command a terminal."""
    if isinstance(value, str):
        return value.translate(_CONTROLS)
    if isinstance(value, Mapping):
        return {name: shown(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value


def users_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Turns, episodes, topics and relations per user."""
    table = Table(title=title, title_justify="left")
    table.add_column("user", overflow="fold")
    for name in ("turns", "episodes", "topics", "relations"):
        table.add_column(name, justify="right")
    for row in rows:
        tenant = "" if row["tenant"] == "default" else f" (tenant {row['tenant']})"
        table.add_row(
            escape(row["user_id"] + tenant), *(str(row[name]) for name in ("turns", "episodes", "topics", "relations"))
        )
    return table


def memories_view(answer: Mapping[str, Any], *, explain: bool) -> RenderableType:
    """Ranked memories: place, time, speaker, text; with `explain` their factors and path."""
    if not answer["memories"]:
        return Text("no memories", style="yellow")
    parts: list[RenderableType] = []
    for place, memory in enumerate(answer["memories"], start=1):
        line = Text()
        line.append(f"{place:>2}  ", style="bold")
        line.append(memory["timestamp"].replace("T", " ").removesuffix("Z")[:16], style="cyan")
        line.append(f"  {memory['speaker']}: ", style="bold")
        line.append(memory["text"])
        for attachment in memory["attachments"]:
            line.append(f"  [caption of an attachment: {attachment['caption']}]", style="magenta")
        if memory["origin"] == "recalled":
            line.append("  (recalled)", style="dim")
        if memory.get("superseded"):
            line.append("  (past: superseded)", style="yellow")
        parts.append(line)
        for date in memory["dates"]:
            span = date["start"] if date["start"] == date["end"] else f"{date['start']} to {date['end']}"
            parts.append(Text(f"      “{date['text']}” is {span}", style="green"))
        parts.append(Text(f"      {_score(memory)}", style="dim"))
        if explain:
            parts.append(Text(f"      {_path(memory['path'])}", style="dim"))
    return Group(*parts)


def _score(memory: Mapping[str, Any]) -> str:
    """The score and the factors that moved it; one of 1 moves nothing."""
    moved = [f"{name} {value:.3g}" for name, value in memory["factors"].items() if name == "semantic" or value != 1]
    return f"score {memory['score']:.3f} = {' × '.join(moved)}   ref {memory['message_id']}"


def _path(path: Mapping[str, Any]) -> str:
    steps = [f"{name} {value if name == 'event' else value[:8]}" for name, value in path.items() if value]
    return "path: " + " → ".join(steps)


def user_view(document: Mapping[str, Any]) -> RenderableType:
    """Topics, relations, episodes with their cuts, and live buffers of one user."""
    names = {topic["id"]: topic["id"][:8] for topic in document["topics"]}
    topics = Table(title="topics", title_justify="left", show_lines=False)
    for column in ("id", "time", "keywords", "summary"):
        topics.add_column(column, overflow="fold")
    for topic in document["topics"]:
        past = " (past)" if topic["superseded_by"] else ""
        topics.add_row(
            names[topic["id"]] + past,
            topic["first"][:10],
            escape(", ".join(topic["keywords"])),
            escape(topic["summary"]),
        )
    relations = Table(title="relations", title_justify="left")
    for column in ("from", "type", "to", "confidence"):
        relations.add_column(column)
    for relation in document["relations"]:
        relations.add_row(
            names.get(relation["source"], relation["source"][:8]),
            relation["type"],
            names.get(relation["target"], relation["target"][:8]),
            f"{relation['confidence']:.2f}",
        )
    episodes = Table(title="episodes", title_justify="left")
    for column in ("id", "session", "first event", "events", "trigger", "detector", "confidence", "reason"):
        episodes.add_column(column, overflow="fold", justify="right" if column == "events" else "left")
    for episode in document["episodes"]:
        episodes.add_row(
            episode["id"][:8],
            escape(episode["session_id"]),
            episode["first"].replace("T", " ")[:16],
            str(len(episode["events"])),
            episode["trigger"],
            episode["detector"],
            f"{episode['confidence']:.2f}",
            escape(episode["reason"]),
        )
    parts: list[RenderableType] = [topics, relations, episodes]
    if document["buffers"]:
        buffers = Table(title="live buffers", title_justify="left")
        for column in ("session", "events", "tokens", "first event", "last event"):
            buffers.add_column(column)
        for buffer in document["buffers"]:
            buffers.add_row(
                escape(buffer["session_id"]),
                str(len(buffer["events"])),
                str(buffer["tokens"]),
                buffer["first"],
                buffer["last"],
            )
        parts.append(buffers)
    for task in document["tasks"]:
        parts.append(Text(f"task {task['id'][:8]} {task['status']} ({task['trigger']}) {task['error'] or ''}"))
    return Group(*parts)


def dead_letters_table(letters: Sequence[Mapping[str, Any]], total: int) -> Table:
    """Records put aside: where they came from, why, and how they begin."""
    table = Table(title=f"{total} dead letters", title_justify="left")
    table.add_column("source", overflow="fold")
    table.add_column("at", justify="right", no_wrap=True)  # an offset is one of a partition
    for column in ("reason", "detail", "bytes", "replayed"):
        table.add_column(column, overflow="fold")
    for letter in letters:
        table.add_row(
            escape(letter["source_name"] or letter["source"]),
            f"{letter['partition']}:{letter['offset']}",
            letter["reason"],
            escape(letter["detail"]),
            escape(letter["text"][:80]),
            "" if letter["replay"] is None else "yes" if letter["replayed"] else "begun",
        )
    return table


def doctor_view(found: Mapping[str, Any]) -> RenderableType:
    """What `doctor` found, one table per heading."""
    parts: list[RenderableType] = [Text(f"Python {found['python']}")]
    headings = ("machine", "versions", "models", "devices", "environment", "state", "asked_of_chat_models", "settings")
    for heading in headings:
        if not found.get(heading):
            continue
        table = Table(title=heading.replace("_", " "), title_justify="left", show_header=False)
        table.add_column("name")
        table.add_column("value", overflow="fold")
        for name, value in found[heading].items():
            table.add_row(escape(name), escape("not installed" if value is None else str(value)))
        parts.append(table)
    return Group(*parts)


def print_json(document: dict[str, Any]) -> None:
    """Print one object on standard output, now."""
    text = json.dumps(document, ensure_ascii=False)
    try:
        sys.stdout.write(text + "\n")
    except UnicodeEncodeError:  # a terminal that is not UTF-8, or an argument that was no text
        sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
