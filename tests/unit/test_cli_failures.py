"""What the command line says where a user's file fails, nothing can be written, or an option has to mean one thing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from tests.helpers.compilers import needs_nvrtc

from tilewright.cli import main

SCRIPT = """
import numpy as np
import tilewright as tw

@tw.kernel
def misspelt(y):
    y[0] = no_such_name

@tw.kernel
def fine(y):
    y[tw.thread_idx.x] = 1

def example_misspelt():
    return 1, 32, (np.zeros(32, np.float32),)

def example_fine():
    return 1, 32, (np.zeros(32, np.float32),)

@tw.kernel
def without_arguments(y):
    y[0] = 1

def example_without_arguments():
    raise RuntimeError("not today")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize("command", ["check", "show", "bench"])
@pytest.mark.parametrize(
    ("kernel", "line", "told"),
    [
        ("misspelt", 7, "NameError: name 'no_such_name' is not defined"),
        ("without_arguments", 24, "RuntimeError: not today"),
    ],
)
def test_what_a_kernel_s_file_raises_has_a_line_and_no_traceback(
    command: str, kernel: str, line: int, told: str, script: Path
) -> None:
    result = call(command, f"{script}:{kernel}", *(["--backend", "sim"] if command == "bench" else []))
    assert result.exit_code == 1
    assert f"{script}:{line} raised {told}" in result.output
    assert "Traceback" not in result.output and "site-packages" not in result.output


def test_an_error_of_the_package_outside_of_kernels_has_the_line_that_called_it(tmp_path: Path) -> None:
    path = tmp_path / "layouts.py"
    path.write_text("import tilewright as tw\n\ntw.make_layout('x')\n")
    result = call("show", path)
    assert f"{path}:3 raised LayoutError: an extent is not an integer: 'x'" in result.output


@pytest.mark.parametrize("command", ["check", "profile"])
def test_a_script_that_is_not_python_shows_no_frames_of_others(command: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ndef f(:\n")
    result = call(command, path)
    assert result.exit_code == 1 and "SyntaxError" in result.output
    assert f'File "{path}", line 2' in result.output and "runpy" not in result.output


def test_a_drawing_is_refused_before_it_is_worked_out(tmp_path: Path) -> None:
    result = call("draw", "no_such_function(4:1)", "-o", tmp_path / "missing" / "x.svg")
    assert result.exit_code == 1 and "to write x.svg to, does not exist" in result.output


def run(*arguments: str, shell: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    command = f'"$0" -m tilewright "$@" {shell}'
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | variables
    return subprocess.run(
        ["sh", "-c", command, sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment
    )


NEEDS_SHELL = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no sh")


@NEEDS_SHELL
@pytest.mark.parametrize("shell", [">&-", ">&- 2>&-", "| true"])
@pytest.mark.parametrize("command", ["layout", "draw"])
@pytest.mark.spread(3)
def test_a_closed_output_is_no_error(command: str, shell: str) -> None:
    done = run(command, "(4,8):(8,1)", shell=shell)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


@needs_nvrtc
def test_a_warning_of_no_line_of_the_user_s_names_none(script: Path, tmp_path: Path) -> None:
    """It named a line of click's: `click/core.py:911: TilewrightWarning: ... return callback(*args, **kwargs)`."""
    place = tmp_path / "file"
    place.write_text("mine")
    command = [sys.executable, "-m", "tilewright", "show", f"{script}:fine", "--ptx"]
    environment = os.environ | {"TILEWRIGHT_CACHE_DIR": str(place)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0 and done.stderr.startswith(f"warning: the kernel cache {place} cannot be used")
    assert done.stderr.count("cannot be used") == 1 and "click" not in done.stderr


@pytest.mark.parametrize("arguments", [("demo",), ("demo", "--all"), ("bench", "transpose")], ids=" ".join)
def test_a_backend_that_there_is_not_is_refused_at_once(arguments: tuple[str, ...], monkeypatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_BACKEND", "banana")
    result = call(*arguments)
    assert result.exit_code == 1
    assert result.output.startswith("Error: the environment variable TILEWRIGHT_BACKEND is 'banana'")


# --- one meaning of --json ---------------------------------------------------------------------------------


def commands(group: click.Group, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    found: dict[tuple[str, ...], click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= commands(command, (*path, name))
        else:
            found[(*path, name)] = command
    return found


def test_every_command_takes_json_and_means_the_same_by_it() -> None:
    """Law: `--json` takes no value, and prints JSON in place of text."""
    assert isinstance(main, click.Group)
    for path, command in commands(main).items():
        options = [p for p in command.params if isinstance(p, click.Option) and "--json" in p.opts]
        assert [(o.is_flag, o.help) for o in options] == [(True, "Print JSON instead of text.")], path


@pytest.mark.parametrize(
    "arguments",
    [
        ("info",),
        ("cache",),
        ("cache", "size"),
        ("cache", "clear"),
        ("layout", "(4,8):(8,1)"),
        ("draw", "(4,8):(8,1)"),
        ("show", "{script}"),
        ("show", "{script}:fine"),
        ("check", "{script}"),
        ("check", "{script}:fine"),
        ("profile", "{script}"),
        ("bench", "{script}:fine", "--backend", "sim"),
        ("demo", "--unpack", "{folder}/new"),
    ],
    ids=" ".join,
)
def test_json_is_all_that_is_printed(arguments, script: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    given = [argument.format(script=script, folder=tmp_path) for argument in arguments]
    result = call(*given, "--json")
    assert result.exit_code == 0, result.output
    assert isinstance(json.loads(result.stdout), dict)
    if arguments[0] == "cache" and len(arguments) == 2:
        assert json.loads(call("cache", "--json", arguments[1]).stdout)["folder"] == str(tmp_path / "cache")


def test_bench_writes_its_json_beside_the_table(script: Path, tmp_path: Path) -> None:
    result = call("bench", f"{script}:fine", "--backend", "sim", "-o", tmp_path / "out.json")
    assert "instructions" in result.stdout
    assert json.loads((tmp_path / "out.json").read_text())["passed"]


# --- the width of tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize(
    "arguments",
    [
        ("draw", "SM80_16x8x16_F32BF16BF16F32_TN"),
        ("draw", "make_tiled_mma(SM80_16x8x16_F32BF16BF16F32_TN, (2,2,1))"),
        ("draw", "(32,32):(32,1)", "--banks", "float16"),
        ("profile", "{script}"),
        ("bench", "{script}:fine", "--backend", "sim"),
    ],
    ids=" ".join,
)
def test_tables_have_the_width_that_columns_says(arguments, width: int, script: Path, monkeypatch) -> None:
    """Notes and titles are wrapped, and columns that do not fit follow below: no figure is cut."""
    monkeypatch.setenv("COLUMNS", str(width))
    script.write_text(SCRIPT + "\nfine[1, 32](np.zeros(32, np.float32))\n")
    result = call(*(argument.format(script=script) for argument in arguments))
    assert result.exit_code == 0, result.output
    assert max(len(line) for line in result.stdout.splitlines()) <= width
    if arguments[0] in ("profile", "bench"):
        assert "instructions" in result.stdout
    if arguments[0] == "bench":  # a profile cuts the text of source lines
        assert "…" not in result.stdout
