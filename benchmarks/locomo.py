"""LoCoMo as benchmarks read it: conversations as turns, questions with their evidence.

LoCoMo is by Maharana et al. (ACL 2024), on GitHub at snap-research/locomo
(`data/locomo10.json`), under CC BY-NC 4.0; it is not part of raygam.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

SOURCE = (
    "LoCoMo is by Maharana et al. 2024 (CC BY-NC 4.0): get data/locomo10.json from "
    "https://github.com/snap-research/locomo and give its path as --data"
)
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop"}
"""The answerable ones; category 5 is adversarial."""
TURN_SPACING = timedelta(seconds=30)
"""Turns of a session carry no time of their own; at this distance no pause is made."""

_EVIDENCE = re.compile(r"D\d+:\d+")
_SESSION = re.compile(r"session_(\d+)")


class OddData(Exception):
    """The file is missing or is not LoCoMo; the message says what to do."""


@dataclass(frozen=True)
class Question:
    """A question; `evidence` holds the ids that exist, `category` is 1 to 5."""

    text: str
    category: int
    evidence: frozenset[str]


@dataclass(frozen=True)
class Conversation:
    """A conversation as turns of one user, and its questions with evidence."""

    name: str
    turns: list[dict[str, Any]]
    questions: list[Question]

    @property
    def session_of(self) -> dict[str, str]:
        return {turn["message_id"]: turn["session_id"] for turn in self.turns}


def load(path: Path) -> list[Conversation]:
    """Read a LoCoMo file.

    Raises:
        OddData: it is missing, unreadable or has another form.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OddData(f"cannot read {path}: {error.strerror}. {SOURCE}.") from None
    except ValueError as error:
        raise OddData(f"{path} is not JSON ({error}). {SOURCE}.") from None
    if not isinstance(document, list) or not document:
        raise OddData(f"{path} is not a list of conversations. {SOURCE}.")
    try:
        found = [_conversation(entry, at) for at, entry in enumerate(document)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OddData(f"{path} does not have the form of LoCoMo ({type(error).__name__}: {error}). {SOURCE}.") from None
    if not any(conversation.questions for conversation in found):
        raise OddData(f"{path} has no question with evidence. {SOURCE}.")
    return found


def _conversation(entry: Mapping[str, Any], at: int) -> Conversation:
    name = str(entry.get("sample_id", f"conversation-{at}"))
    turns = _turns(entry["conversation"], name)
    known = {turn["message_id"] for turn in turns}
    questions = [
        Question(question["question"], int(question["category"]), evidence)
        for question in entry["qa"]
        if (evidence := frozenset(_EVIDENCE.findall(json.dumps(question.get("evidence")))) & known)
    ]
    return Conversation(name, turns, questions)


def _turns(conversation: Mapping[str, Any], user_id: str) -> list[dict[str, Any]]:
    sessions = sorted(int(match[1]) for key in conversation if (match := _SESSION.fullmatch(key)))
    turns: list[dict[str, Any]] = []
    for number in sessions:
        start = _session_time(conversation[f"session_{number}_date_time"])
        for place, turn in enumerate(conversation[f"session_{number}"]):
            caption = turn.get("blip_caption")
            turns.append(
                {
                    "message_id": turn["dia_id"],
                    "user_id": user_id,
                    "session_id": f"session_{number}",
                    "speaker": turn["speaker"],
                    "role": "user",
                    "text": turn["text"],
                    "timestamp": (start + place * TURN_SPACING).isoformat(),
                    "attachments": [{"type": "image", "caption": caption}] if caption else [],
                }
            )
    return turns


def _session_time(text: str) -> datetime:
    """ "1:56 pm on 8 May, 2023" as UTC."""
    return datetime.strptime(text, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
