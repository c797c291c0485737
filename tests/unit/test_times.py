"""Timestamps in, microseconds of UTC inside, text out."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygam.memory.errors import Rejected
from raygam.memory.times import format_time, parse_timestamp


def test_naive_and_aware_times() -> None:
    """Case naive-and-aware-times: 07:00, 07:30, 07:50 in UTC, whatever form they came in."""
    aware, aware_offset = parse_timestamp("2025-01-10T09:00:00+02:00")
    naive, naive_offset = parse_timestamp("2025-01-10T07:30:00")
    number, number_offset = parse_timestamp(1736495400000)
    assert [format_time(at) for at in (aware, naive, number)] == [
        "2025-01-10T07:00:00Z",
        "2025-01-10T07:30:00Z",
        "2025-01-10T07:50:00Z",
    ]
    assert (aware_offset, naive_offset, number_offset) == (120, None, 0)


@pytest.mark.parametrize("value", ["", "yesterday", "2025-13-01", True, None, [], float("nan"), float("inf"), 10**20])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(Rejected):
        parse_timestamp(value)


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)))
def test_text_and_microseconds_are_the_same_moment(moment: datetime) -> None:
    time_us, offset = parse_timestamp(moment.isoformat())
    assert offset == 0
    assert datetime.fromisoformat(format_time(time_us)) == moment
