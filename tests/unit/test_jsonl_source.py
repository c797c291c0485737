"""A file as a source: byte positions, appended files, changed files, long and unfinished lines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygam.adapters.jsonl_source import PREFIX_LIMIT, JsonlSource
from raygam.memory.errors import Misconfigured


def write(path: Path, raw: bytes) -> JsonlSource:
    path.write_bytes(raw)
    return JsonlSource(path)


def read(source: JsonlSource, start: int = 0, chunk_bytes: int = 7) -> list[tuple[int, bytes]]:
    return [(line.offset, line.raw) for chunk in source.chunks(start, chunk_bytes) for line in chunk.lines]


def test_lines_have_byte_offsets(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", "é\nbb\n\nc".encode())
    assert read(source) == [(0, "é".encode()), (3, b"bb"), (6, b""), (7, b"c")]


@given(lines=st.lists(st.binary(max_size=12).filter(lambda raw: b"\n" not in raw), max_size=8), size=st.integers(1, 20))
def test_chunks_hold_every_line_once_and_each_edge_is_a_start(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], size: int
) -> None:
    path = tmp_path_factory.mktemp("source") / "a.jsonl"
    source = write(path, b"".join(line + b"\n" for line in lines))
    whole = read(source, 0, 1000)
    seen = 0
    for chunk in source.chunks(0, size):
        seen += len(chunk.lines)
        assert [(line.offset, line.raw) for line in chunk.lines] == whole[seen - len(chunk.lines) : seen]
        assert read(source, chunk.next_offset, 1000) == whole[seen:]
    assert seen == len(lines)


def test_a_byte_order_mark_is_no_part_of_the_first_record(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.jsonl", b"\xef\xbb\xbf{}\n")) == [(0, b"{}")]


def test_a_line_that_is_far_too_long_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"a\n" + b"x" * 200_000 + b"\nb\n")
    source = JsonlSource(path, max_line_bytes=100_000)
    lines = [line for chunk in source.chunks(0, 30_000) for line in chunk.lines]
    assert [(line.offset, line.length) for line in lines] == [(0, 1), (2, 200_000), (200_003, 1)]
    assert len(lines[1].raw) == 65_536


def test_an_appended_file_is_the_same_source(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first = write(path, b"one\n")
    source_id = first.identify({})
    known = {source_id: first.position(4)}
    assert write(path, b"one\ntwo\n").identify(known) == source_id
    assert write(tmp_path / "moved.jsonl", b"one\ntwo\n").identify(known) == source_id


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first = write(path, b"one\n")
    known = {first.identify({}): first.position(4)}
    with pytest.raises(Misconfigured, match="has changed since it was read"):
        write(path, b"eno\ntwo\n").identify(known)


def test_another_file_is_another_source(tmp_path: Path) -> None:
    first = write(tmp_path / "a.jsonl", b"one\n")
    source_id = first.identify({})
    known = {source_id: first.position(4)}
    assert write(tmp_path / "b.jsonl", b"two\n").identify(known) != source_id


def test_a_newline_that_came_later_begins_no_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, b"one")
    assert read(write(path, b"one\ntwo\n"), start=3) == [(4, b"two")]


def test_what_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no file"):
        JsonlSource(tmp_path / "missing.jsonl")
    with pytest.raises(Misconfigured, match="is a directory"):
        JsonlSource(tmp_path)


def test_a_file_that_is_shorter_than_what_was_read_of_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first = write(path, b"x" * PREFIX_LIMIT + b"\none\ntwo\n")
    known = {first.identify({}): first.position(PREFIX_LIMIT + 9)}
    with pytest.raises(Misconfigured, match="cut short"):
        write(path, b"x" * PREFIX_LIMIT + b"\none\n").identify(known)


@pytest.mark.parametrize("change", ["replaced", "rewritten", "cut", "removed"])
def test_a_file_that_changes_while_it_is_read_leaves_no_position(tmp_path: Path, change: str) -> None:
    """Else the position of the old file would skip the beginning of the new one."""
    path = tmp_path / "a.jsonl"
    source = write(path, b"one\ntwo\nthree\n")
    source.identify({})
    source.position(4)
    if change == "replaced":
        path.rename(tmp_path / "a.jsonl.1")
    if change == "removed":
        path.unlink()
    else:
        path.write_bytes({"rewritten": b"eno\nowt\neerht\n", "cut": b"one\n"}.get(change, b"one\ntwo\nthree\n"))
    with pytest.raises(Misconfigured, match="while it was read"):
        source.position(8)


def test_a_pipe_is_refused_before_a_byte_of_it_is_gone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Misconfigured, match="no regular file"):
        JsonlSource(tmp_path / "pipe")
