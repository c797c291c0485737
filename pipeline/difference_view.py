"""How a person sees what `raygam reconsolidate` did and what would change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from . import display

_USERS_SHOWN = 20
_CHANGES_SHOWN = 50


def print_report(found: Mapping[str, Any]) -> None:
    """Print what was done, what would change, and what to do next."""
    if found["action"] == "discard":
        _line(f"dropped: what was made anew, of {found['discarded']:,} users")
        return
    if found["action"] == "switch":
        _line(f"switched to the topics of {found['model']}: {found['switched']:,} users")
        return
    for user in found["differences"]:
        if "changes" in user:
            _print_changes(user["changes"])
    _print_users(found["differences"])
    _line(f"users made anew by {found['model']}: {found['built']:,}, and {found['kept']:,} that were so already")
    for of in ("topics", "relations"):
        _line(_sentence(found, of))
    for failed in found["failed"]:
        display.note(f"not made: user {failed['user_id']} (tenant {failed['tenant']}): {failed['error']}")
    if found["interrupted"]:
        display.note("stopped before the end; the same command goes on from here")
    elif not found["failed"] and any(user["topics"] for user in found["differences"]):
        display.note("nothing of it is read yet: run it again with --switch, or with --discard")


def _print_users(users: Sequence[Mapping[str, Any]]) -> None:
    shown = [user for user in users if user["topics"]]
    shown.sort(key=lambda user: -sum(user[of][name] for of in ("topics", "relations") for name in _MARKS))
    if not shown:
        return
    title = "what would change" if len(shown) <= _USERS_SHOWN else f"what would change most, of {len(shown):,} users"
    table = Table(title=title, title_justify="left")
    table.add_column("user", overflow="fold")
    table.add_column("topics", justify="right")
    table.add_column("added, gone, changed", justify="right")
    table.add_column("relations", justify="right")
    table.add_column("added, gone, changed", justify="right")
    for user in shown[:_USERS_SHOWN]:
        tenant = "" if user["tenant"] == "default" else f" (tenant {user['tenant']})"
        cells = [escape(user["user_id"] + tenant)]
        for of in ("topics", "relations"):
            counts = user[of]
            cells += [f"{counts['before']} → {counts['after']}", ", ".join(str(counts[name]) for name in _MARKS)]
        table.add_row(*cells)
    display.output.print(table)


_MARKS = {"added": "+", "gone": "-", "changed": "~"}


def _print_changes(changes: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    topics = Table(title="topics", title_justify="left", show_lines=True)
    for column in ("", "time", "what", "now", "then"):
        topics.add_column(column, overflow="fold")
    for change in changes["topics"][:_CHANGES_SHOWN]:
        fields = ", ".join(change["fields"]) or change["what"]
        topics.add_row(
            _MARKS[change["what"]],
            change["first"][:10],
            fields,
            *(_topic(change[side], change["fields"]) for side in ("before", "after")),
        )
    relations = Table(title="relations, by the episodes of their topics", title_justify="left")
    for column in ("", "from", "to", "now", "then"):
        relations.add_column(column)
    for change in changes["relations"][:_CHANGES_SHOWN]:
        relations.add_row(
            _MARKS[change["what"]],
            change["source_episode"][:8],
            change["target_episode"][:8],
            *(_relation(change[side]) for side in ("before", "after")),
        )
    for of, table in (("topics", topics), ("relations", relations)):
        if changes[of]:
            display.output.print(table)
        if len(changes[of]) > _CHANGES_SHOWN:
            display.note(f"showing {_CHANGES_SHOWN} of {len(changes[of]):,} {of}; --json has all")


def _topic(topic: Mapping[str, Any] | None, fields: Sequence[str]) -> str:
    if topic is None:
        return ""
    lines = [topic["summary"], ", ".join(topic["keywords"])]
    lines += [f"{name}: {topic[name]}" for name in fields if name not in ("summary", "keywords", "superseded_by")]
    return escape("\n".join(filter(None, lines)))


def _relation(held: Mapping[str, Any] | None) -> str:
    return "" if held is None else f"{held['type']} {held['confidence']:.2f}"


def _sentence(found: Mapping[str, Any], of: str) -> str:
    counts = found[of]
    return (
        f"{of}: {counts['before']:,} → {counts['after']:,} ({', '.join(f'{counts[name]:,} {name}' for name in _MARKS)})"
    )


def _line(text: str) -> None:
    display.output.print(text, highlight=False, markup=False, soft_wrap=True)
