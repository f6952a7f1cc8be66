"""Archives from a sandbox are hostile: whatever they hold, nothing is made outside of the directory."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ringfence
from ringfence import _archive as archive


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, mode
    return member


def tar(*entries: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as made:
        for member, content in entries:
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    target.seek(0)
    return target


def unpack(source: io.BytesIO, into: Path, *, skip: bool = False, max_bytes: int = 1 << 20) -> archive.Unpacked:
    return archive.unpack(source, into, skip=skip, max_bytes=max_bytes)


HOSTILE: dict[str, Callable[[Path], list[tuple[tarfile.TarInfo, bytes]]]] = {
    "absolute": lambda out: [(entry(str(out / "pwned")), b"x")],
    "dotdot": lambda out: [(entry("../outside/pwned"), b"x")],
    "dotdot_inside": lambda out: [(entry("a/../../outside/pwned"), b"x")],
    "symlink_out": lambda out: [(entry("l", tarfile.SYMTYPE, "../outside"), b"")],
    "symlink_absolute": lambda out: [(entry("l", tarfile.SYMTYPE, str(out)), b"")],
    "through_symlink": lambda out: [
        (entry("l", tarfile.SYMTYPE, str(out)), b""),
        (entry("l/pwned"), b"x"),
    ],
    "hard_link": lambda out: [(entry("l", tarfile.LNKTYPE, str(out / "secret")), b"")],
    "device": lambda out: [(entry("d", tarfile.CHRTYPE), b"")],
    "fifo": lambda out: [(entry("f", tarfile.FIFOTYPE), b"")],
    "symlink_over_a_link": lambda out: [
        (entry("s", tarfile.SYMTYPE, "."), b""),
        (entry("l", tarfile.SYMTYPE, "s/s/../../outside/secret"), b""),
    ],
    "symlink_down_and_up": lambda out: [(entry("d/l", tarfile.SYMTYPE, "x/../y"), b"")],
    "empty_link": lambda out: [(entry("l", tarfile.SYMTYPE, ""), b"")],
}


@pytest.mark.parametrize("what", sorted(HOSTILE))
def test_nothing_leaves_the_directory(tmp_path: Path, what: str) -> None:
    outside, into = tmp_path / "outside", tmp_path / "into"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    entries = HOSTILE[what](outside)
    with pytest.raises(ringfence.ArchiveRefusedError):
        unpack(tar(*entries), into)
    result = unpack(tar(*entries, (entry("good"), b"good")), into, skip=True)
    assert result.skipped
    assert (into / "good").read_bytes() == b"good"
    assert sorted(os.listdir(outside)) == ["secret"]
    assert (outside / "secret").read_text() == "secret"
    for path in into.rglob("*"):
        assert path.resolve().is_relative_to(into.resolve())


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE])
def test_a_header_is_not_read_into_memory_whatever_its_size(tmp_path: Path, kind: bytes) -> None:
    header = entry("h", kind)
    header.size = 1 << 40
    endless: Any = Zeros(header.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(ringfence.ArchiveRefusedError, match="header"):
        archive.unpack(endless, tmp_path / "into", skip=True, max_bytes=1 << 20)
    assert endless.given < 1 << 20


class Zeros(io.RawIOBase):
    """What was given, and then zeros without an end."""

    def __init__(self, begin: bytes) -> None:
        self.begin, self.given = begin, 0

    def read(self, size: int = -1) -> bytes:
        assert 0 <= size < 1 << 30
        portion, self.begin = self.begin[:size], self.begin[size:]
        self.given += size
        assert self.given < 64 << 20
        return portion + bytes(size - len(portion))


def test_headers_of_headers_are_refused(tmp_path: Path) -> None:
    record = b"11 comment=\n".ljust(512, b"\0")
    header = entry("h", tarfile.XHDTYPE)
    header.size = 11
    with pytest.raises(ringfence.ArchiveRefusedError):
        unpack(io.BytesIO((header.tobuf(tarfile.USTAR_FORMAT) + record) * 20_000), tmp_path / "into")


def test_memory_does_not_grow_with_the_entries(tmp_path: Path) -> None:
    source = tar(*((entry("same"), b"") for _ in range(5000)))
    tracemalloc.start()
    try:
        unpack(source, tmp_path / "into")
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_a_link_that_was_there_is_not_written_through(tmp_path: Path) -> None:
    outside, into = tmp_path / "outside", tmp_path / "into"
    outside.mkdir()
    into.mkdir()
    (into / "dir").symlink_to(outside)
    (into / "file").symlink_to(outside / "file")
    with pytest.raises(ringfence.ArchiveRefusedError):
        unpack(tar((entry("dir/pwned"), b"x")), into)
    unpack(tar((entry("file"), b"new")), into)
    assert (into / "file").read_bytes() == b"new"
    assert not (into / "file").is_symlink()
    assert os.listdir(outside) == []


def test_links_that_stay_inside_are_made(tmp_path: Path) -> None:
    unpack(tar((entry("a/b/l", tarfile.SYMTYPE, "../../c/./f"), b""), (entry("c/f"), b"x")), tmp_path / "into")
    assert (tmp_path / "into/a/b/l").read_bytes() == b"x"
    assert os.readlink(tmp_path / "into/a/b/l") == "../../c/./f"


def test_too_much_is_refused_even_when_entries_may_be_skipped(tmp_path: Path) -> None:
    with pytest.raises(ringfence.ArchiveRefusedError, match="max_bytes"):
        unpack(tar((entry("big"), b"x" * 1000)), tmp_path / "into", skip=True, max_bytes=999)


@pytest.mark.parametrize("data", [b"", b"not a tar", b"\0" * 100, os.urandom(4096)])
def test_what_is_no_archive_is_an_error_or_empty(tmp_path: Path, data: bytes) -> None:
    with contextlib.suppress(ringfence.ArchiveRefusedError):
        assert unpack(io.BytesIO(data), tmp_path / "into").files == 0
    assert list((tmp_path / "into").iterdir()) == []


def test_a_truncated_archive_is_an_error(tmp_path: Path) -> None:
    whole = tar((entry("a"), b"x" * 5000)).getvalue()
    with pytest.raises(ringfence.ArchiveRefusedError):
        unpack(io.BytesIO(whole[:2000]), tmp_path / "into")


def test_modes_lose_setuid_and_directories_stay_usable(tmp_path: Path) -> None:
    unpack(
        tar((entry("d", tarfile.DIRTYPE, mode=0o000), b""), (entry("d/f", mode=0o4755), b"x")),
        tmp_path / "into",
    )
    assert (tmp_path / "into/d").stat().st_mode & 0o7777 == 0o700
    assert (tmp_path / "into/d/f").stat().st_mode & 0o7777 == 0o755


def test_a_directory_comes_back_as_it_was_packed(tmp_path: Path) -> None:
    source, into = tmp_path / "source", tmp_path / "into"
    (source / "deep/er").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "deep/er/ünï\n").write_bytes(bytes(range(256)))
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("deep/er")
    os.link(source / "run.sh", source / "twin.sh")
    packed = io.BytesIO()
    archive.pack(source, packed)
    packed.seek(0)
    result = unpack(packed, into)
    assert (result.files, result.directories, result.skipped) == (4, 3, [])
    assert (into / "deep/er/ünï\n").read_bytes() == bytes(range(256))
    assert (into / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (into / "twin.sh").read_text() == "#!/bin/sh\n"
    assert os.readlink(into / "link") == "deep/er"
    assert (into / "empty").is_dir()


def test_what_cannot_be_sent_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe"):
        archive.pack(tmp_path, io.BytesIO())
    with pytest.raises(NotADirectoryError):
        archive.pack(tmp_path / "none", io.BytesIO())
