"""Timestamps: what producers send, as microseconds of UTC, and back to text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from .errors import Rejected

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z
_MIN_MS = -62_135_596_800_000  # 0001-01-01T00:00:00Z


def parse_timestamp(value: object) -> tuple[int, int | None]:
    """Return `(microseconds UTC, offset in minutes)`; the offset is None if none was given.

    Accepts ISO 8601 text (a time without an offset is read as UTC) and a number of
    milliseconds since 1970.

    Raises:
        Rejected: anything else; the message shows the value and the accepted forms.
    """
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError as error:
            raise Rejected(f"timestamp {value[:64]!r} is not ISO 8601 ({error})") from None
        zone = moment.tzinfo
        if zone is None:
            return _microseconds(moment.replace(tzinfo=UTC)), None
        if zone is UTC:
            return _microseconds(moment), 0
        offset = moment.utcoffset()
        assert offset is not None
        return _microseconds(moment), int(offset.total_seconds()) // 60
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Rejected(f"timestamp is {type(value).__name__}; give ISO 8601 text or milliseconds since 1970")
    if not _MIN_MS <= value <= _MAX_MS:  # also refuses nan
        raise Rejected(f"timestamp {value!r} is outside the years 1 to 9999 in milliseconds since 1970")
    return int(value * 1000), 0


def _microseconds(moment: datetime) -> int:
    since = moment - _EPOCH
    found = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if not _MIN_MS * 1000 <= found < (_MAX_MS + 1) * 1000:  # its offset takes it out of what can be shown
        raise Rejected(f"timestamp {moment.isoformat()!r} is outside the years 1 to 9999 in UTC")
    return found


def to_datetime(time_us: int) -> datetime:
    """The moment as an aware datetime in UTC."""
    return _EPOCH + timedelta(microseconds=time_us)


def format_time(time_us: int) -> str:
    """ISO 8601 in UTC with a Z, with fractions only where there are any."""
    return to_datetime(time_us).isoformat().replace("+00:00", "Z")
