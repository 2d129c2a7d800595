"""Entries and stores damaged at random: flipped, cut, swapped, copied, linked, replaced by other kinds of files."""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.chaos.processes import compile_all, forget
from tests.helpers.slow import scaled, slow

import tilewright as tw
from tilewright.errors import TilewrightWarning
from tilewright.runtime.cache import DiskCache
from tilewright.runtime.result_rows import Place, Winner
from tilewright.runtime.result_store import Store

SOURCES = [f"source {n} " + "x" * n for n in range(6)]
Damage = Callable[[random.Random, list[Path]], object]


def flip(chance: random.Random, paths: list[Path]) -> None:
    path = chance.choice(paths)
    data = bytearray(path.read_bytes())
    # Of each part of an entry alike: magic, checksum, length, metadata, code.
    start, end = chance.choice([(0, 8), (8, 40), (40, 44), (44, max(45, len(data) - 20)), (len(data) - 20, len(data))])
    data[min(chance.randrange(start, end), len(data) - 1)] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def cut(chance: random.Random, paths: list[Path]) -> None:
    path = chance.choice(paths)
    os.truncate(path, chance.randrange(path.stat().st_size))


def extend(chance: random.Random, paths: list[Path]) -> None:
    path = chance.choice(paths)
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.randrange(1, 100)))


def zero(chance: random.Random, paths: list[Path]) -> None:
    """What a power failure leaves: the length, and no contents from some block on."""
    path = chance.choice(paths)
    data = path.read_bytes()
    keep = chance.randrange(len(data))
    path.write_bytes(data[:keep] + bytes(len(data) - keep))


def grow(chance: random.Random, paths: list[Path]) -> None:
    os.truncate(chance.choice(paths), 1 << chance.choice([20, 24, 29, 41]))


def swap(chance: random.Random, paths: list[Path]) -> None:
    one, other = chance.sample(paths, 2)
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def copy(chance: random.Random, paths: list[Path]) -> None:
    one, other = chance.sample(paths, 2)
    shutil.copy2(one, other)


def hard_link(chance: random.Random, paths: list[Path]) -> None:
    one, other = chance.sample(paths, 2)
    other.unlink()
    os.link(one, other)


def splice(chance: random.Random, paths: list[Path]) -> None:
    """The head of one with the tail of another."""
    one, other = chance.sample(paths, 2)
    where = chance.randrange(1, min(one.stat().st_size, other.stat().st_size))
    one.write_bytes(one.read_bytes()[:where] + other.read_bytes()[where:])


def symbolic_link(chance: random.Random, paths: list[Path]) -> None:
    one, other = chance.sample(paths, 2)
    other.unlink()
    other.symlink_to(chance.choice([str(one), other.name, "/dev/zero", "/nonexistent"]))


def fifo(chance: random.Random, paths: list[Path]) -> None:
    path = chance.choice(paths)
    path.unlink()
    os.mkfifo(path, 0o600)


def open_mode(chance: random.Random, paths: list[Path]) -> None:
    chance.choice(paths).chmod(chance.choice([0o000, 0o620, 0o602, 0o777]))


def remove(chance: random.Random, paths: list[Path]) -> None:
    chance.choice(paths).unlink()


def remove_part(chance: random.Random, paths: list[Path]) -> None:
    shutil.rmtree(chance.choice(paths).parent)


def link_part(chance: random.Random, paths: list[Path]) -> None:
    """One folder of entries takes the place of another."""
    one, other = chance.sample(paths, 2)
    if one.parent != other.parent:
        shutil.rmtree(other.parent)
        shutil.copytree(one.parent, other.parent)


DAMAGES: list[Damage] = [
    flip, cut, extend, zero, grow, swap, copy, hard_link, splice, symbolic_link, fifo, open_mode, remove, remove_part,
    link_part,
]  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs, links and modes")
@pytest.mark.parametrize("rounds", [150, slow(3000)])
def test_entries(tmp_path: Path, chance: random.Random, rounds: int) -> None:
    for n in range(rounds):
        assert compile_all(DiskCache(tmp_path), SOURCES) == [], f"round {n}: it heals"
        paths = sorted(path for path in tmp_path.rglob("*.cubin") if path.stem[:2] == path.parent.name)
        chosen = chance.choice(DAMAGES)
        chosen(chance, paths)
        assert len(compile_all(DiskCache(tmp_path), SOURCES)) <= 1, (n, chosen)


PLACES = [Place("GPU", "580", "abc", f"n={n}") for n in range(12)]


def check_store(store: Store, chosen: Sequence[int] = range(len(PLACES))) -> None:
    """Each of the chosen results is what was put, or None, or an error that names the file."""
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TilewrightWarning)
        for n in chosen:
            try:
                assert store.find(PLACES[n]) in (None, Winner(f"BM={n}", 0.5 + n)), n
            except tw.TuningError as error:
                assert store.path.name in str(error)


def filled(path: Path) -> bytes:
    for n, place in enumerate(PLACES):
        Store(path).put(place, Winner(f"BM={n}", 0.5 + n), name="f", trials=[{"config": {"BM": n}}] * 20)
    return path.read_bytes()


@pytest.mark.parametrize("rounds", [150, slow(4000)])
def test_stores(tmp_path: Path, chance: random.Random, rounds: int) -> None:
    """A few bytes flipped, or a page moved, cut off or zeroed."""
    path = tmp_path / "tuning.sqlite"
    whole = filled(path)
    for _ in range(rounds):
        data = bytearray(whole)
        kind = chance.randrange(4)
        if kind == 0:
            for _ in range(chance.randrange(1, 4)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[chance.randrange(len(data)) :]
        else:
            size = 4096
            one, other = (size * chance.randrange(len(data) // size) for _ in range(2))
            data[one : one + size] = bytes(size) if kind == 2 else data[other : other + size]
        path.write_bytes(data)
        check_store(Store(path))


@pytest.mark.slow
def test_every_byte_of_a_store(tmp_path: Path, chance: random.Random) -> None:
    path = tmp_path / "tuning.sqlite"
    whole = filled(path)
    for position in sorted(chance.sample(range(len(whole)), min(scaled(len(whole)), len(whole)))):
        data = bytearray(whole)
        data[position] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        check_store(Store(path), chance.sample(range(len(PLACES)), 3))
