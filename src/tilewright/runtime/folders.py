"""Where the cache is, and files that only their owner can have written.

A compiled kernel is code: who writes an entry of the cache decides what the next process runs. So a folder or a file is
used only where it belongs to the user of this process and nobody else can write to it. What is refused is an `OSError`
with the path and the reason; `cache.DiskCache` turns it into its one warning.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "TILEWRIGHT_CACHE_DIR"

_POSIX = hasattr(os, "geteuid")  # elsewhere access lists count, which the modes of a file do not show
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# Opening a FIFO for reading waits for a writer unless O_NONBLOCK is given; a regular file does not notice it.
_READ_FLAGS = os.O_RDONLY
for _flag in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY", "O_NOCTTY"):
    _READ_FLAGS |= getattr(os, _flag, 0)
_TEMPORARY_SUFFIX = ".part"
_PROBE = b"\0" * 4096  # one block: an empty file can be made on a full disk
_TRIES = 3  # where another process removes the folder between two steps

_private: dict[tuple[str, str], Path] = {}  # the private folder in use, by temporary folder and prefix


@dataclass(frozen=True)
class CacheFolder:
    """The folder of the cache, as the environment names it.

    `refusal` says why there is none that can be used, None where there is one. `note` says why it is not the usual one.
    """

    path: Path
    refusal: str | None = None
    note: str | None = None


def find_folder() -> CacheFolder:
    """Return the folder of the cache; nothing is created but the private folder.

    It is what TILEWRIGHT_CACHE_DIR names, whether that can be used or not; else the platform's folder for caches of
    this user. Where that cannot be used (no home, or one of another user), it is a private folder below the temporary
    one.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        try:
            return CacheFolder(Path(chosen).expanduser())
        except RuntimeError:
            return CacheFolder(Path(chosen), refusal="no such user, or a user without a home folder")
    usual = Path("~", ".cache", "tilewright")
    try:
        usual = _usual_folder()
        _check_place(usual)
        return CacheFolder(usual)
    except (OSError, ValueError) as error:
        note = reason(error)
    try:
        return CacheFolder(_private_folder(), note=note)
    except (OSError, ValueError) as error:
        return CacheFolder(usual, refusal=f"{note}; {reason(error)}")


def check_folder(folder: Path, *, follow: bool = True) -> None:
    """Raise `OSError` unless `folder` is a folder of this user that nobody else can write to.

    With `follow`, a symbolic link to such a folder will do.
    """
    status = os.stat(folder) if follow else os.lstat(folder)
    if stat.S_ISLNK(status.st_mode):
        raise NotADirectoryError(errno.ELOOP, "it is a symbolic link", os.fspath(folder))
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", os.fspath(folder))
    _check_owner(status, folder)


def create_folder(folder: Path) -> None:
    """Create a folder that only this user can enter, where there is nothing yet. Raises `OSError`."""
    try:
        os.mkdir(folder, 0o700)
    except FileNotFoundError:
        os.makedirs(folder.parent, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    except FileExistsError:
        pass


def make_folder(folder: Path, *, follow: bool = True) -> None:
    """Create a folder where it is missing, and check it as `check_folder` does."""
    create_folder(folder)
    check_folder(folder, follow=follow)


def read_private(path: Path, limit: int) -> bytes:
    """Return the contents of a regular file that only this user can have written.

    Raises `OSError` for any other kind of file (without waiting for one), for the file of another user or one that
    others can write, and, with `errno.EFBIG`, for more than `limit` bytes.
    """
    try:
        handle = os.open(path, _READ_FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link", os.fspath(path)) from None
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise OSError(errno.EINVAL, f"it is {kind}", os.fspath(path))
        _check_owner(status, path)
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, more than {limit}", os.fspath(path))
        return _read(handle, status.st_size)
    finally:
        os.close(handle)


def replace_private(path: Path, data: bytes) -> None:
    """Write a file in one step: a reader sees the old contents or the new ones, whole.

    It is not flushed to the medium, which would cost more than most kernels take to compile: after a power failure the
    file may be short or empty, and its reader has to find that out. Raises `OSError`, and leaves no other file behind.
    """
    temporary = write_temporary(path.parent, data)
    try:
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def write_temporary(folder: Path, data: bytes = _PROBE) -> Path:
    """Write a new file that only this user can read, and return its path. Raises `OSError`, and then leaves no file."""
    handle, name = tempfile.mkstemp(suffix=_TEMPORARY_SUFFIX, dir=folder)  # mode 0600
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
        finally:
            os.close(handle)  # network file systems report a full disk here
    except BaseException:
        remove(Path(name))
        raise
    return Path(name)


def write_whole(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file that everybody may read: who opens it finds the old contents or the new ones, never a part."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        remove(Path(temporary))
        raise


def probe_folder(folder: Path) -> None:
    """Raise `OSError` unless a file with contents can be written in `folder`, which is made where it is missing."""
    make_folder(folder)
    remove(write_temporary(folder))


def write_below(folder: Path, part: str, name: str, data: bytes) -> None:
    """Write `folder/part/name` as `replace_private` does, making both folders where they are missing.

    An empty `part` means `folder` itself. Raises `OSError` where a folder cannot be made, or is not this user's alone.
    """
    for remaining in reversed(range(_TRIES)):
        try:
            make_folder(folder)
            if part:
                make_folder(folder / part, follow=False)
            replace_private(folder / part / name, data)
            return
        except FileNotFoundError:  # removed by another process since it was made
            if not remaining:
                raise


def remove(path: Path) -> bool:
    """Remove a file; return whether that was possible."""
    try:
        path.unlink()
    except OSError:
        return False
    return True


def is_temporary(name: str) -> bool:
    """Say whether a file's name is one that `replace_private` writes to, left behind where the writer was killed."""
    return name.endswith(_TEMPORARY_SUFFIX)


def reason(error: OSError | ValueError) -> str:
    """Return the path and the reason of an error of the file system, on one line."""
    if not isinstance(error, OSError):
        return str(error)
    text = error.strerror or str(error)
    return text if error.filename is None else f"{shown(error.filename)}: {text}"


def shown(text: object) -> str:
    r"""Return a path or a message as text that can be printed anywhere: what does not print is escaped.

    >>> shown("a" + chr(10) + "b" + chr(0xdcff))
    'a\\nb\\udcff'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def _usual_folder() -> Path:
    """Return the platform's folder for caches. Raises `OSError` where this user has no home folder."""
    if sys.platform not in ("win32", "darwin"):
        given = os.environ.get("XDG_CACHE_HOME", "")
        if os.path.isabs(given):  # as that specification asks, a relative one is ignored
            return Path(given) / "tilewright"
    try:
        home = Path.home()
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "this user has no home folder") from None
    if not home.is_absolute() or not home.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the home folder does not exist", os.fspath(home))
    if _POSIX and home.stat().st_uid != os.geteuid():
        # Such as root in a user's home: what root makes there, the user could not write any more.
        raise PermissionError(errno.EPERM, "the home folder belongs to another user", os.fspath(home))
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "tilewright" / "cache"
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "tilewright"
    return home / ".cache" / "tilewright"


def _check_place(folder: Path) -> None:
    """Raise `OSError` where a folder cannot be used, or is missing and cannot be made; change nothing."""
    try:
        check_folder(folder)
        if not _may(folder, os.R_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(folder))
        return
    except FileNotFoundError:
        pass
    for parent in folder.parents:
        try:
            status = os.stat(parent)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "it is not a folder", os.fspath(parent))
        if not _may(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "this user cannot make a folder in it", os.fspath(parent))
        return


def _may(path: Path, access: int) -> bool:
    return os.access(path, access, effective_ids=os.access in os.supports_effective_ids)


def _private_folder() -> Path:
    """Return a folder below the temporary one that is this user's alone; make it where there is none.

    The end of its name is random, so no other user can make it before: a folder (or a link) of that kind that is not
    this user's own is passed over.
    """
    prefix = f"tilewright-cache-{os.geteuid() if _POSIX else os.environ.get('USERNAME', 'user')}-"
    base = tempfile.gettempdir()
    known = _private.get((base, prefix))
    if known is not None and _is_private(known):
        return known
    with os.scandir(base) as entries:
        candidates = sorted(entry.path for entry in entries if entry.name.startswith(prefix))
    found = next((Path(path) for path in candidates if _is_private(Path(path))), None)
    if found is None:
        found = Path(tempfile.mkdtemp(prefix=prefix, dir=base))  # mode 0700, and an error where the name is taken
        check_folder(found, follow=False)
    _private[base, prefix] = found
    return found


def _is_private(folder: Path) -> bool:
    try:
        check_folder(folder, follow=False)
        return not _POSIX or stat.S_IMODE(os.lstat(folder).st_mode) == 0o700
    except (OSError, ValueError):
        return False


def _check_owner(status: os.stat_result, path: Path) -> None:
    if not _POSIX:
        return
    if status.st_uid != os.geteuid():
        text = f"it belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}"
        raise PermissionError(errno.EPERM, text, os.fspath(path))
    if status.st_mode & _WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        text = f"others can write to it (mode {mode:04o}); chmod go-w takes that away"
        raise PermissionError(errno.EPERM, text, os.fspath(path))


def _read(handle: int, size: int) -> bytes:
    data = os.read(handle, size)
    while len(data) < size:
        more = os.read(handle, size - len(data))
        if not more:  # it was made shorter meanwhile
            break
        data += more
    return data
