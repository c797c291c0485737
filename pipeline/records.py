"""Records as they arrive: one JSON object each, checked whole or refused with a reason.

A turn is an object with `message_id, user_id, session_id, speaker, role, text,
timestamp` and, optionally, `tenant, kind, origin, attachments, metadata`. A session's
end is `{"type": "session_end", "user_id", "session_id", "timestamp"[, "tenant"]}`.
Fields that are not known are kept in `metadata` and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from ..memory.errors import Rejected
from ..memory.model import DEFAULT_TENANT, Kind, Origin, User
from ..memory.times import parse_timestamp

REASONS = (
    "not_json",
    "missing_field",
    "wrong_type",
    "too_large",
    "blank",
    "bad_time",
    "bad_id",
    "bad_value",
    "invalid_text",
    "wrong_partition",
)

MAX_ID_CHARACTERS = 256
MAX_METADATA_LEVELS = 64
"""Deeper nesting could be read on one thread's stack and fail to be written, or read back, on another's."""


class BadRecord(Rejected):
    """A record that becomes a dead letter.

    Attributes:
        reason: one of `REASONS`.
        detail: what is wrong and what to do.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[BadRecord], tuple[str, str]]:
        """Travels between processes by its two parts."""
        return type(self), (self.reason, self.detail)


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """Sizes above which a record is refused."""

    max_text_bytes: int = 32 * 1024
    max_record_bytes: int = 1024 * 1024


class Turn(msgspec.Struct, frozen=True, gc=False):
    """A checked turn, before it has a position. Times are microseconds of UTC."""

    message_id: str
    user: User
    session_id: str
    speaker: str
    role: str
    text: str
    time_us: int
    utc_offset_minutes: int | None
    kind: str = Kind.UTTERANCE
    origin: str = Origin.SAID
    captions: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    unknown_fields: int = 0


class EndOfSession(msgspec.Struct, frozen=True, gc=False):
    """An explicit end record."""

    user: User
    session_id: str
    time_us: int


class _Attachment(msgspec.Struct, forbid_unknown_fields=True):
    type: str = "image"
    caption: str | None = None


class _WireTurn(msgspec.Struct, forbid_unknown_fields=True):
    message_id: str
    user_id: str
    session_id: str
    speaker: str
    role: str
    text: str
    timestamp: str | int | float
    tenant: str = DEFAULT_TENANT
    kind: str = Kind.UTTERANCE
    origin: str = Origin.SAID
    attachments: list[_Attachment] | None = None
    metadata: dict[str, Any] | None = None
    type: str = "turn"


class _WireEnd(msgspec.Struct):
    type: str
    user_id: str
    session_id: str
    timestamp: str | int | float
    tenant: str = DEFAULT_TENANT


class _WireOwner(msgspec.Struct):
    user_id: str
    tenant: str = DEFAULT_TENANT


_KINDS = frozenset(Kind)
_ORIGINS = frozenset(Origin)
_KNOWN_FIELDS = frozenset(_WireTurn.__struct_fields__)
_turn_decoder = msgspec.json.Decoder(_WireTurn)
_owner_decoder = msgspec.json.Decoder(_WireOwner)
_any_decoder = msgspec.json.Decoder()


def decode(raw: bytes, limits: RecordLimits, length: int | None = None) -> Turn | EndOfSession:
    """Decode and check one record.

    Args:
        raw: the record, or its beginning.
        limits: sizes above which it is refused.
        length: the bytes of the whole record, where `raw` is only its beginning.

    Raises:
        BadRecord: with the reason and what to do.
    """
    size = len(raw) if length is None else length
    if size > limits.max_record_bytes:
        raise BadRecord(
            "too_large",
            f"the record has {size} bytes, the limit is {limits.max_record_bytes} (setting max_record_bytes), "
            f"and {limits.max_text_bytes} for text and captions (setting max_text_bytes)",
        )
    try:
        wire = _turn_decoder.decode(raw)
    except msgspec.ValidationError:
        return _decode_slowly(_decode_any(raw), limits)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(raw, error) from None
    return _check(wire, limits, unknown_fields=0)


def owner_of(raw: bytes) -> User | None:
    """The owner that a record names, whatever else is wrong with it; None if it names none."""
    try:
        wire = _owner_decoder.decode(raw)
        return _user(wire.tenant, wire.user_id)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadRecord):
        return None


def from_mapping(value: object, limits: RecordLimits) -> Turn | EndOfSession:
    """Check one record that is already a mapping (the library's `add`).

    Raises:
        BadRecord: with the reason and what to do.
    """
    record = _decode_slowly(value, limits)
    if isinstance(record, Turn) and record.metadata:
        try:
            msgspec.json.encode(record.metadata)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadRecord(
                "wrong_type", f"metadata is no JSON ({error}); give text, numbers, lists, objects"
            ) from None
    return record


def _decode_any(raw: bytes) -> object:
    try:
        return _any_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_json(raw, error) from None


def is_cut_off(raw: bytes) -> bool:
    """Whether the bytes are the beginning of a JSON value whose rest is missing."""
    # A number may be cut off where only a digit more makes it one.
    return bool(raw.strip()) and (_is_truncated(raw) or _is_truncated(raw + b"0"))


def _is_truncated(raw: bytes) -> bool:
    try:
        _any_decoder.decode(raw)
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    except (UnicodeDecodeError, RecursionError):
        return False
    return False


def _not_json(raw: bytes, error: Exception) -> BadRecord:
    if not raw.strip():
        return BadRecord("blank", "the line is blank; give one JSON object a line")
    message = str(error)
    if isinstance(error, UnicodeDecodeError) or "utf-8" in message.lower() or "surrogate" in message:
        return BadRecord("invalid_text", f"the record holds bytes or escapes that are no text ({message}); send UTF-8")
    return BadRecord("not_json", f"the record is not JSON ({message}); give one JSON object a line")


def _decode_slowly(value: object, limits: RecordLimits) -> Turn | EndOfSession:
    """Take a record with unknown fields apart, or say what is wrong with it."""
    if not isinstance(value, dict):
        raise BadRecord("wrong_type", f"the record is a JSON {_json_name(value)}; give an object")
    kind = value.get("type", "turn")
    if kind == "session_end":
        return _check_end(_convert(value, _WireEnd))
    if kind != "turn":
        raise BadRecord("bad_value", f"type is {kind!r:.64}; it is 'turn' (or left out) or 'session_end'")
    known = {name: item for name, item in value.items() if name in _KNOWN_FIELDS}
    unknown = {str(name): item for name, item in value.items() if name not in _KNOWN_FIELDS}
    kept = _plain_attachments(known)
    if kept is not None:
        unknown["attachments"] = kept
    wire = _convert(known, _WireTurn)
    if unknown:
        # What is unknown never hides what the producer put into metadata under the same name.
        wire.metadata = unknown | (wire.metadata or {})
    return _check(wire, limits, unknown_fields=len(unknown))


def _plain_attachments(known: dict[str, Any]) -> list[Any] | None:
    """Reduce attachments to type and caption; return them whole if that loses anything."""
    attachments = known.get("attachments")
    if not isinstance(attachments, list) or not all(isinstance(item, dict) for item in attachments):
        return None
    if all(item.keys() <= {"type", "caption"} for item in attachments):
        return None
    known["attachments"] = [{name: item[name] for name in ("type", "caption") if name in item} for item in attachments]
    return attachments


def _convert(value: dict[str, Any], wire: type[Any]) -> Any:
    try:
        return msgspec.convert(value, wire)
    except msgspec.ValidationError as error:
        message = str(error)
        if "missing required field" in message:
            raise BadRecord("missing_field", f"{message}; a turn needs {', '.join(_required(wire))}") from None
        raise BadRecord("wrong_type", message) from None


def _required(wire: type[Any]) -> list[str]:
    return [item.name for item in msgspec.structs.fields(wire) if item.required]


def _check(wire: _WireTurn, limits: RecordLimits, *, unknown_fields: int) -> Turn:
    if wire.type != "turn":
        return _decode_slowly(msgspec.to_builtins(wire), limits)  # type: ignore[return-value]
    captions: tuple[str, ...] = ()
    if wire.attachments:
        captions = tuple(item.caption for item in wire.attachments if item.caption and not item.caption.isspace())
    text = wire.text
    size = len(text) if text.isascii() else _utf8_length(text)
    if captions:
        size += sum(_utf8_length(caption) for caption in captions)
    if size > limits.max_text_bytes:
        raise BadRecord(
            "too_large",
            f"text and captions have {size} bytes, the limit is {limits.max_text_bytes} (setting max_text_bytes)",
        )
    if not captions and (not text or text.isspace()):
        raise BadRecord("blank", "text is blank and no attachment has a caption; there is nothing to remember")
    if "\0" in text or any("\0" in caption for caption in captions):
        raise BadRecord("invalid_text", "text holds the code point U+0000; remove it")
    if wire.kind not in _KINDS:
        raise BadRecord("bad_value", f"kind is {wire.kind!r:.64}; it is one of {', '.join(Kind)}")
    if wire.origin not in _ORIGINS:
        raise BadRecord("bad_value", f"origin is {wire.origin!r:.64}; it is one of {', '.join(Origin)}")
    if wire.metadata:
        _check_levels(wire.metadata)
    user = _user(wire.tenant, wire.user_id)
    message_id, session_id, speaker, role = wire.message_id, wire.session_id, wire.speaker, wire.role
    together = message_id + session_id + speaker + role
    plain = together.isascii() and together.isprintable() and " " not in together and len(together) <= MAX_ID_CHARACTERS
    if not (plain and message_id and session_id and speaker and role):  # most are plain: looked at as one
        _check_id("message_id", message_id)
        _check_id("session_id", session_id)
        _check_id("speaker", speaker)
        _check_id("role", role)
    time_us, offset = _time(wire.timestamp)
    return Turn(
        wire.message_id,
        user,
        wire.session_id,
        wire.speaker,
        wire.role,
        text,
        time_us,
        offset,
        wire.kind,
        wire.origin,
        captions,
        wire.metadata or {},
        unknown_fields,
    )


def _check_levels(metadata: dict[str, Any]) -> None:
    inner: dict[int, Any] = {id(metadata): metadata}
    for _ in range(MAX_METADATA_LEVELS):
        values = (item.values() if isinstance(item, dict) else item for item in inner.values())
        inner = {id(value): value for held in values for value in held if isinstance(value, dict | list | tuple)}
        if not inner:
            return
    raise BadRecord("bad_value", f"metadata is nested deeper than {MAX_METADATA_LEVELS} levels; flatten it")


def _check_end(wire: _WireEnd) -> EndOfSession:
    _check_id("session_id", wire.session_id)
    time_us, _ = _time(wire.timestamp)
    return EndOfSession(_user(wire.tenant, wire.user_id), wire.session_id, time_us)


@lru_cache(maxsize=65536)
def _user(tenant: str, user_id: str) -> User:
    _check_id("tenant", tenant)
    _check_id("user_id", user_id)
    return User(tenant, user_id)


def _check_id(name: str, value: str) -> None:
    if not value or value.isspace():
        raise BadRecord("bad_id", f"{name} is empty")
    if len(value) > MAX_ID_CHARACTERS:
        raise BadRecord("bad_id", f"{name} has {len(value)} characters, the limit is {MAX_ID_CHARACTERS}")
    if not value.isascii():
        _utf8_length(value)
    if "\0" in value:
        raise BadRecord("invalid_text", f"{name} holds the code point U+0000; remove it")


def _time(value: str | int | float) -> tuple[int, int | None]:
    try:
        return parse_timestamp(value)
    except Rejected as error:
        raise BadRecord("bad_time", f"{error}; give ISO 8601 or milliseconds since 1970") from None


def _utf8_length(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise BadRecord(
            "invalid_text", f"the text holds a lone surrogate at character {error.start}; send UTF-8"
        ) from None


def _json_name(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def check_user(tenant: str, user_id: str) -> User:
    """Return the pair as a `User`.

    Raises:
        BadRecord: an id is no text, empty, or longer than 256 characters.
    """
    for name, value in (("tenant", tenant), ("user_id", user_id)):
        if not isinstance(value, str):
            raise BadRecord("wrong_type", f"{name} is a JSON {_json_name(value)}; give text")
    return _user(tenant, user_id)
