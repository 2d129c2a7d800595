"""One result of a tuning as data: a row of the store, its checksum, and the files of rows that wait beside the store.

A row is found by what it holds for, and it is believed only where its checksum, over all of it, is right.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from tilewright.runtime.folders import read_private, replace_private

STORE_FILE = "tuning.sqlite"  # in the folder of the cache
_PENDING_SUFFIX = ".pending"
_MAX_PENDING_BYTES = 1 << 26  # of one file; the trials of a long search take less than one MiB


@dataclass(frozen=True)
class Place:
    """What a result holds for."""

    device: str
    driver: str
    kernel: str
    key: str


@dataclass(frozen=True)
class Winner:
    """The text of the config that won, and its time."""

    config: str
    milliseconds: float


@dataclass(frozen=True)
class Row:
    """A result with all that is kept of it, in the order of the store's columns. `created` sorts by time."""

    device: str
    driver: str
    kernel: str
    key: str
    config: str
    milliseconds: float
    name: str
    tilewright: str
    created: str
    trials: str

    @property
    def place(self) -> Place:
        return Place(self.device, self.driver, self.kernel, self.key)

    @property
    def winner(self) -> Winner:
        return Winner(self.config, self.milliseconds)

    @property
    def checksum(self) -> str:
        """A hash of all fields, each with its length, so that no two rows run together."""
        digest = hashlib.sha256(b"tilewright tuning row 2")
        for value in astuple(self):
            data = (value if isinstance(value, str) else value.hex()).encode()
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()

    def values(self) -> tuple[Any, ...]:  # Any: str or float
        """Return the columns: the fields, and the checksum."""
        return (*astuple(self), self.checksum)


COLUMNS = tuple(field.name for field in fields(Row))


def row_of(values: Sequence[Any]) -> Row | None:  # Any: what a damaged file may hold
    """Return the row of `Row.values`, texts as str or as bytes, or None where the checksum does not fit."""
    if len(values) != len(COLUMNS) + 1:
        return None
    found: list[Any] = []
    try:
        for name, value in zip((*COLUMNS, "checksum"), values, strict=True):
            text = value.decode() if isinstance(value, bytes) else value
            if not isinstance(text, float if name == "milliseconds" else str):
                return None
            found.append(text)
        row = Row(*found[:-1])
        return row if math.isfinite(row.milliseconds) and row.checksum == found[-1] else None
    except UnicodeError:
        return None


def write_pending(store: Path, rows: Sequence[Row]) -> Path:
    """Write rows to a new file beside a store that cannot be written now, and return it. Raises `OSError`."""
    path = store.with_name(f"{store.name}.{os.getpid()}-{secrets.token_hex(4)}{_PENDING_SUFFIX}")
    replace_private(path, json.dumps([row.values() for row in rows]).encode())
    return path


def pending_files(store: Path) -> list[Path]:
    """Return the files that `write_pending` wrote beside a store and that were not merged yet."""
    try:
        names = os.listdir(store.parent)
    except OSError:
        return []
    return sorted(
        store.with_name(name) for name in names if name.startswith(f"{store.name}.") and name.endswith(_PENDING_SUFFIX)
    )


def read_pending(path: Path) -> tuple[list[Row], int] | None:
    """Return the rows of a file beside a store, and how many are damaged; None where the file is not this user's."""
    try:
        data = read_private(path, _MAX_PENDING_BYTES)
    except OSError:
        return None
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return [], 1
    if not isinstance(values, list):
        return [], 1
    rows = [row_of(value) if isinstance(value, list) else None for value in values]
    return [row for row in rows if row is not None], rows.count(None)
