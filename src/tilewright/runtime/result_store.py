"""Winners on disk: one SQLite file beside the compiled kernels, shared by all processes of a user.

A row is what won for one device, driver, kernel (a hash of its source, its candidates and the versions that machine
code depends on) and key, with a checksum over all of it. It is written in one transaction after a tuning has ended, so
a process that is stopped leaves the file as it was. SQLite's own locks keep processes apart. A result that cannot be
written then, because another process holds the lock or the disk is full, is kept in the process and in a file beside
the store, which the next process that can write takes in.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tilewright._version import __version__
from tilewright.errors import TuningError
from tilewright.frames import warn_at
from tilewright.runtime.folders import create_folder, find_folder, reason, remove, shown, write_temporary
from tilewright.runtime.result_rows import (
    COLUMNS,
    STORE_FILE,
    Place,
    Row,
    Winner,
    pending_files,
    read_pending,
    row_of,
    write_pending,
)

_WAIT_SECONDS = 10.0  # for another process that writes; a write takes milliseconds
# Version 1 had the table "winners", without checksums. It is left as it is: its rows cannot be checked, and a result
# holds for one release of Tilewright anyway.
_VERSION = 2
_TABLE = f"""
CREATE TABLE IF NOT EXISTS results (
    {", ".join(f"{name} {'REAL' if name == 'milliseconds' else 'TEXT'} NOT NULL" for name in COLUMNS)},
    checksum TEXT NOT NULL,
    PRIMARY KEY (device, driver, kernel, key)
)
"""
_SELECT = f"SELECT {', '.join(COLUMNS)}, checksum FROM results WHERE device=? AND driver=? AND kernel=? AND key=?"
_REPLACE = f"INSERT OR REPLACE INTO results VALUES ({', '.join('?' * (len(COLUMNS) + 1))})"
_ELSEWHERE = (
    "set TILEWRIGHT_CACHE_DIR to a folder that can be written, or pass store=None to @tw.autotune to keep results in "
    "this process only"
)

# By store: the rows of this process that are not in the file yet. Of the module, because each tuned function has a
# store object of its own.
_kept: dict[str, dict[Place, Row]] = {}
_warned: set[tuple[str, str]] = set()  # what was said of which store


class _UnavailableError(TuningError):
    """The store is sound, but cannot be read or written now. `locked` where another process holds it."""

    locked = False


class Store:
    """Results of tunings in one file. The file is made when the first result is written."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        """The file: where none was given, the one in the cache folder that the environment names now."""
        return find_folder().path / STORE_FILE if self._path is None else self._path

    def find(self, place: Place) -> Winner | None:
        """Return what won, or None.

        Raises `TuningError` for a file that is damaged, that a newer Tilewright wrote, or that cannot be read. A row
        whose checksum is wrong is not believed, and a store that another process holds is passed over; both give a
        warning.
        """
        place = _printable(place)
        known = _kept.get(self._name, {}).get(place)
        if known is not None:
            return known.winner
        waiting = pending_files(self.path)
        if waiting:
            with contextlib.suppress(TuningError):
                self._write(None, wait=0.0)
        rows = [row for file in waiting for row in (read_pending(file) or ([], 0))[0] if row.place == place]
        try:
            stored = self._stored(place)
        except _UnavailableError as error:
            if not error.locked:
                raise
            self._warn("read", f"{error.summary}; what it knows is measured again")
            stored = None
        rows += [] if stored is None else [stored]
        return max(rows, key=lambda row: row.created).winner if rows else None

    def check_writable(self) -> None:
        """Raise `TuningError` where a result could not be kept: before a tuning takes its time, not after.

        This writes to the file. Where another process holds the lock, it is enough that a file beside can be written.
        """
        try:
            self._write(None)
        except _UnavailableError as error:
            if not error.locked:
                raise
            try:
                remove(write_temporary(self.path.parent))
            except (OSError, ValueError) as beside:
                raise self._refusal(beside, "written") from error
            self._warn("locked", f"{error.summary}; results are kept in a file beside it until it can be written")

    def put(self, place: Place, winner: Winner, *, name: str, trials: list[dict[str, Any]]) -> None:
        """Write a result in place of an older one.

        Where the file cannot be written now, the result is kept in this process and in a file beside it, with a
        warning. Raises `TuningError` where the file is damaged, or a newer Tilewright wrote it.
        """
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")
        place = _printable(place)
        time = float(winner.milliseconds) + 0.0  # SQLite has no -0.0
        row = Row(
            place.device, place.driver, place.kernel, place.key,
            _escaped(winner.config), time, _escaped(name), __version__, now, json.dumps(trials),
        )  # fmt: skip
        try:
            self._write(row)
        except _UnavailableError as error:
            _kept.setdefault(self._name, {})[place] = row
            try:
                where = f"and in {shown(write_pending(self.path, [row]))}, until the store can be written"
            except (OSError, ValueError) as beside:
                where = f"only ({reason(beside)})"
            self._warn("kept", f"{error.summary}; the result for {name} is kept in this process {where}")

    def keep(self, place: Place, winner: Winner, *, name: str, trials: list[dict[str, Any]]) -> None:
        """Do what `put` does after a tuning, whose result no fault of the file may take away: warn, and never raise."""
        try:
            self.put(place, winner, name=name, trials=trials)
        except TuningError as error:
            self._warn("kept", f"{error.summary}; the result for {name} is not stored")

    @property
    def _name(self) -> str:
        return os.path.abspath(self.path) if self.path.is_absolute() else os.fspath(self.path)

    def _stored(self, place: Place) -> Row | None:
        """Return the row of the file, or None. Raises `TuningError`."""
        if not self._exists("read"):
            return None
        with self._open(write=False) as connection:
            self._check_version(connection)
            if "results" not in _tables(connection):
                return None
            values = _find(connection, place)
        row = None if values is None else row_of(values)
        if values is not None and (row is None or row.place != place):
            self._warn("row", f"a result in the tuning store {shown(self.path)} is damaged; it is measured again")
            return None
        return row

    def _write(self, row: Row | None, wait: float | None = None) -> None:
        """Write `row` and all that waits, in one transaction; without any of them, write all the same."""
        self._exists("written")
        with self._open(write=True, wait=wait) as connection:
            connection.execute("BEGIN IMMEDIATE")
            self._check_version(connection)
            tables = _tables(connection)
            connection.execute(_TABLE)
            connection.execute(f"PRAGMA user_version = {_VERSION}")  # writes a page, whatever it was
            files, damaged = self._take_in(connection)
            if row is not None:
                connection.execute(_REPLACE, row.values())
            connection.execute("COMMIT")
        _kept.pop(self._name, None)
        for file in files:
            remove(file)
        if damaged:
            self._warn("row", f"{damaged} results beside the tuning store {shown(self.path)} are damaged and left out")
        if "winners" in tables and "results" not in tables:
            text = "has results of version 1, without checksums: older releases find them, this one measures again"
            self._warn("version", f"the tuning store {shown(self.path)} {text}")

    def _take_in(self, connection: sqlite3.Connection) -> tuple[list[Path], int]:
        """Write what waits in this process and beside the file, unless something newer is there; return those files."""
        rows, files, damaged = list(_kept.get(self._name, {}).values()), [], 0
        for file in pending_files(self.path):
            found = read_pending(file)
            if found is not None:
                rows += found[0]
                damaged += found[1]
                files.append(file)
        for row in rows:
            values = _find(connection, row.place)
            known = None if values is None else row_of(values)
            if known is None or known.created < row.created:
                connection.execute(_REPLACE, row.values())
        return files, damaged

    def _exists(self, act: str) -> bool:
        """Return whether the file is there. Raises `TuningError` for what cannot be one, which is not opened at all."""
        if self._path is None and (refusal := find_folder().refusal) is not None:
            raise self._refusal(OSError(refusal), act)
        try:
            status = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError) as error:
            raise self._refusal(error, act) from error
        if not stat.S_ISREG(status.st_mode):
            raise self._refusal(OSError("it is not a regular file"), act)
        return True

    def _check_version(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if not 0 <= version <= _VERSION:
            raise TuningError(
                f"the tuning store {shown(self.path)} has version {version}, and this Tilewright ({__version__}) knows "
                f"versions up to {_VERSION}; it is left as it is",
                help=f"use the Tilewright that wrote it, or {_ELSEWHERE}",
            )

    @contextlib.contextmanager
    def _open(self, *, write: bool, wait: float | None = None) -> Iterator[sqlite3.Connection]:
        act = "written" if write else "read"
        try:
            if write:
                create_folder(self.path.parent)
            # A writer that was killed leaves a journal, which only a connection that may write can roll back.
            mode = "rwc" if write else "rw" if os.path.exists(f"{self.path}-journal") else "ro"
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}",
                timeout=_WAIT_SECONDS if wait is None else wait,
                isolation_level=None,  # transactions are begun and ended here, in words
                uri=True,
            )
        except (OSError, ValueError, sqlite3.Error) as error:
            raise self._refusal(error, act) from error
        try:
            connection.text_factory = bytes  # what is damaged need not be text
            connection.execute("PRAGMA trusted_schema = OFF")  # a file is data, whatever its schema says
            connection.execute("PRAGMA cell_size_check = ON")
            yield connection
        except (OSError, UnicodeDecodeError, sqlite3.Error) as error:  # messages quote what a damaged schema says
            raise self._refusal(error, act) from error
        finally:
            connection.close()  # which rolls back what was not committed

    def _refusal(self, error: Exception, act: str) -> TuningError:
        if isinstance(error, (sqlite3.Error, UnicodeDecodeError)) and not isinstance(error, sqlite3.OperationalError):
            return TuningError(
                f"the tuning store {shown(self.path)} is damaged: {shown(error)}",
                help="remove the file (its results are measured again), or set TILEWRIGHT_CACHE_DIR to another folder",
            )
        told = reason(error) if isinstance(error, (OSError, ValueError)) else shown(error)
        found = _UnavailableError(f"the tuning store {shown(self.path)} cannot be {act}: {told}", help=_ELSEWHERE)
        found.locked = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
        return found

    def _warn(self, kind: str, message: str) -> None:
        if (self._name, kind) not in _warned:
            _warned.add((self._name, kind))
            warn_at(message)


def _find(connection: sqlite3.Connection, place: Place) -> tuple[Any, ...] | None:
    found: tuple[Any, ...] | None = connection.execute(
        _SELECT, (place.device, place.driver, place.kernel, place.key)
    ).fetchone()
    return found


def _tables(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall()
    return {row[0].decode(errors="replace") for row in rows if isinstance(row[0], bytes)}


def _printable(place: Place) -> Place:
    return Place(_escaped(place.device), _escaped(place.driver), _escaped(place.kernel), _escaped(place.key))


def _escaped(text: str) -> str:
    """Return text that UTF-8 has bytes for: a lone surrogate is escaped."""
    return text.encode(errors="backslashreplace").decode()
