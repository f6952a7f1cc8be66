"""Directories packed to be sent, and archives from a sandbox unpacked; no network.

An archive that comes out of a sandbox is hostile: whatever it holds, nothing is made outside of the directory.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final

from ._exceptions import ArchiveRefusedError

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_ENTRIES: Final = 1_000_000
MAX_BYTES: Final = 16 << 30
MAX_HEADER: Final = 1 << 20  # of a name that is too long for an entry's own header
_CHUNK: Final = 1 << 20
_DIR_FLAGS: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@dataclass
class Unpacked:
    """What was unpacked.

    Attributes:
        files: how many files and links were made.
        directories: how many directories were made or were there.
        bytes: how many bytes the files hold.
        skipped: the names that were left out, where the caller wished that rather than an error.
    """

    files: int = 0
    directories: int = 0
    bytes: int = 0
    skipped: list[str] = field(default_factory=lambda: [])


def pack(directory: str | os.PathLike[str], target: IO[bytes]) -> None:
    """Write what a local directory holds as a tar archive. Links are kept as links; owners are not kept."""
    root = os.fspath(directory)
    if not os.path.isdir(root):
        raise NotADirectoryError(f"{root!r} is not a directory")

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if not (member.isreg() or member.isdir() or member.issym()):
            raise ValueError(f"{member.name!r} is neither a file, a directory nor a link and cannot be sent")
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    # dereference would follow links; hard links are sent as the files that they are.
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for parent, directories, files in os.walk(root):
            directories.sort()
            for name in [*directories, *sorted(files)]:
                path = os.path.join(parent, name)
                member = archive.gettarinfo(path, arcname=os.path.relpath(path, root))
                if member.islnk():
                    member.type, member.linkname, member.size = tarfile.REGTYPE, "", os.path.getsize(path)
                member = anonymous(member)
                if member is None:
                    continue
                if member.isreg():
                    with open(path, "rb") as content:
                        archive.addfile(member, content)
                else:
                    archive.addfile(member)


def unpack(source: IO[bytes], directory: str | os.PathLike[str], *, skip: bool, max_bytes: int) -> Unpacked:
    """Unpack a tar archive below a directory, which is made when it is missing.

    An entry whose name is absolute or has "..", a link that leads out, a device, and what would be written through a
    link is refused: with skip it is left out and named, otherwise ArchiveRefusedError is raised and what was made until
    then stays. Existing files are replaced.
    """
    os.makedirs(directory, exist_ok=True)
    done = Unpacked()
    links: list[tuple[list[str], str]] = []
    root = _Root(os.fspath(directory))
    try:
        with tarfile.open(fileobj=source, mode="r|", errorlevel=2, tarinfo=_Entry) as archive:
            for count, member in enumerate(archive):
                kept: list[tarfile.TarInfo] = vars(archive)["members"]  # tarfile remembers all that it has read
                kept.clear()
                if count >= MAX_ENTRIES:
                    raise ArchiveRefusedError(f"the archive has more than {MAX_ENTRIES:,} entries")
                try:
                    parts = _parts(member)
                    if member.issym():
                        links.append((parts, _inside(member, parts)))
                    elif not parts:
                        continue  # the directory itself
                    elif member.isdir():
                        root.make_dir(parts, member.mode)
                        done.directories += 1
                    else:
                        done.bytes += member.size
                        if member.size < 0 or done.bytes > max_bytes:
                            raise _TooMuch(f"the archive holds more than {max_bytes:,} bytes; max_bytes allows more")
                        content = archive.extractfile(member)
                        if content is None:
                            raise ArchiveRefusedError(f"{member.name!r} has no content")
                        root.write(parts, member.mode, content)
                        done.files += 1
                except ArchiveRefusedError as refusal:
                    if not skip or isinstance(refusal, _TooMuch):
                        raise
                    done.skipped.append(member.name)
        # Links come last: nothing of this archive can be written through one.
        for parts, target in links:
            try:
                root.link(parts, target)
                done.files += 1
            except ArchiveRefusedError:
                if not skip:
                    raise
                done.skipped.append("/".join(parts))
    except (tarfile.TarError, RecursionError) as exc:  # tarfile calls itself for each header of headers
        raise ArchiveRefusedError(f"the archive cannot be read: {exc}") from None
    finally:
        root.close()
    return done


class _Entry(tarfile.TarInfo):
    """An entry whose headers are bounded: tarfile reads one into memory, whatever its size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        entry = super().frombuf(buf, encoding, errors)
        if entry.type == tarfile.XGLTYPE:  # they pile up, and no server sends them
            raise _TooMuch("the archive has a header for all entries")
        if entry.size < 0 or (entry.type in _HEADER_TYPES and entry.size > MAX_HEADER):
            raise _TooMuch(f"the archive has a header of {entry.size:,} bytes")
        return entry


_HEADER_TYPES: Final = (
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class _TooMuch(ArchiveRefusedError):
    """Too large as a whole, which leaving out one entry does not mend."""


def _parts(member: tarfile.TarInfo) -> list[str]:
    """Return an entry's path below the directory, or refuse it."""
    name = member.name
    if name.startswith(("/", "\\")) or "\0" in name or (os.name == "nt" and (":" in name or "\\" in name)):
        raise ArchiveRefusedError(f"{name!r} is not a path below the directory")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ArchiveRefusedError(f"{name!r} leads out of the directory")
    if not (member.isreg() or member.isdir() or member.issym()) or member.issparse():
        raise ArchiveRefusedError(f"{name!r} is neither a file, a directory nor a symbolic link")
    return parts


def _inside(member: tarfile.TarInfo, parts: list[str]) -> str:
    """Return where a link points, or refuse it when that could lead out of the directory.

    It may begin with as many ".." as it lies deep and have none after that: what it goes down through may be other
    links of the archive, and ".." goes up from where those lead.
    """
    target = member.linkname
    depth = len(parts) - 1
    down = False
    if not parts or not target or target.startswith(("/", "\\")) or "\0" in target or os.name == "nt":
        raise ArchiveRefusedError(f"{member.name!r} is a link to {target!r}, which is not below the directory")
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            down = True
        if depth < 0 or (down and part == ".."):
            raise ArchiveRefusedError(f"{member.name!r} is a link to {target!r}, which leads out of the directory")
    return target


class _Root:
    """The directory below which things are made, each reached step by step and never through a link."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._by_fd = os.open in os.supports_dir_fd and os.mkdir in os.supports_dir_fd
        self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)) if self._by_fd else -1

    def close(self) -> None:
        if self._by_fd:
            os.close(self._fd)

    def make_dir(self, parts: list[str], mode: int) -> None:
        with self._parent([*parts, "."]) as (fd, path):
            if self._by_fd:
                os.fchmod(fd, (mode & 0o777) | 0o700)
            else:
                os.chmod(path, (mode & 0o777) | 0o700)

    def write(self, parts: list[str], mode: int, content: IO[bytes]) -> None:
        with self._parent(parts) as (fd, path):
            self._clear(fd, path, parts)
            name = parts[-1] if self._by_fd else os.path.join(path, parts[-1])
            made = os.open(name, _FILE_FLAGS, mode & 0o777, dir_fd=fd if self._by_fd else None)
            with open(made, "wb") as file:
                for portion in _portions(content):
                    file.write(portion)
                if self._by_fd:
                    os.fchmod(file.fileno(), mode & 0o777)

    def link(self, parts: list[str], target: str) -> None:
        with self._parent(parts) as (fd, path):
            self._clear(fd, path, parts)
            if self._by_fd:
                os.symlink(target, parts[-1], dir_fd=fd)
            else:
                os.symlink(target, os.path.join(path, parts[-1]))

    def _clear(self, fd: int, path: str, parts: list[str]) -> None:
        """Remove what has the name already, unless it is a directory."""
        name = parts[-1] if self._by_fd else os.path.join(path, parts[-1])
        at = fd if self._by_fd else None
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                raise ArchiveRefusedError(f"{'/'.join(parts)!r} is a file, and there is a directory of that name")
            os.unlink(name, dir_fd=at)

    @contextlib.contextmanager
    def _parent(self, parts: list[str]) -> Generator[tuple[int, str], None, None]:
        """Give the directory that holds the last of parts; missing ones are made, links are refused."""
        if not self._by_fd:
            path = self._path
            for part in parts[:-1]:
                path = os.path.join(path, part)
                if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
                    raise ArchiveRefusedError(f"{'/'.join(parts)!r} would be written through {part!r}")
                os.makedirs(path, mode=0o755, exist_ok=True)
            yield -1, path
            return
        fd = os.dup(self._fd)
        try:
            for part in parts[:-1]:
                try:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=fd)
                    below = os.open(part, _DIR_FLAGS, dir_fd=fd)
                except OSError as exc:
                    raise ArchiveRefusedError(f"{'/'.join(parts)!r} would be written through {part!r}: {exc}") from None
                os.close(fd)
                fd = below
            yield fd, self._path
        finally:
            os.close(fd)


def _portions(content: IO[bytes]) -> Iterator[bytes]:
    while portion := content.read(_CHUNK):
        yield portion
