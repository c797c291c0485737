"""How people close and open a topic: cues read from the words of a turn.

Talk marks its joints. A topic is closed by thanks, goodbyes, reports of something
done and offers of further help; one is opened by a greeting, a stated need, a request,
an enquiry or a marker ("by the way"); a turn that only reacts, or leans on what was
said ("it", "that one"), goes on. The lists are general English and Chinese: nothing
in them names a domain, a person or a data set.

Reading a turn costs a few microseconds: what is said at its start is one match, and a
pattern that must be searched for is only tried when one of its words is there.
"""

from __future__ import annotations

import re
from enum import IntFlag
from itertools import compress
from typing import NamedTuple

from .text import fold, is_han, stem, terms


class Cue(IntFlag):
    """What a turn does to the topic; a turn may do several things."""

    THANKS = 1
    FAREWELL = 2
    WELCOME = 4
    OFFER = 8
    DONE = 16
    GREETING = 32
    NEED = 64
    REQUEST = 128
    ENQUIRY = 256
    MARKER = 512
    REACTION = 1024
    ANAPHORA = 2048
    QUESTION = 4096


CUES = tuple(Cue)
CLOSING = Cue.THANKS | Cue.FAREWELL | Cue.WELCOME | Cue.OFFER | Cue.DONE
OPENING = Cue.GREETING | Cue.NEED | Cue.REQUEST | Cue.ENQUIRY | Cue.MARKER

DESCRIPTIONS = {
    Cue.THANKS: "thanks",
    Cue.FAREWELL: "a goodbye",
    Cue.WELCOME: "an answer to thanks",
    Cue.OFFER: "an offer of further help",
    Cue.DONE: "a report of something done",
    Cue.GREETING: "a greeting",
    Cue.NEED: "a stated need",
    Cue.REQUEST: "a request",
    Cue.ENQUIRY: "an enquiry",
    Cue.MARKER: "a topic marker",
}


class Reading(NamedTuple):
    """A turn as the detector sees it.

    Attributes:
        cues: bits of `Cue`. QUESTION means one that waits for an answer: the turn's
            last question, unless that is an OFFER ("Anything else?").
        words: its length; a CJK character counts as two thirds of a word.
        terms: its distinct content terms, without function words, each as its hash.
    """

    cues: int
    words: int
    terms: tuple[int, ...]


def _words(line: str) -> frozenset[str]:
    return frozenset(line.split())


_LEAD = re.compile(
    r"(?:\W*(?:um+|uh+|well|oh|ah|so|ok|okay|alright|all right|right|great|perfect|good|nice|cool|awesome|excellent"
    r"|wonderful|thanks|thank you(?: (?:so|very) much)?|yes|yeah|yep|no|sure|please|and|also|then|now|next|first|hi|hello"
    r"|hey|there|good (?:morning|afternoon|evening)|sorry|excuse me|actually)\b)*\W*"
    r"(?:(?:那|好的?|嗯|另外|还有|对了|谢谢|你好|您好)[，,、。!！\s]*)*"
)
_NEED = re.compile(
    r"(?:i|we)(?:'m|'re|'ve|'d|'ll| am| are| have| would| was| also| really| just| still| will)*"
    r" (?:need|want|like to|like an?|like some|love to|looking|searching|trying|hoping|planning|interested|wondering"
    r"|wonder|wish|require|in need|have to|got to|thinking (?:of|about)|having (?:trouble|problems?|issues?))\b"
    r"|(?:need|looking|want|searching|trying)\b|id like\b|我(?:想|要|需要|打算|准备|希望)|想要?|需要|麻烦"
)
_REQUEST = re.compile(
    r"(?:(?:can|could|would|will) (?:you|u|we|i)|let's|let me)\b"
    r"|(?:tell|give|find|show|book|schedule|set|remind|get|look|search|check|make|call|navigate|direct|take|play|add"
    r"|turn|order|cancel|send|help|recommend|suggest|list|read|open|start|stop|put|pull|locate|provide|create|write"
    r"|explain|translate|summari[sz]e|compare|change|update|delete|remove|reserve|arrange|plan|pick|bring|track"
    r"|describe|inform|display|fetch|run|fix|install|buy|pay|transfer|report)\b(?! (?:is|was|are|to)\b)"
    r"|请|帮我?|给我|告诉我|查|推荐|介绍|能不能|能否|可以|可否"
)
_ENQUIRY = re.compile(
    r"(?:what|when|where|who|which|how|why|is|are|am|does|do|did|will|was|were|has|have|should|any)(?:'?s|'?re|'?ll|'?d)?\b"
    r"|请问|什么|怎么|哪|谁|为什么|几|多少|有没有|是不是"
)
_GREETING = re.compile(
    r"\W*(?:(?:hi|hello|hey|greetings|good (?:morning|afternoon|evening)|howdy|long time no)\b"
    r"|你好|您好|嗨|早上好|下午好|晚上好|好久不见)"
)
_MARKER = re.compile(
    r"\W*(?:(?:ok|okay|great|thanks|thank you|alright|well|oh|so|and|yes|perfect)\b\W*)*"
    r"(?:by the way|btw|anyways?|speaking of|changing (?:the )?(?:subject|topic)|moving on|guess what|in other news"
    r"|on (?:another|a different) (?:note|topic|subject)|one more thing|another thing|before i forget"
    r"|let's (?:talk|move|turn|switch))\b"
    r"|\W*(?:好的?|嗯|谢谢)?\W*(?:对了|顺便|话说|换个|换一个|说起|另外|还有一?件?事)"
)
_REACTION = re.compile(
    r"\W*(?:(?:yes|yeah|yep|yup|no|nope|nah|sure|ok|okay|right|exactly|absolutely|definitely|of course|certainly|correct"
    r"|great|perfect|cool|nice|wow|awesome|amazing|excellent|wonderful|fine|good|sorry|unfortunately|oh|haha|lol|hmm"
    r"|that|it|this|they|those|these|he|she|either|neither|both|none|thanks|thank|congrat\w*|alright|sounds|actually"
    r"|but|because|or|just|how about|what about|the (?:first|second|last|former|latter)|me too"
    r"|i (?:do|don't|am|see|agree|think so))\b|是的?|对(?!了)|好的?|嗯|不|没|可以|行|当然|哦|噢|那|这|谢谢|抱歉|哈)"
)
_BEGINNING = re.compile(
    "".join(f"(?=({pattern.pattern})?)" for pattern in (_GREETING, _MARKER, _REACTION))
    + _LEAD.pattern
    + "".join(f"(?=({pattern.pattern})?)" for pattern in (_NEED, _REQUEST, _ENQUIRY))
)
"""Matches any turn, as far as its lead goes. Its groups stand for `_BEGINNING_CUES`: three before the lead, three after."""
_BEGINNING_CUES = tuple(
    map(int, (Cue.GREETING, Cue.MARKER, Cue.REACTION, Cue.NEED, Cue.REQUEST, Cue.ENQUIRY)),
)
_THANKS = int(Cue.THANKS)
_ANAPHORA = int(Cue.ANAPHORA)
_ASKS = int(Cue.QUESTION)
_OFFERS = int(Cue.OFFER)
_ENQUIRES = int(Cue.ENQUIRY)

_THANKS_WORDS = _words("thanks thank thx thankyou cheers appreciate appreciated")
_PRONOUNS = _words(
    "it its it's they them their theirs they're that that's those these this there one ones same he she him her his hers"
    " instead either both too else"
)
_FAREWELL_WORDS = _words(
    "bye goodbye goodnight care ya soon later night gotta safe safely carefully until all everything nothing else enjoy"
    " good great nice lovely wonderful pleasant fun blessed awesome fantastic day evening weekend trip"
)
_FAREWELL = re.compile(
    r"\b(?:(?:good\s?)?bye|take care|see (?:you|ya)|talk (?:to you )?(?:soon|later)|good\s?night|catch (?:you|up) later"
    r"|gotta go|(?:drive|travel) (?:safe|carefully)|safe (?:trip|travels|journey)|until next time"
    r"|have an? (?:\w+ )?(?:good|great|nice|lovely|wonderful|pleasant|safe|fun|blessed|awesome|fantastic|day|night"
    r"|evening|weekend|trip)|enjoy (?:your|the|yourself)"
    r"|that(?:'s| is| was|'ll be| will be| would be) (?:all|everything|it for)|(?:nothing|no,? not) else)\b"
)
_WELCOME_WORDS = _words("welcome pleasure problem worries mention anytime glad happy pleased")
_WELCOME = re.compile(
    r"\b(?:welcome|pleasure|no problem|no worries|don't mention it|anytime|(?:glad|happy|pleased) (?:to|i|we|that))\b"
)
_DONE_WORDS = _words(
    "set sent made booked reserved scheduled added confirmed ordered placed cancelled canceled complete completed done"
    " updated saved arranged successful fixed resolved finished paid created registered submitted reference confirmation"
    " tracking order ticket"
)
_DONE = re.compile(
    r"\b(?:(?:is|are|was|were|been|be|have|has|i've|we've|it's|successfully|now) (?:now |all |already |just )?"
    r"(?:set|sent|made|booked|reserved|scheduled|added|confirmed|ordered|placed|cancell?ed|completed?|done|updated|saved"
    r"|arranged|successful|fixed|resolved|finished|paid|created|registered|submitted)\b"
    r"|(?:reference|confirmation|booking|order|ticket|tracking) (?:number|code|id|no\b|#|is\b)|all set\b|done[.!]"
    r"|(?:booking|reservation|order|payment|reminder|appointment) (?:successful|complete|confirmed|set|made))"
)
_OFFER_WORDS = _words("else further more other additional anyother today anything everything all")
_OFFER = re.compile(
    r"\b(?:(?:any|some|every)(?:thing)? (?:else|more|further|other|additional)|anyother|(?:what|how|who) else"
    r"|else (?:i|we|you)\b|(?:help|assist|assistance|serve|do|need|service)\b[^.?!]{0,40}\b(?:else|further|today)\b"
    r"|(?:further|more|other|additional) (?:help|assistance|question|request|information|need|service)"
    r"|(?:will|would) that be all\b|is that (?:all|everything)\b)"
)
_TRIGGERS = _THANKS_WORDS | _FAREWELL_WORDS | _WELCOME_WORDS | _DONE_WORDS | _OFFER_WORDS
_SEARCHED = (
    (_FAREWELL_WORDS, _FAREWELL.search, int(Cue.FAREWELL)),
    (_WELCOME_WORDS, _WELCOME.search, int(Cue.WELCOME)),
    (_DONE_WORDS, _DONE.search, int(Cue.DONE)),
)
_OFFER_CHINESE = re.compile(
    r"还有(?:什么|其他|其它|别的|啥)|(?:还需要?|需要|还要)(?:什么|其他|其它|别的)|(?:其他|其它|别的)(?:需要|问题|帮助|事)"
)
_SEARCHED_CHINESE = (
    (re.compile(r"谢谢|多谢|感谢|謝謝"), int(Cue.THANKS)),
    (
        re.compile(r"再见|再見|拜拜|晚安|回头见|下次见|明天见|保重|祝您|祝你|慢走|就这样|没有了|没别的"),
        int(Cue.FAREWELL),
    ),
    (re.compile(r"不客气|不用谢|别客气|不谢|很高兴(?:为|能)"), int(Cue.WELCOME)),
    (
        re.compile(
            r"已经?(?:为您|帮您|给您|为你|帮你)?(?:预订|预定|订|设|添加|安排|取消|完成|发送|确认|下单|办)|成功|[办订]好|搞定|完成了"
        ),
        int(Cue.DONE),
    ),
    (re.compile(r"它|他|她|那个|这个|那[里家边样]|这[里家边样]"), int(Cue.ANAPHORA)),
)
_QUESTION_CHINESE = re.compile(
    r"(?:[吗呢嘛]|什么|多少|(?:什么时候|多少|几[点位个天]|哪[里儿个家天些]|怎么样?|为什么)[^.!。,]{0,12})[.!。\s~]*$"
)
_UNMARKED_QUESTION = re.compile(r"(?:what|when|where|who|which|how|why|is|are|does|do|did|can|could)\b[^.!]*$")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]")
_SENTENCE = re.compile(r"[^.!?。！？\n]+")
_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?")
_ASCII_WORDS = bytes(ord(chr(at).lower()) if chr(at).isalnum() or chr(at) == "'" else 32 for at in range(128))
_ASCII_WORDS += bytes(128)
_LEANING_WORDS = 12
_MAX_CACHED = 65_536
_MAX_CACHED_LENGTH = 40
_FUNCTION_WORDS = _words(
    "a an the i you he she it we they me him her us them my your his its our their mine yours this that these those is am"
    " are was were be been being do does did done have has had having can could will would shall should may might must to"
    " of in on at for from by with about into and or but if so as than then not no yes yeah ok okay please thank thanks"
    " there here what when where who whom which how why any some all just also too very really more most much many one"
    " i'm i'd i've i'll you're it's that's what's don't didn't can't won't there's let's like need want get got go going"
    " know think good great nice well oh hi hello hey sure 的 了 是 我 你 他 她 在 吗 呢"
)


class _ContentTerms(dict[str, int | None]):
    """Words and the hashes of their stems, None for function words; starts afresh when full."""

    def __missing__(self, word: str) -> int | None:
        term = None if word in _FUNCTION_WORDS else hash(stem(word))
        if len(word) <= _MAX_CACHED_LENGTH:
            if len(self) >= _MAX_CACHED:
                self.clear()
            self[word] = term
        return term


_CONTENT_TERMS = _ContentTerms()


def read(text: str) -> Reading:
    """Read the cues, the length and the content terms of one turn."""
    if text.isascii():
        words = text.encode().translate(_ASCII_WORDS).decode().split()
        return Reading(_english_cues(text.lower(), words), len(words), _content(words))
    folded = fold(text)
    if folded.isascii():
        return read(folded)
    folded = folded.replace("’", "'")
    words = _WORD.findall(folded)
    cjk = len(_CJK.findall(folded))
    cues = _english_cues(folded, words)
    if not cjk:
        return Reading(cues, len(words), _content(words))
    cues |= _chinese_cues(folded)
    length = sum(not is_han(word) for word in words) + (2 * cjk + 2) // 3
    return Reading(cues, length, tuple(map(hash, set(terms(folded)) - _FUNCTION_WORDS)))


def _content(words: list[str]) -> tuple[int, ...]:
    content = set(map(_CONTENT_TERMS.__getitem__, words))
    content.discard(None)
    return tuple(content)  # type: ignore[arg-type]  # None is gone


def _english_cues(folded: str, words: list[str]) -> int:
    """Cues at the start of a turn (both languages) and English ones inside it."""
    beginning = _BEGINNING.match(folded)
    assert beginning is not None
    cues = sum(compress(_BEGINNING_CUES, beginning.groups()))
    if not _PRONOUNS.isdisjoint(words[:_LEANING_WORDS]):
        cues |= _ANAPHORA
    found = _TRIGGERS.intersection(words)
    if found:
        if not _THANKS_WORDS.isdisjoint(found):
            cues |= _THANKS
        for triggers, search, cue in _SEARCHED:
            if not triggers.isdisjoint(found) and search(folded):
                cues |= cue
    may_offer = not _OFFER_WORDS.isdisjoint(found)
    if "?" in folded:
        asked = _last_question(folded)
        offers = (may_offer and _OFFER.search(asked)) or (not asked.isascii() and _OFFER_CHINESE.search(asked))
        return cues | (_OFFERS if offers else _ASKS)
    if may_offer and _OFFER.search(folded):
        return cues | _OFFERS
    if cues & _ENQUIRES and _UNMARKED_QUESTION.match(folded, beginning.end()):
        cues |= _ASKS
    return cues


def _chinese_cues(folded: str) -> int:
    cues = 0
    for pattern, cue in _SEARCHED_CHINESE:
        if pattern.search(folded):
            cues |= cue
    if "?" not in folded and _QUESTION_CHINESE.search(folded):
        sentence = _SENTENCE.findall(folded)[-1]
        cues |= _OFFERS if _OFFER_CHINESE.search(sentence) else _ASKS
    return cues


def _last_question(folded: str) -> str:
    """The sentence that ends in the last question mark."""
    before = folded[: folded.rindex("?")].rstrip("?! ")
    sentences = _SENTENCE.findall(before)
    return sentences[-1] if sentences else ""
