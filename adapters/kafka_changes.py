"""What has become of a topic since it was read, and what a person can do: one error each."""

from __future__ import annotations

from ..memory.errors import Misconfigured


def shorter(topic: str, partition: int, end: int, read: int) -> Misconfigured:
    """The log ends before what was read of it."""
    return Misconfigured(
        f"partition {partition} of topic {topic} ends at offset {end}, and was read up to {read} before: "
        f"{read - end} records are gone from its end (a broker lost its disk, or an old backup is "
        "served). What was read is kept. Bring back the log, or make a new topic and let the producers send to it"
    )


def records_lost(topic: str, partition: int, beginning: int, read: int) -> Misconfigured:
    """The log begins behind what was read of it."""
    return Misconfigured(
        f"partition {partition} of topic {topic} begins at offset {beginning}, and was read up to {read}: "
        f"up to {beginning - read} records were removed before they were read (retention.ms, retention.bytes, or deleted "
        "by hand). To go on without them, set kafka_skip_lost; else let the producers send them again, as a "
        "message_id that is known changes nothing. Raise the topic's retention above the longest stop"
    )


def made_anew(name: str, before: str, now: str) -> Misconfigured:
    """Another topic of the name; `before` and `now` are ids."""
    return Misconfigured(
        f"topic {name} was made anew: its id is {now}, and {before} was read before. What was read is kept. To take the "
        f"new topic from its beginning as well, set kafka_accept_topic to {now}; to start afresh, stream it into a new "
        "state; or bring the old topic back"
    )


def other_count(name: str, found: int, wanted: int) -> Misconfigured:
    """It has more or fewer partitions than the state."""
    return Misconfigured(
        f"topic {name} has {found} partitions, and the state {wanted}: a user's key belongs to another partition by each "
        f"count. Use a topic with {wanted} partitions (`raygam topics create NAME --partitions {wanted}`), or stream "
        f"this one into a new state with {found} partitions"
    )
