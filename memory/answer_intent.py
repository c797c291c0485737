"""What kind of answer a question wants, decided by rules from its words: English and Chinese.

It chooses a sentence of the instructions, no more: a question that is misread is still answered
from the same memories.
"""

from __future__ import annotations

import re
from enum import StrEnum

from .query import Query
from .text import fold


class Intent(StrEnum):
    """Kinds of questions, by what must be done with the memories."""

    FACT = "fact"
    """One fact is quoted."""
    SEVERAL = "several"
    """Facts of several memories are joined: counted, listed, compared."""
    TIME = "time"
    """A time or a duration is computed."""
    INFERENCE = "inference"
    """A conclusion may be drawn that no memory states."""


_UNITS = r"(?:second|minute|hour|day|night|week|weekend|month|year|decade)s?"
_TIME = re.compile(
    rf"\bhow (?:long|old|soon|recently)\b|\bhow many (?:\w+ )?{_UNITS}\b|\bhow much (?:time|longer)\b|\bduration\b"
    r"|\bwhat time\b|\b(?:at|on|in) (?:what|which) (?:date|day|month|year)\b"
    r"|多久|多长时间|多長時間|(?:几|幾|多少)(?:个|個)?(?:天|日|周|週|星期|礼拜|禮拜|月|年|小时|小時|分钟|分鐘|岁|歲)|几点|幾點|什么时间|什麼時間|多大年"
)
_INFERENCE = re.compile(
    r"\b(?:why|would|likely|unlikely|probably|possibly|presumably|might|perhaps|maybe|suppose|infer|inferred)\b"
    r"|\bhow come\b|^\W*may\b|\bmay (?:have|be|want|like|need)\b|\bdo you think\b|\bbe considered\b"
    r"|\bwhat (?:kind|sort) of person\b"
    r"|为什么|為什麼|为何|為何|怎么会|怎麼會|可能|大概|也许|也許|或许|或許|会不会|會不會|估计|估計|推测|推測|推断|推斷"
)
_SEVERAL = re.compile(
    r"\bhow (?:many|much|often)\b|\bwhich\b|\blist\b|(?<!at )(?<!after )\ball\b(?! (?:\w*day|morning|afternoon|evening|night|week|month|year|summer|winter|the time)\b)|\bevery\b|\beach\b|\bboth\b|\bin common\b"
    r"|\b(?:what|who|where) else\b|\bwhat (?:are|were|other)\b|\b(?:kinds|types|sorts) of\b|\bname (?:some|two|three|four|five)\b"
    r"|\bwhat (?:\w+ )?\w+[^\Wsiu]s (?:do|does|did|has|have|had|is|are|was|were|can|will)\b"
    r"|多少|[几幾](?![乎何])|哪些|列出|列举|列舉|所有|全部|分别|分別|有什么|有什麼|(?<![成首])都(?=[有是去做买買喜看吃说說])"
)


def intent_of(query: Query) -> Intent:
    """Read a question's intent; the computed comes before the concluded, and that before the joined."""
    folded = fold(query.text)
    if query.asks_when or _TIME.search(folded):
        return Intent.TIME
    if _INFERENCE.search(folded):
        return Intent.INFERENCE
    return Intent.SEVERAL if _SEVERAL.search(folded) else Intent.FACT
