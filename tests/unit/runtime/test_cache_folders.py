"""The folder of the cache: which one it is, and that compiling works, with one warning, where it cannot be used."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.helpers.cache_process import (
    NOBODY,
    SCRIPT,
    SOURCES,
    Outcome,
    compile_in_process,
    demand_another_user,
    open_folder,
    run_python,
)

from tilewright.cli import main
from tilewright.errors import CompileError
from tilewright.runtime import cache as cache_module
from tilewright.runtime import clang, disassemble, folders, nvrtc
from tilewright.runtime.cache import DiskCache, default_cache, default_folder
from tilewright.runtime.compiler_log import Resources
from tilewright.runtime.folders import find_folder
from tilewright.runtime.nvrtc import CompiledModule
from tilewright.tune.compiling import CompilePool, Source

posix_only = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs owners and modes of files")


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def compile_cuda(source: str, *, name: str, arch: object, **options: object) -> CompiledModule:
        return CompiledModule(name, str(arch), source.encode(), "a log", Resources(registers=40))

    monkeypatch.setattr(nvrtc, "compile_cuda", compile_cuda)
    monkeypatch.setattr(nvrtc, "compiler_identity", lambda: "a stand-in")
    cache_module._warned.clear()
    yield
    cache_module._cache_in.cache_clear()


def compile_with(*caches: DiskCache) -> list[str]:
    """Compile in several caches, as one process does that makes several; return all warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for cache in caches:
            for source in ("one", "two", "one"):
                assert cache.compile(source, name="k", arch="sm_80").cubin == source.encode()
    return [str(w.message) for w in caught]


def is_a_file(folder: Path) -> str:
    folder.write_text("")
    return "not a folder"


def is_below_a_file(folder: Path) -> str:
    folder.rmdir() if folder.exists() else None
    folder.parent.mkdir(exist_ok=True)
    shutil.rmtree(folder.parent)
    folder.parent.write_text("")
    return "Not a directory"


def is_a_link_to_itself(folder: Path) -> str:
    folder.symlink_to(folder)
    return "symbolic links"


def is_a_dangling_link(folder: Path) -> str:
    folder.symlink_to(folder.parent / "nothing" / "there")
    return "No such file"


def is_a_fifo(folder: Path) -> str:
    os.mkfifo(folder)
    return "not a folder"


def is_open_to_all(folder: Path) -> str:
    folder.mkdir()
    folder.chmod(0o777)
    return "others can write"


def is_of_another_user(folder: Path) -> str:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    return "belongs to user"


UNUSABLE = [
    is_a_file, is_below_a_file, is_a_link_to_itself, is_a_dangling_link, is_a_fifo, is_open_to_all, is_of_another_user,
]  # fmt: skip


def demand_one_warning(folder: str | Path, why: str) -> None:
    """Compile in this folder, and ask the command line of it."""
    messages = compile_with(DiskCache(Path(folder)), DiskCache(Path(folder)))
    assert len(messages) == 1, messages
    assert why in messages[0] and "TILEWRIGHT_CACHE_DIR" in messages[0]


def demand_the_command_line_says(why: str) -> None:
    cleared = CliRunner().invoke(main, ["cache", "clear"])
    if cleared.exit_code == 0:  # a folder, of which nothing could be a kernel's
        assert cleared.exception is None and why in cleared.output, cleared.output
    else:
        assert isinstance(cleared.exception, SystemExit) and cleared.output.startswith("Error: "), cleared.output
    for arguments in (["cache"], ["cache", "size"], ["info"]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0 and result.exception is None, (arguments, result.output, result.exception)
        assert why in result.output and "cannot be used" in result.output, (arguments, result.output)
        facts = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
        assert why in facts.get("cache", facts)["problem"]


@posix_only
@pytest.mark.parametrize("make", UNUSABLE)
@pytest.mark.spread(2)
def test_compiling_works_without_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], str]
) -> None:
    folder = tmp_path / "deep" / "cache"
    folder.parent.mkdir()
    why = make(folder)
    demand_one_warning(folder, why)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(folder))
    demand_the_command_line_says(why)


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("~nosuchuser_really/cache", "no such user"),
        ("/srv/" + "n" * 300, "name too long"),
        ("/srv/" + "n/" * 3000, "name too long"),
        ("/proc/nothing/cache", "No such file"),
        ("/dev/null/cache", "Not a directory"),
        ("/dev/null", "not a folder"),
    ],
    ids=lambda text: text[:20],
)
@posix_only
def test_compiling_works_whatever_the_variable_says(monkeypatch: pytest.MonkeyPatch, named: str, why: str) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", named)
    messages = compile_with(default_cache(), default_cache())
    assert len(messages) == 1 and why.lower() in messages[0].lower(), messages
    cache_module._warned.clear()
    demand_the_command_line_says(why if "long" not in why else "ame too long")
    assert not Path("~nosuchuser_really").exists()


class SlowToLook(dict[Path, object]):
    """Lets other threads run between looking for a key and whatever follows."""

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        time.sleep(0.01)
        return found


@posix_only
def test_threads_warn_once_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_warned", SlowToLook())
    (tmp_path / "file").write_text("")
    cache, together = DiskCache(tmp_path / "file" / "cache"), threading.Barrier(8)

    def work(source: str) -> None:
        together.wait(60)
        cache.compile(source, name="k", arch="sm_80")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=work, args=(f"source {t}",)) for t in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(caught) == 1


def test_a_null_character_in_the_path() -> None:
    (message,) = compile_with(DiskCache(Path("/srv/a\0b")))
    assert "null" in message
    cache = DiskCache(Path("/srv/a\0b"))
    assert (cache.entries(), cache.clear()) == ([], 0) and "null" in str(cache.problem())


@posix_only
def test_a_name_that_does_not_print_is_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = os.fsencode(tmp_path) + b"/a\xff\n\x1b[31m"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", os.fsdecode(folder))
    assert compile_with(default_cache()) == []
    for arguments in (["cache"], ["cache", "--json"], ["info"], ["cache", "clear"]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0 and "\x1b" not in result.output and "a\\" in result.output
    os.chmod(folder, 0o777)
    (message,) = compile_with(DiskCache(default_folder()))
    assert message.isprintable()


CALLS = ["mkdir", "open", "fstat", "read", "write", "close", "replace", "stat", "lstat"]
CODES = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENOENT]


@posix_only
@pytest.mark.parametrize("code", CODES, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("function", CALLS)
def test_an_error_of_any_call_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, code: int
) -> None:
    folder = tmp_path / "cache"
    compile_with(DiskCache(folder))
    entry = next(folder.rglob("*.cubin"))
    if function in ("mkdir", "write", "replace", "close"):
        shutil.rmtree(folder)
    real = getattr(os, function)

    def refuse(*arguments: object, **options: object) -> object:
        if function == "close":
            real(*arguments)
        raise OSError(code, os.strerror(code), *(a for a in arguments[:1] if isinstance(a, (str, Path))))

    with warnings.catch_warnings(record=True) as caught, monkeypatch.context() as patch:
        warnings.simplefilter("always")
        cache = DiskCache(folder)
        patch.setattr(folders.os, function, refuse)
        modules = [cache.compile(source, name="k", arch="sm_80") for source in ("one", "two", "four")]
    assert [module.cubin for module in modules] == [b"one", b"two", b"four"]
    messages = [str(w.message) for w in caught]
    # What is missing is what a cache is for: then it is written, or its folder made.
    assert len(messages) <= 1 if code == errno.ENOENT else len(messages) == 1, messages
    left = [path for path in folder.rglob("*") if path.suffix == ".part"]
    assert not left
    cache_module._warned.clear()
    assert compile_with(DiskCache(folder)) == [], "it works again when the fault has gone"
    assert entry.exists()


@posix_only
@pytest.mark.parametrize("function", ["open", "write", "close", "replace"])
def test_an_interrupt_while_writing_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    folder, real = tmp_path / "cache", getattr(os, function)

    def interrupt(*arguments: object, **options: object) -> object:
        if function == "close":
            real(*arguments)
        raise KeyboardInterrupt

    cache = DiskCache(folder)
    with monkeypatch.context() as patch:
        patch.setattr(folders.os, function, interrupt)
        with pytest.raises(KeyboardInterrupt):
            cache.store("ab" * 32, CompiledModule("k", "sm_80", b"code", "", Resources()))
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert compile_with(cache) == [], "no lock stays held"


@posix_only
def test_a_folder_that_disappears_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    cache = DiskCache(folder)
    for source in ("a", "b", "c"):
        assert cache.compile(source, name="k", arch="sm_80").cubin == source.encode()
        assert len(list(folder.rglob("*.cubin"))) == 1
        shutil.rmtree(folder)
    real, gone = os.open, []

    def remove_before(path: object, *arguments: object, **options: object) -> int:
        if str(path).endswith(".part") and not gone:
            gone.append(path)
            shutil.rmtree(folder)
        return real(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", remove_before)
    assert compile_with(cache) == [] and gone
    assert len(list(folder.rglob("*.cubin"))) == 2


@posix_only
def test_the_current_folder_may_be_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for named, warns in ((str(tmp_path / "cache"), 0), ("relative/cache", 1)):
        script = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\n"
        gone.mkdir()
        done = run_python(script + SCRIPT, {"TILEWRIGHT_CACHE_DIR": named}, str(gone))
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["warnings"]) == warns


def test_which_folder_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative", "~nosuchuser_really/x"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert default_folder() == tmp_path / ".cache" / "tilewright"
    assert find_folder().note is None and not list(tmp_path.iterdir()), "looking makes nothing"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "~/here")
    assert default_folder() == tmp_path / "here"


def private_folders(base: Path, user: int) -> list[Path]:
    return sorted(path for path in base.iterdir() if path.name.startswith(f"tilewright-cache-{user}-"))


def demand_a_private_folder(outcome: Outcome, base: Path, user: int, again: Callable[[], Outcome]) -> None:
    assert outcome.calls == SOURCES and len(outcome.warnings) == 1, outcome
    assert "usual folder" in outcome.warnings[0] and outcome.problem == outcome.warnings[0]
    folder = Path(outcome.folder)
    status = folder.lstat()
    assert folder.parent == base and str(user) in folder.name
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o700, user) and folder.is_dir()
    second = again()
    assert second.calls == 0 and second.folder == outcome.folder and len(second.warnings) == 1


@posix_only
def test_the_private_folder_is_found_again_and_never_anothers(tmp_path: Path) -> None:
    """Here without another user: a home that does not exist."""
    base, user = tmp_path / "tmp", os.geteuid()
    base.mkdir()
    taken = [base / f"tilewright-cache-{user}-{c}" for c in "0a"]
    (tmp_path / "target").mkdir(0o700)
    taken[0].symlink_to(tmp_path / "target")
    taken[1].write_text("a file")
    (base / f"tilewright-cache-{user}-b").mkdir(0o755)
    (base / f"tilewright-cache-{user}-c").mkdir()
    (base / f"tilewright-cache-{user}-c").chmod(0o770)
    (base / "tilewright").mkdir(0o777)
    changes = {"TILEWRIGHT_CACHE_DIR": None, "XDG_CACHE_HOME": None, "HOME": "/nonexistent/home", "TMPDIR": str(base)}

    def run() -> Outcome:
        return compile_in_process(changes)

    demand_a_private_folder(run(), base, user, run)
    assert not list((tmp_path / "target").iterdir()) and not list((base / "tilewright").iterdir())
    assert not Path("/nonexistent").exists(), "no home is made"


@posix_only
def test_neither_a_home_nor_a_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    shutil.rmtree(tmp_path / "tmp")
    changes = {"TILEWRIGHT_CACHE_DIR": None, "XDG_CACHE_HOME": None, "HOME": "relative", "TMPDIR": None}
    none = "import tempfile\ndef none():\n    raise FileNotFoundError(2, 'No usable temporary directory')\ntempfile.gettempdir = none\n"
    done = run_python(none + SCRIPT, changes)
    assert done.returncode == 0, done.stderr
    outcome = Outcome(**json.loads(done.stdout))
    assert outcome.calls == SOURCES and len(outcome.warnings) == 1 and "No usable temporary" in outcome.warnings[0]


HOMES = {
    "unset": None,
    "empty": "",
    "nonexistent": "/nonexistent",
    "root's": "/root",
    "the root": "/",
    "a file": "/dev/null",
    "too long": "/" + "h" * 5000,
    "another's": "another's",
}


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.spread(2)
def test_a_user_without_a_home(home: str) -> None:
    demand_another_user()
    with open_folder() as base:
        (base / "another's").mkdir()
        named = HOMES[home] if home != "another's" else str(base / "another's")
        # What root puts there first must not be taken, nor followed.
        (base / f"tilewright-cache-{NOBODY}-a").mkdir(0o777)
        (base / f"tilewright-cache-{NOBODY}-b").symlink_to("/root")
        changes = {"TILEWRIGHT_CACHE_DIR": None, "XDG_CACHE_HOME": None, "HOME": named, "TMPDIR": str(base)}

        def run() -> Outcome:
            return compile_in_process(changes, user=NOBODY)

        demand_a_private_folder(run(), base, NOBODY, run)
        assert not list((base / f"tilewright-cache-{NOBODY}-a").iterdir())


def test_a_folder_of_root_is_not_used_by_another_user() -> None:
    demand_another_user()
    with open_folder() as base:
        folder = base / "cache"
        for mode, why in ((0o755, "belongs to user 0"), (0o777, "belongs to user 0"), (0o700, "belongs to user 0")):
            changes = {"TILEWRIGHT_CACHE_DIR": str(folder)}
            if not folder.exists():
                assert compile_in_process(changes).calls == SOURCES
            folder.chmod(mode)
            outcome = compile_in_process(changes, user=NOBODY)
            assert outcome.calls == SOURCES and len(outcome.warnings) == 1 and why in outcome.warnings[0], outcome
        (base / "closed").mkdir(0o700)
        outcome = compile_in_process({"TILEWRIGHT_CACHE_DIR": str(base / "closed" / "cache")}, user=NOBODY)
        assert len(outcome.warnings) == 1 and "Permission denied" in outcome.warnings[0]


def test_root_uses_nothing_of_another_user_and_leaves_nothing_in_their_home() -> None:
    demand_another_user()
    with open_folder() as base:
        changes = {"TILEWRIGHT_CACHE_DIR": str(base / "cache")}
        assert compile_in_process(changes, user=NOBODY).calls == SOURCES
        outcome = compile_in_process(changes)
        assert outcome.calls == SOURCES and f"belongs to user {NOBODY}" in outcome.warnings[0]
        home = base / "home"
        home.mkdir(0o755)
        os.chown(home, NOBODY, NOBODY)
        changes = {"TILEWRIGHT_CACHE_DIR": None, "XDG_CACHE_HOME": None, "HOME": str(home), "TMPDIR": str(base)}
        demand_a_private_folder(compile_in_process(changes), base, 0, lambda: compile_in_process(changes))
        assert not list(home.iterdir())


def test_a_folder_that_can_be_read_and_not_written_is_read() -> None:
    demand_another_user()
    with open_folder() as base:
        changes = {"TILEWRIGHT_CACHE_DIR": str(base / "cache")}
        assert compile_in_process(changes, user=NOBODY).calls == SOURCES
        for path in [*(base / "cache").rglob("*"), base / "cache"]:
            path.chmod(0o500 if path.is_dir() else 0o400)
        outcome = compile_in_process(changes, user=NOBODY)
        assert outcome.calls == 0 and outcome.warnings == [], "all was found"
        assert "Permission denied" in str(outcome.problem), "and `tilewright cache` says what would go wrong"
        next((base / "cache").rglob("*.cubin")).unlink()
        outcome = compile_in_process(changes, user=NOBODY)
        assert outcome.calls == 1 and len(outcome.warnings) == 1 and "Permission denied" in outcome.warnings[0]


def fake_clang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "clang"
    program.write_text("#!/bin/sh\necho 'Some clang version 15.0.7'\n")
    program.chmod(0o755)
    monkeypatch.setenv("TILEWRIGHT_CLANG", str(program))
    return program


@posix_only
def test_programs_without_a_temporary_folder_are_errors_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """clang and the disassembler work on files: without space for these, they cannot."""
    fake_clang(tmp_path, monkeypatch)
    monkeypatch.setattr(disassemble, "_command", lambda: ["/bin/cat"])

    def refuse(*arguments: object, **options: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folders.tempfile, "mkdtemp", refuse)
    for act in (
        lambda: clang.compile_hip("source", name="k", arch="gfx90a"),
        lambda: disassemble.disassemble(b"machine code"),
    ):
        with pytest.raises(CompileError, match="No space left") as error:
            act()
        assert "TMPDIR" in str(error.value)


@posix_only
def test_a_compiler_that_is_removed_meanwhile_is_an_error_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    program = fake_clang(tmp_path, monkeypatch)
    monkeypatch.setattr(nvrtc, "library_path", lambda: tmp_path / "libnvrtc.so.13")
    monkeypatch.setattr(clang, "find_clang", lambda arch=None: program)
    program.unlink()
    for identity in (nvrtc.compiler_identity, clang.compiler_identity):
        with pytest.raises(CompileError, match="No such file"):
            identity()
    assert clang.clang_version() is None


@posix_only
def test_info_works_in_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_clang(tmp_path, monkeypatch)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert clang.clang_version() == "15.0.7"
    result = CliRunner().invoke(main, ["info"])
    assert result.exit_code == 0 and result.exception is None


def test_nothing_is_compiled_ahead_for_a_cache_that_cannot_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", "/dev/null/cache")
    monkeypatch.setattr(CompilePool, "_start", lambda pool: pytest.fail("a process was started"))
    with warnings.catch_warnings(record=True) as caught, CompilePool(4) as pool:
        warnings.simplefilter("always")
        assert pool.compile([Source(f"source {n}", "k", "sm_80") for n in range(4)]) == 0
    assert len(caught) == 1
