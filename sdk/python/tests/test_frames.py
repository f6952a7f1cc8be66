"""The binary stream, decoded."""

from __future__ import annotations

import random

import pytest

import ringfence
from ringfence import _frames as frames


def frame(kind: int, data: bytes) -> bytes:
    return bytes([kind]) + len(data).to_bytes(4, "big") + data


def test_frames_come_whole_however_they_are_cut() -> None:
    wanted = [
        (frames.POSITION, (7).to_bytes(8, "big")),
        (frames.STDOUT, bytes(range(256))),
        (frames.KEEP_ALIVE, b""),
        (frames.STDERR, b"x" * 70_000),
        (frames.EXIT, b'{"exit_code": 3}'),
    ]
    stream = b"".join(frame(kind, data) for kind, data in wanted)
    for seed in range(20):
        cut = random.Random(seed)
        decoder, got, at = frames.FrameDecoder(), [], 0
        while at < len(stream):
            size = cut.choice([1, 2, 5, 17, 1000, 100_000])
            got.extend(decoder.feed(stream[at : at + size]))
            at += size
        assert [tuple(one) for one in got] == wanted
    assert got[0].number == 7
    assert got[-1].json == {"exit_code": 3}


@pytest.mark.parametrize(
    ("data", "look"),
    [
        (frame(frames.POSITION, b"123"), lambda f: f.number),
        (frame(frames.EXIT, b"not json"), lambda f: f.json),
        (frame(frames.EXIT, b"[1]"), lambda f: f.json),
    ],
)
def test_a_frame_of_nonsense_is_an_error_of_the_answer(data: bytes, look: object) -> None:
    [one] = frames.FrameDecoder().feed(data)
    with pytest.raises(ringfence.APIResponseError):
        look(one)  # type: ignore[operator]


def test_a_frame_that_claims_too_much_is_refused_at_once() -> None:
    with pytest.raises(ringfence.APIResponseError, match="4294967295"):
        list(frames.FrameDecoder().feed(b"\x01\xff\xff\xff\xff"))
