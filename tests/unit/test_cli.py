"""The command line, called as a user calls it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from tests.helpers.terminal import needs_terminal, printed

import tilewright
from tilewright.backends import sim
from tilewright.cli import _COMMANDS, main, scripts
from tilewright.demo import tour
from tilewright.errors import CompileError

# A kernel of this file needs no compiler: it shows what it was called with.
KERNELS = """
import tilewright.errors

class Fake:
    def __init__(self, launch=None):
        self.launch = launch
    def __call__(self, dst, src, threads=32):
        pass
    def __getitem__(self, launch):
        return Fake(launch)
    def source(self, *args, arch):
        return f"// {self.launch} {args} {arch}\\n__global__ void fake() {{}}\\n"
    def ptx(self, *args, arch):
        return f".target {arch}\\n"
    def resources(self, *args, arch):
        return {"registers": 12, "spill_bytes": 0}

class Uncompiled(Fake):
    def resources(self, *args, arch):
        raise tilewright.errors.CompileError("no compiler", help="install it")

SIZE = 64
fake = Fake()
bare = Fake()
uncompiled = Uncompiled()
number = 3

class Many(Fake):
    def __call__(self, dst, *srcs):
        pass

class Holder:
    method = Fake()

def example_fake():
    return (2, 3), 128, ("D", "S")

several = Many()
def example_several():
    return 1, 32, ("D", "S", "T")

def example_wrong():
    return 1, 32, 5
def example_long():
    return 1, 32, ("D", "S", 32, "T")
def example_asks(n):
    return 1, 32, ("D", "S")
wrong = long = asks = fake
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    return str(path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_help_lists_the_commands_and_each_has_help() -> None:
    listing = call("--help")
    assert listing.exit_code == 0
    for name, (_, summary) in _COMMANDS.items():
        assert f"{name}  " in listing.output and summary.split(",")[0] in listing.output
        detail = call(name, "--help")
        assert detail.exit_code == 0
        assert "--json" in detail.output


def test_version() -> None:
    assert call("--version").output == f"tilewright, version {tilewright.__version__}\n"


def test_unknown_command_is_a_usage_error() -> None:
    result = call("frobnicate")
    assert result.exit_code == 2
    assert "No such command 'frobnicate'" in result.output


def test_info(cache_folder: Path) -> None:
    text = call("info")
    assert text.exit_code == 0, text.output
    assert tilewright.__version__ in text.output and str(cache_folder) in text.output
    facts = json.loads(call("info", "--json").output)
    assert facts["versions"]["tilewright"] == tilewright.__version__
    assert facts["cache"] == {"folder": str(cache_folder), "kernels": 0, "bytes": 0}
    assert all(set(entry) == {"what", "purpose", "install"} for entry in facts["missing"])


@needs_terminal
@pytest.mark.parametrize("width", [40, 80])
def test_info_fits_the_terminal(cache_folder: Path, width: int) -> None:
    """Sentences are folded between words; the command that installs something stays in one line, to be copied."""
    lines = printed(width, sys.executable, "-m", "tilewright", "info")
    kept = {f"    {entry['install']}" for entry in json.loads(call("info", "--json").output)["missing"]}
    assert kept <= set(lines)
    assert [line for line in lines if len(line) > width and " " in line.strip() and line not in kept] == []
    assert " ".join("\n".join(lines).split()) == " ".join(call("info").output.split())


def test_errors_are_called_errors_once() -> None:
    """The class of a user's error says nothing that "Error" does not; a fault of the package is named."""
    result = call("layout", "(4,x)")
    assert result.exit_code == 1 and result.output.startswith("Error: cannot read the expression"), result.output


def test_kinds_are_said_once(tmp_path: Path) -> None:
    """The message begins with the kind in words; `--json` has the kind as it is written in programs."""
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, tilewright as tw\n"
        "@tw.kernel\ndef racing(y):\n    y[tw.thread_idx.x] = tw.block_idx.x\n"
        "racing[2, 32](np.zeros(32, np.int32))\n"
    )
    assert call("check", str(script)).stdout.startswith("overlapping writes: store to ")
    assert json.loads(call("check", "--json", str(script)).stdout)["findings"][0]["kind"] == "overlapping-writes"


def test_info_names_the_command_for_what_is_missing(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> None:
    from tilewright.runtime import nvrtc

    def absent() -> tuple[int, int]:
        raise CompileError("NVRTC is not installed")

    monkeypatch.setattr(nvrtc, "nvrtc_version", absent)
    output = call("info").output
    assert "NVRTC, the CUDA compiler" in output
    assert 'pip install "tilewright[cuda]"' in output


def test_info_knows_whether_clang_is_there(monkeypatch: pytest.MonkeyPatch, cache_folder: Path, tmp_path: Path) -> None:
    fake = tmp_path / "clang"
    fake.write_text("#!/bin/sh\necho 'Some clang version 15.0.7 (a build)'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("TILEWRIGHT_CLANG", str(fake))
    facts = json.loads(call("info", "--json").output)
    assert facts["versions"]["clang"] == "15.0.7"
    assert not any("clang" in entry["what"] for entry in facts["missing"])
    monkeypatch.setenv("TILEWRIGHT_CLANG", str(tmp_path / "nothing"))
    output = call("info").output
    assert (
        "clang 14 or later, for machine code for AMD's gfx908 and gfx90a (gfx942: clang 17)\n    apt install clang-14"
        in output
    )


def test_cache_of_an_empty_folder(cache_folder: Path) -> None:
    for arguments in (["cache"], ["cache", "size"]):
        result = call(*arguments)
        assert result.exit_code == 0, result.output
        assert result.output == f"{cache_folder}: 0 compiled kernels, 0 bytes\n"
        data = json.loads(call(*arguments, "--json").output)
        assert data == {"folder": str(cache_folder), "kernels": 0, "bytes": 0}
    assert "removed 0 compiled kernels" in call("cache", "clear").output
    assert json.loads(call("cache", "clear", "--json").output)["removed"] == 0


def test_show_prints_source_and_resources_of_the_example(file: str) -> None:
    result = call("show", f"{file}:fake")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "// ((2, 3), 128) ('D', 'S', 32) sm_90a",
        "__global__ void fake() {}",
        "// registers: 12",
        "// spill bytes: 0",
    ]


def test_show_takes_arguments_grid_and_block(file: str) -> None:
    result = call(
        "show", f"{file}:bare", "--arg", "dst=SIZE * 2", "--arg", "src='x'", "--grid", "4,5", "--block", "32,8"
    )
    assert result.output.splitlines()[0] == "// ((4, 5), (32, 8)) (128, 'x', 32) sm_90a"
    assert "(SIZE" not in result.output
    result = call("show", f"{file}:fake", "--arg", "src=7")
    assert result.output.splitlines()[0] == "// ((2, 3), 128) ('D', 7, 32) sm_90a"


def test_show_makes_arrays_of_their_description(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(tilewright), "spec", lambda *args, **named: (*args, *named.items()))
    result = call("show", f"{file}:bare", "--arg", "dst=float32[2048,1024]", "--arg", "src=int8[:,:]")
    assert "(('float32', (2048, 1024)), ('int8', 2), 32)" in result.output
    result = call("show", f"{file}:bare", "--arg", "dst=float32[8,4]:[1,8]", "--arg", "src=bfloat16[:]")
    assert "(('float32', (8, 4), ('stride', (1, 8))), ('bfloat16', 1), 32)" in result.output


def test_show_gives_a_starred_parameter_all_its_arguments(file: str) -> None:
    assert "(1, 32) ('D', 'S', 'T')" in call("show", f"{file}:several").output
    texts = [part for text in ("dst=1", "srcs=2", "srcs=3", "srcs=4") for part in ("--arg", text)]
    assert "(1, 2, 3, 4)" in call("show", f"{file}:several", *texts).output


def test_show_ptx_and_json(file: str) -> None:
    assert call("show", f"{file}:fake", "--ptx", "--arch", "sm_80").output.startswith(".target sm_80\n")
    data = json.loads(call("show", f"{file}:fake", "--ptx", "--json").output)
    assert data["kernel"] == "fake" and data["arch"] == "sm_90a" and data["ptx"] == ".target sm_90a\n"
    assert data["resources"] == {"registers": 12, "spill_bytes": 0}


def test_show_without_a_compiler_still_prints_the_source(file: str) -> None:
    result = call("show", f"{file}:uncompiled", "--arg", "dst=1", "--arg", "src=2")
    assert result.exit_code == 0
    assert "__global__" in result.stdout
    assert "no compiler" in result.stderr and "install it" in result.stderr


def test_show_loads_a_file_called_like_a_standard_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import copy

    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside.py").write_text("SIZE = 5\n")
    (tmp_path / "copy.py").write_text("import beside\n" + KERNELS + "\nSIZE = beside.SIZE\n")
    result = call("show", f"{tmp_path / 'copy.py'}:bare", "--arg", "dst=SIZE", "--arg", "src=1")
    assert result.exit_code == 0, result.output
    assert "(5, 1, 32)" in result.output
    assert sys.modules["copy"] is copy


_NAMES = ["fake", "bare", "uncompiled", "Holder.method", "several", "wrong", "long", "asks"]


def test_show_lists_kernels_where_none_is_named(file: str) -> None:
    assert call("show", file).output.split() == _NAMES
    assert json.loads(call("show", file, "--json").output) == {"kernels": _NAMES}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["{file}:nothing"], 2, "nothing is not defined"),
        (["{file}:number"], 2, "number is not a kernel"),
        (["{file}x:fake"], 2, "does not exist"),
        (["{file}:bare"], 1, "bare needs a value for dst, src"),
        (["{file}:bare", "--arg", "other=1"], 2, "is not NAME=VALUE with a NAME of: dst, src, threads"),
        (["{file}:bare", "--arg", "dst"], 2, "is not NAME=VALUE"),
        (["{file}:bare", "--arg", "dst=no_such"], 2, "NameError"),
        (["{file}:bare", "--arg", "dst=float32[4,:]"], 2, "':' among extents is not a number"),
        (["{file}:wrong"], 1, "example_wrong() returned (1, 32, 5) help: return (grid, block, args)"),
        (
            ["{file}:long"],
            1,
            "that example_long() returns: too many positional arguments help: long(dst, src, threads=32)",
        ),
        (["{file}:asks"], 1, "example_asks() cannot be called: missing a required argument: 'n'"),
        (["{file}:fake", "--grid", "two"], 2, "'two' is not one to three numbers with commas"),
        (["{file}:fake", "--block", "1,2,3,4"], 2, "is not one to three numbers with commas"),
        (["{file}:fake", "--arch", "sm_1"], 2, "no architecture is called 'sm_1'"),
    ],
)
def test_show_refuses_bad_input(file: str, arguments: list[str], status: int, message: str) -> None:
    result = call("show", *(argument.format(file=file) for argument in arguments))
    assert result.exit_code == status, result.output
    assert message in " ".join(result.output.split()).replace("│ ", "")


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> types.SimpleNamespace:
    """A folder of two examples in place of the real ones; `offset` makes the second one wrong."""
    from tilewright.demo import examples as module

    monkeypatch.setattr(module, "examples_folder", lambda: tmp_path)
    text = """
import numpy as np
from tilewright.demo import Case, Trial

def cases(backend, quick):
    x = np.arange(4.0)
    def prepare():
        return Trial(lambda: None, lambda: x + OFFSET, expected=x, limit=0.1)
    return [Case("NAME", f"{backend} {quick}", prepare)]
"""

    def write(offset: float) -> None:
        (tmp_path / "01_first.py").write_text(text.replace("OFFSET", "0").replace("NAME", "first"))
        (tmp_path / "02_second.py").write_text(text.replace("OFFSET", str(offset)).replace("NAME", "second"))

    return types.SimpleNamespace(write=write)


def test_demo_passes(examples: types.SimpleNamespace) -> None:
    examples.write(0.05)
    result = call("demo", "--all", "--backend", "sim")
    assert result.exit_code == 0, result.output
    assert "first" in result.stdout and "second" in result.stdout and "sim True" in result.stdout
    data = json.loads(call("demo", "--backend", "sim", "--json", "--full").stdout)
    assert data["passed"] and [case["name"] for case in data["cases"]] == ["first", "second"]
    assert data["cases"][1]["size"] == "sim False"
    assert data["cases"][1]["max_error"] == pytest.approx(0.05)


def test_demo_exits_with_1_where_a_check_fails(examples: types.SimpleNamespace) -> None:
    examples.write(0.5)
    result = call("demo", "--all", "--backend", "sim")
    assert result.exit_code == 1
    assert "FAILED" in result.stdout
    assert "second (sim True): the greatest error is 0.5, the limit 0.1" in result.stderr
    failed = call("demo", "--all", "--backend", "sim", "--json")
    assert failed.exit_code == 1
    assert [case["passed"] for case in json.loads(failed.stdout)["cases"]] == [True, False]


def test_demo_runs_the_chosen_examples_only(examples: types.SimpleNamespace) -> None:
    examples.write(0.5)
    result = call("demo", "first", "--backend", "sim")
    assert result.exit_code == 0
    assert "second" not in result.stdout
    unknown = call("demo", "third", "--backend", "sim")
    assert unknown.exit_code == 2
    assert "no example is called 'third'; there are 01_first, 02_second" in " ".join(unknown.output.split())


def test_demo_interrupted_leaves_what_was_done(examples: types.SimpleNamespace, tmp_path: Path) -> None:
    examples.write(0.0)
    (tmp_path / "03_third.py").write_text(
        """
from tilewright.demo import Case

def cases(backend, quick):
    def prepare():
        raise KeyboardInterrupt
    return [Case("third", "-", prepare)]
"""
    )
    result = call("demo", "--all", "--backend", "sim")
    assert result.exit_code == 130
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["first", "second"]
    assert "interrupted after 2 of 3 cases" in result.stderr


def test_the_tour_finds_the_race_and_a_layout_without_conflicts() -> None:
    result = call("demo", "--backend", "sim", "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    runs, race, conflict, cuda = data["stops"]
    assert data["passed"] and runs["found"]["equal"]
    assert race["found"]["kinds"] == ["race"]
    assert "_tour.py" in race["code"] and "put tw.sync_threads() between the two" in race["code"]
    wavefronts = conflict["found"]
    assert wavefronts["wavefronts"] > wavefronts["wavefronts_after"] == wavefronts["ideal"]
    assert cuda["code"].startswith('extern "C" __global__ void') and cuda["code"].count("__syncthreads();") == 1
    text = call("demo", "--backend", "sim").stdout
    assert all(stop["title"] in text for stop in data["stops"])
    assert "--all" in text
    assert "3 │ 0 1 2 3 4 5 6 7   3 │ 3 2 1 0 7 6 5 4" in conflict["code"]


@pytest.mark.parametrize("columns", [30, 60, 200])
@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_tour_fits_its_terminal(columns: int, is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said folds at words, also in a pipe; nothing of a drawing stands outside; code stays as it is."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for stop in (tour.bank_conflict(), tour.in_cuda(), tour.runs()):
        console = Console(
            file=io.StringIO(), force_terminal=is_terminal, soft_wrap=True, highlight=False, no_color=True
        )
        tour.show(stop, 1, console)
        assert isinstance(console.file, io.StringIO)
        shown = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())
        code = [] if stop.language == "banks" else [f"    {line}".rstrip() for line in stop.code.splitlines()]
        lines = shown.splitlines()
        wide = [line for line in lines if len(line) > min(columns, 100) and line.rstrip() not in code]
        assert all(line.startswith("    ") for line in wide), wide  # the expression of the layout
        assert all(line in map(str.rstrip, lines) for line in code)
        assert all(len(line) <= columns for line in lines if "│" in line)
        assert " ".join(shown.split()) == " ".join(f"1. {stop.title} {stop.text} {stop.code}".split())


def test_the_tour_has_colours_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = tour.bank_conflict()
    for no_color in (False, True):
        console = Console(
            file=io.StringIO(), force_terminal=True, soft_wrap=True, color_system="standard", no_color=no_color
        )
        tour.show(stop, 1, console)
        assert isinstance(console.file, io.StringIO)
        backgrounds = re.findall(r"\x1b\[30;((?:4|10)[0-7])m *(\d)", console.file.getvalue())
        # As many colours as banks, and each bank in its own: 8 rows of 8, before and after.
        assert len(set(backgrounds)) == len({bank for _, bank in backgrounds}) == (0 if no_color else 8)
        assert len(backgrounds) == (0 if no_color else 128)


def test_the_tour_prints_in_the_locale_c() -> None:
    """There Python lets bytes that it could not decode through, and no other sign."""
    done = subprocess.run(
        (sys.executable, "-m", "tilewright", "demo", "--backend", "sim"),
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii:surrogateescape"},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"3 | 0 1 2 3 4 5 6 7   3 | 3 2 1 0 7 6 5 4" in done.stdout


def test_the_tour_interrupted_leaves_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> tour.Stop:
        raise KeyboardInterrupt

    monkeypatch.setattr(tour, "bank_conflict", interrupt)
    result = call("demo", "--backend", "sim")
    assert result.exit_code == 130
    assert "2. Without its barrier" in result.stdout and "Next:" not in result.stdout
    assert result.stderr == "interrupted after 2 stops of the tour\n"
    found = json.loads(call("demo", "--backend", "sim", "--json").stdout)
    assert found["interrupted"] and len(found["stops"]) == 2


def test_demo_obeys_the_variable_that_forces_the_simulator(
    examples: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples.write(0.0)
    monkeypatch.setenv("TILEWRIGHT_BACKEND", "sim")
    assert json.loads(call("demo", "--all", "--json").stdout)["backend"] == "sim"


def test_module_starts_the_command_line() -> None:
    import subprocess

    result = subprocess.run([sys.executable, "-m", "tilewright", "--version"], capture_output=True, text=True)
    assert result.stdout.strip().endswith(tilewright.__version__), result.stderr


SCRIPT = """
import numpy as np
import tilewright as tw

@tw.kernel
def reverse(x, y):
    s = tw.shared(tw.float32, 64)
    s[tw.thread_idx.x] = x[tw.thread_idx.x]
    {barrier}
    y[tw.thread_idx.x] = s[63 - tw.thread_idx.x]

{before}
reverse[1, 64](np.ones(64, np.float32), np.zeros(64, np.float32))
{after}
"""


@pytest.mark.parametrize(
    ("parts", "status", "summary"),
    [
        ({}, 1, "1 finding in 1 launch"),
        ({"barrier": "tw.sync_threads()"}, 0, "0 findings in 1 launch"),
        ({"before": "1 / 0"}, 1, "0 findings: the script failed before it launched a kernel"),
        ({"before": "raise SystemExit"}, 0, "0 findings: the script launched no kernel"),
        ({"barrier": "tw.sync_threads()", "after": "1 / 0"}, 1, "0 findings in 1 launch; then the script failed"),
    ],
    ids=str,
)
def test_check_says_what_it_looked_at(tmp_path: Path, parts: dict[str, str], status: int, summary: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(**{"barrier": "", "before": "", "after": "", **parts}))
    result = call("check", str(script))
    assert result.exit_code == status
    assert summary in result.stdout.splitlines()
    assert "race: race" not in result.stdout
    assert all(part not in result.output for part in ("runpy", str(Path(tilewright.__file__).parent)))
    found = json.loads(call("check", "--json", str(script)).stdout)
    assert found["launches"] == ("1 launch" in summary)


def test_check_tells_of_a_backend_that_there_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    monkeypatch.setenv("TILEWRIGHT_BACKEND", "banana")
    result = call("check", str(script))
    assert result.exit_code == 1
    assert "TILEWRIGHT_BACKEND is 'banana'" in result.output and "ran" not in result.output


ORDERED = """\
import tilewright as tw
@tw.kernel
def tickets(y, ticket):
    if tw.thread_idx.x == 0:
        y[tw.atomic_add(ticket, 0, 1)] = tw.block_idx.x
def example_tickets():
    return 4, 32, (tw.spec(tw.int32, (4,)), tw.spec(tw.int32, (1,)))
"""


@pytest.mark.parametrize(("seconds", "told"), [(0.0, True), (1000.0, False)])
def test_check_tells_how_many_blocks_are_done(
    seconds: float, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of launches that take long, on stderr; another simulation in this process tells nobody."""
    script = tmp_path / "long.py"
    text = "import numpy as np, tilewright as tw\n@tw.kernel\ndef fill(x):\n    x[tw.block_idx.x] = 1\n"
    script.write_text(f"{text}fill[300_000, 1](np.zeros(300_000, np.float32))\n", encoding="utf-8")
    monkeypatch.setattr(scripts, "_QUIET_SECONDS", seconds)
    result = call("check", str(script), "--json")
    assert (" of 300,000 blocks, 0 s\n" in result.stderr) is told and json.loads(result.stdout)["launches"] == 1
    assert sim.teller.get() is None


def test_check_of_a_kernel_in_other_orders(tmp_path: Path) -> None:
    script = tmp_path / "ordered.py"
    script.write_text(ORDERED)
    assert call("check", f"{script}:tickets").exit_code == 0
    result = call("check", f"{script}:tickets", "--schedules", "6", "--seed", "3", "--grid", "5", "--arg", "y=int32[5]")
    assert result.exit_code == 1
    assert "order-dependent: " in result.output
    assert "each in the order without a seed and in those of the seeds 3 to 8" in result.output
    found = json.loads(call("check", f"{script}:tickets", "--schedules", "1", "--seed", "7", "--json").stdout)
    assert [(f["kind"], f["seed"]) for f in found["findings"]] == [("order-dependent", 7)]
    assert call("check", f"{script}:tickets", "--schedules", "2", "--seed", "x").exit_code == 2
    assert call("check", f"{script}:nothing").exit_code == 2


def test_a_seed_without_orders_is_the_script_s_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    assert "['--seed', '3']" in call("check", str(script), "--seed", "3").stdout


def test_show_names_the_line_of_a_script_that_raises(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("x = 1\nx / 0\n")
    result = call("show", f"{script}:kernel")
    assert result.exit_code == 1
    assert f"{script}:2 raised ZeroDivisionError: division by zero" in result.output
    assert "Traceback" not in result.output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [("layout", "(4,8):(8,1)"), ("--help",), ("--version",), ("draw", "--help"), ("layout", "(4,8):(8,1)", "--json")],
    ids=" ".join,
)
@pytest.mark.spread(2)
def test_a_full_disk_is_an_error_in_one_line(arguments: tuple[str, ...]) -> None:
    # Python holds output back, and writes it at the end once more, unless the environment says otherwise.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tilewright", *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["Error: the output cannot be written: No space left on device"]


@pytest.mark.parametrize("kind", ["missing", "a file", "other things"])
def test_cache_clear_of_what_is_no_cache_says_so(kind, tmp_path, monkeypatch):
    """It said "removed 0 compiled kernels", as after a cache that was empty."""
    folder = tmp_path / "place"
    if kind == "a file":
        folder.write_text("mine")
    elif kind == "other things":
        folder.mkdir()
        (folder / "thesis.txt").write_text("mine")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(folder))
    result = CliRunner().invoke(main, ["cache", "clear"])
    assert result.exit_code == 1 and "removed 0" not in result.output
    assert "nothing was removed" in " ".join(result.output.split())
    assert kind != "other things" or (folder / "thesis.txt").exists()


def test_cache_clear_of_an_empty_cache_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    assert CliRunner().invoke(main, ["cache", "clear"]).exit_code == 0
