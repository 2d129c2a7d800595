"""The store under faults: flipped bytes, newer and older versions, locks, full disks, and what waits beside it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import threading
import warnings
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import pytest
from tests.helpers.cache_process import demand_another_user, open_folder, run_python

import tilewright as tw
from tilewright.errors import TilewrightWarning
from tilewright.runtime import result_store as store_module
from tilewright.runtime.result_rows import Place, Row, Winner, pending_files, row_of, write_pending
from tilewright.runtime.result_store import Store

PLACES = [Place("GPU", "580 (CUDA 13.0)", "abc", f"n={n}") for n in range(4)]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(store_module, "_WAIT_SECONDS", 0.05)
    new_process()
    yield
    new_process()


def new_process() -> None:
    """Forget what a process keeps."""
    store_module._kept.clear()
    store_module._warned.clear()


def put(store: Store, n: int = 0, config: str | None = None) -> None:
    store.put(PLACES[n], Winner(config or f"BM={n}", 0.5 + n), name="matmul", trials=[{"config": {"BM": n}}])


def filled(path: Path) -> Store:
    store = Store(path)
    for n in range(4):
        put(store, n)
    return store


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@contextlib.contextmanager
def locked(path: Path, how: str = "IMMEDIATE") -> Iterator[None]:
    """Another connection holds the lock meanwhile."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"BEGIN {how}")
    try:
        yield
    finally:
        connection.close()


VALUES = {"milliseconds": "0.001", "config": "'BM=7'", "trials": "'[]'", "created": "'9999'", "checksum": "'0'"}


@pytest.mark.parametrize("column", ["config", "milliseconds", "name", "tilewright", "created", "trials", "checksum"])
@pytest.mark.spread(2)
def test_a_changed_column_is_not_believed(tmp_path: Path, column: str) -> None:
    store = filled(tmp_path / "t.sqlite")
    for value in (VALUES.get(column, "'x'"), "x'ff00'", "''", "1e400", "-1", "9223372036854775807"):
        new_process()
        filled(store.path)
        change(store.path, f"UPDATE results SET {column} = {value} WHERE key = 'n=1'")
        with pytest.warns(TilewrightWarning, match="is damaged; it is measured again") as caught:
            assert store.find(PLACES[1]) is None and store.find(PLACES[1]) is None
        assert len(caught) == 1
        assert store.find(PLACES[2]) == Winner("BM=2", 2.5)


@pytest.mark.parametrize("column", ["device", "driver", "kernel", "key"])
def test_a_row_in_the_place_of_another_is_not_believed(tmp_path: Path, column: str) -> None:
    store = filled(tmp_path / "t.sqlite")
    change(store.path, f"UPDATE results SET {column} = 'other' WHERE key = 'n=1'")
    place = Place(**{**vars(PLACES[1]), column: "other"})
    with pytest.warns(TilewrightWarning, match="is damaged"):
        assert store.find(place) is None
    change(store.path, "DELETE FROM results WHERE key = 'n=3'")
    change(store.path, "UPDATE results SET key = 'n=3' WHERE key = 'n=2'")
    assert store.find(PLACES[3]) is None
    put(store, 3)
    assert store.find(PLACES[3]) == Winner("BM=3", 3.5), "a new result takes the place of a damaged one"


def test_an_index_that_leads_to_another_row_is_not_believed(tmp_path: Path) -> None:
    """SQLite does not compare what its index says with the row that it leads to."""
    store = filled(tmp_path / "t.sqlite")
    whole = store.path.read_bytes()
    position, found = whole.find(b"n=1"), 0
    while position >= 0:
        store.path.write_bytes(whole[:position] + b"n=5" + whole[position + 3 :])
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            assert store.find(Place(*astuple(PLACES[0])[:3], "n=5")) is None
        position, found = whole.find(b"n=1", position + 1), found + 1
    assert found >= 2, "in the row and in the index"


def test_every_flipped_byte_of_the_file_gives_the_result_or_none(tmp_path: Path) -> None:
    """Each 37th byte, a shift that is prime to all sizes in the file; tests/chaos does them all."""
    store = filled(tmp_path / "t.sqlite")
    whole = store.path.read_bytes()
    for position in [*range(0, 100), *range(100, len(whole), 37)]:
        flip(store.path, whole, position, 0x41)
        outcome_of(store)


def flip(path: Path, whole: bytes, position: int, mask: int) -> None:
    data = bytearray(whole)
    data[position] ^= mask
    path.write_bytes(data)


def outcome_of(store: Store) -> None:
    """Ask for all results: each is what was put, or None, or an error that names the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TilewrightWarning)
        for n, place in enumerate(PLACES):
            try:
                assert store.find(place) in (None, Winner(f"BM={n}", 0.5 + n))
            except tw.TuningError as error:
                assert store.path.name in str(error)


@pytest.mark.parametrize("name", [b"\xec\xff\xfelts!", b"r\x00sults", b"r\nsult\x1b"])
def test_a_damaged_schema_is_told_whatever_its_bytes(tmp_path: Path, name: bytes) -> None:
    """The messages of SQLite quote the schema, and Python cannot read those that are not UTF-8."""
    store = filled(tmp_path / "t.sqlite")
    whole = store.path.read_bytes()
    for before, after in ((b"results", name), (b"TABLE results", b"TABLE " + name), (b"CREATE", name[:6])):
        store.path.write_bytes(whole.replace(before, after))
        for act in (lambda: store.find(PLACES[0]), store.check_writable):
            try:
                assert act() is None
            except tw.TuningError as error:
                assert error.summary.isprintable()


@pytest.mark.parametrize("version", [3, 99, 2**31 - 1, -1])
def test_a_newer_version_is_refused_and_kept(tmp_path: Path, version: int) -> None:
    store = filled(tmp_path / "t.sqlite")
    change(store.path, f"PRAGMA user_version = {version}")
    before = store.path.read_bytes()
    for act in (lambda: store.find(PLACES[0]), store.check_writable, lambda: put(store), lambda: store.find(PLACES[0])):
        with pytest.raises(
            tw.TuningError, match=f"has version {version}, .* knows versions up to 2; it is left as it is"
        ):
            act()
        assert store.path.read_bytes() == before and os.listdir(tmp_path) == ["t.sqlite"]
    write_pending(store.path, [Row(*astuple(PLACES[0]), "BM=9", 1.0, "f", "0", "9999", "[]")])
    with pytest.raises(tw.TuningError, match="has version"):
        store.find(PLACES[0])
    assert store.path.read_bytes() == before and len(pending_files(store.path)) == 1


VERSION_1 = """
CREATE TABLE winners (
    device TEXT NOT NULL, driver TEXT NOT NULL, kernel TEXT NOT NULL, key TEXT NOT NULL,
    config TEXT NOT NULL, milliseconds REAL NOT NULL, name TEXT NOT NULL, tilewright TEXT NOT NULL,
    created TEXT NOT NULL, trials TEXT NOT NULL,
    PRIMARY KEY (device, driver, kernel, key)
)
"""


def test_results_of_version_1_stay_and_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    change(path, VERSION_1)
    change(
        path, "INSERT INTO winners VALUES ('GPU', '580 (CUDA 13.0)', 'abc', 'n=0', 'BM=8', 1.0, 'f', '0', '2026', '[]')"
    )
    change(path, "PRAGMA user_version = 1")
    before = path.read_bytes()
    store = Store(path)
    assert store.find(PLACES[0]) is None and path.read_bytes() == before
    with pytest.warns(TilewrightWarning, match="has results of version 1, without checksums"):
        store.check_writable()
    put(store)
    assert store.find(PLACES[0]) == Winner("BM=0", 0.5)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT config FROM winners").fetchall() == [("BM=8",)]
    connection.close()
    # An older release that comes across the file writes its own version again; the results of this one stay.
    change(path, "PRAGMA user_version = 1")
    assert store.find(PLACES[0]) == Winner("BM=0", 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.check_writable()


@pytest.mark.parametrize("how", ["IMMEDIATE", "EXCLUSIVE"])
def test_a_result_is_kept_while_another_holds_the_lock(tmp_path: Path, how: str) -> None:
    store = filled(tmp_path / "t.sqlite")
    with locked(store.path, how):
        with pytest.warns(TilewrightWarning, match="locked; results are kept in a file beside it until"):
            store.check_writable()
        with pytest.warns(
            TilewrightWarning, match="locked; the result for matmul is kept in this process and in .*pending"
        ):
            put(store, 1, "BM=new")
        assert Store(store.path).find(PLACES[1]) == Winner("BM=new", 1.5), "in this process"
        new_process()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert Store(store.path).find(PLACES[1]) == Winner("BM=new", 1.5), "and in another one"
        assert len(pending_files(store.path)) == 1
    new_process()
    assert store.find(PLACES[1]) == Winner("BM=new", 1.5)
    assert pending_files(store.path) == [] and store._stored(PLACES[1]) is not None, "it was taken in"
    new_process()
    assert store.find(PLACES[1]) == Winner("BM=new", 1.5) and store.find(PLACES[2]) == Winner("BM=2", 2.5)


def test_what_waits_does_not_replace_what_is_newer(tmp_path: Path) -> None:
    store = filled(tmp_path / "t.sqlite")
    with locked(store.path), pytest.warns(TilewrightWarning):
        put(store, 0, "BM=old")
    new_process()
    (waiting,) = pending_files(store.path)
    shutil.copy(waiting, tmp_path / "copy")
    put(store, 0, "BM=newer")
    new_process()
    shutil.copy(tmp_path / "copy", waiting)  # as after a crash between writing and removing
    os.chmod(waiting, 0o600)
    assert store.find(PLACES[0]) == Winner("BM=newer", 0.5)
    store.check_writable()
    assert store.find(PLACES[0]) == Winner("BM=newer", 0.5) and not pending_files(store.path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"[[]]", b"[1]", b"{}", b"\xff" * 9, b"[" * 100_000])
def test_damaged_files_beside_the_store_are_left_out(tmp_path: Path, content: bytes) -> None:
    store = filled(tmp_path / "t.sqlite")
    good = write_pending(store.path, [Row(*astuple(PLACES[0]), "BM=9", 1.0, "f", "0", "9999", "[]")])
    values = json.loads(good.read_text())
    values[0][5] = 0.001  # the time
    flipped = write_pending(store.path, [])
    flipped.write_text(json.dumps(values))
    write_pending(store.path, []).write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert store.find(PLACES[0]) == Winner("BM=9", 1.0)
    assert pending_files(store.path) == []


def test_other_files_beside_the_store_are_not_opened(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("needs FIFOs")
    store = filled(tmp_path / "t.sqlite")
    os.mkfifo(tmp_path / "t.sqlite.1-a.pending")
    (tmp_path / "t.sqlite.1-b.pending").mkdir()
    (tmp_path / "t.sqlite.1-c.pending").symlink_to("/dev/zero")
    write_pending(store.path, [Row(*astuple(PLACES[0]), "BM=9", 1.0, "f", "0", "9999", "[]")]).chmod(0o622)
    answers: list[Winner | None] = []
    thread = threading.Thread(target=lambda: answers.append(store.find(PLACES[0])), daemon=True)
    thread.start()
    thread.join(60)
    assert answers == [Winner("BM=0", 0.5)]
    assert len(pending_files(store.path)) == 4


def test_a_fifo_or_a_folder_in_the_place_of_the_store(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("needs FIFOs")
    os.mkfifo(tmp_path / "fifo")
    errors: list[str] = []

    def use() -> None:
        for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
            for act in (lambda: Store(path).find(PLACES[0]), Store(path).check_writable):
                with pytest.raises(tw.TuningError) as error:
                    act()
                errors.append(str(error.value))

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(60)
    assert len(errors) == 6 and all("not a regular file" in text for text in errors)


@pytest.mark.parametrize(
    "name", ["n" * 300, "n/" * 3000, "a\0b", "file/t.sqlite"], ids=["name", "path", "null", "file"]
)
def test_a_path_that_cannot_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / name)
    if name != "file/t.sqlite":
        with pytest.raises(tw.TuningError, match="cannot be read"):
            store.find(PLACES[0])
    with pytest.raises(tw.TuningError, match="cannot be written"):
        store.check_writable()
    with pytest.warns(TilewrightWarning, match="kept in this process only"):
        put(store)
    assert Store(tmp_path / name).find(PLACES[0]) == Winner("BM=0", 0.5)


def test_no_such_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "~nosuchuser_really")
    for act in (lambda: Store().find(PLACES[0]), Store().check_writable):
        with pytest.raises(tw.TuningError, match="no such user"):
            act()
    assert os.listdir(tmp_path) == []


def test_the_folder_that_the_store_makes_is_one_that_the_cache_trusts(cache_folder: Path) -> None:
    before = os.umask(0o002)
    try:
        put(Store())
    finally:
        os.umask(before)
    assert not hasattr(os, "geteuid") or cache_folder.stat().st_mode & 0o077 == 0


def test_a_full_disk_after_the_tuning_does_not_lose_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path / "t.sqlite")
    store.check_writable()
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "_REPLACE", "SELECT nothing, that, fits")  # an OperationalError, as a full disk is
        patch.setattr(store_module, "write_pending", refuse)
        with pytest.warns(TilewrightWarning, match="kept in this process only .No space left"):
            put(store, 2, "BM=won")
        assert store.find(PLACES[2]) == Winner("BM=won", 2.5)
    store.check_writable()  # the next opportunity
    new_process()
    assert store.find(PLACES[2]) == Winner("BM=won", 2.5)


def refuse(*arguments: object) -> Path:
    raise OSError(28, "No space left on device")


def test_a_store_that_breaks_while_tuning_gives_a_warning(tmp_path: Path) -> None:
    store = filled(tmp_path / "t.sqlite")
    store.path.write_bytes(b"no database " * 100)
    with pytest.warns(TilewrightWarning, match="is damaged: .*; the result for f is not stored"):
        store.keep(PLACES[0], Winner("BM=1", 1.0), name="f", trials=[])
    with pytest.raises(tw.TuningError, match="is damaged"):
        store.put(PLACES[0], Winner("BM=1", 1.0), name="f", trials=[])


def test_checking_writes(tmp_path: Path) -> None:
    store = filled(tmp_path / "t.sqlite")
    before = store.path.read_bytes()
    store.check_writable()
    assert store.path.read_bytes() != before, "SQLite counts the changes of a file in its header"


def test_a_read_only_store_is_told_before_the_tuning_and_still_read() -> None:
    demand_another_user()
    script = (
        "import sys\nfrom tilewright.runtime.result_rows import Place, Winner\nfrom tilewright.runtime.result_store import Store\n"
        "from tilewright.errors import TuningError\nimport sqlite3, os\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "store = Store(__import__('pathlib').Path(sys.argv[1]))\n"
        "print(store.find(Place('GPU', '580 (CUDA 13.0)', 'abc', 'n=1')))\n"
        "try:\n    store.check_writable()\nexcept TuningError as error:\n    print(error.summary)\n"
    )
    with open_folder() as base:
        (base / "own").mkdir(0o755)
        store = filled(base / "own" / "t.sqlite")
        store.path.chmod(0o644)
        done = run_python(script, {}, str(store.path))
        assert done.returncode == 0, done.stderr
        first, second = done.stdout.splitlines()
        assert first == "Winner(config='BM=1', milliseconds=1.5)" and "cannot be written: attempt to write" in second


def test_the_journal_of_a_killed_writer_is_rolled_back_by_a_reader(tmp_path: Path) -> None:
    store = filled(tmp_path / "t.sqlite")
    connection = sqlite3.connect(store.path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE results SET config = 'half written'")
    connection.executemany(
        store_module._REPLACE, [("GPU", "d", "k", str(n), "x" * 900, 1.0, "n", "t", "c", "[]", "s") for n in range(50)]
    )  # more than the cache holds, so pages go to the file before the end
    for path in (store.path, tmp_path / "t.sqlite-journal"):
        shutil.copy(path, tmp_path / path.name.replace("t.", "killed."))
    connection.close()
    killed = tmp_path / "killed.sqlite"
    assert b"half written" in killed.read_bytes() and (tmp_path / "killed.sqlite-journal").stat().st_size
    assert Store(killed).find(PLACES[1]) == Winner("BM=1", 1.5)


def test_rows_of_other_types_are_refused() -> None:
    row = Row(*astuple(PLACES[0]), "BM=1", 1.5, "f", "0", "2026", "[]")
    values = list(row.values())
    assert row_of(values) == row and row_of([v.encode() if isinstance(v, str) else v for v in values]) == row
    for position in range(len(values)):
        for wrong in (None, 1, b"\xff", "other", float("nan"), float("inf"), [], True, 1.25):
            assert row_of([*values[:position], wrong, *values[position + 1 :]]) is None, (position, wrong)
    assert row_of(values[:-1]) is None and row_of([*values, ""]) is None and row_of([]) is None
    # The end of one field is not the beginning of the next.
    moved = Row(row.device + row.driver[:1], row.driver[1:], *astuple(row)[2:])
    assert moved.checksum != row.checksum


def test_names_with_lone_surrogates(tmp_path: Path) -> None:
    store = Store(tmp_path / "t.sqlite")
    place = Place("GPU", "d", "k", "key=\ud800")
    store.put(place, Winner("BM=\udcff", 1.0), name="\ud800", trials=[])
    new_process()
    assert store.find(place) == Winner("BM=\\udcff", 1.0)
