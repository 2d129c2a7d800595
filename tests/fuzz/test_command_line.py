"""Hostile arguments of the command line: each command ends soon, with little output, and never with a traceback."""

import importlib
import json
import os
import pkgutil
import random
import stat

import pytest
from click.testing import CliRunner
from tests.fuzz.watchdog import TooMuchError, watched
from tests.helpers.slow import scaled

import tilewright as tw
from tilewright import cli, suites
from tilewright.cli import main
from tilewright.cli.expressions import functions
from tilewright.layout.text import DEPTH, LARGEST

# Imported before anything is counted.
for _module in [
    *pkgutil.iter_modules(suites.__path__, "tilewright.suites."),
    *pkgutil.iter_modules(cli.__path__, "tilewright.cli."),
]:
    importlib.import_module(_module.name)
tw.draw.text(tw.Layout(4))

STEPS = 6_000_000
MEMORY = 64 * 2**20
OUTPUT = 400_000

NUMBERS = [
    *("0", "1", "2", "3", "4", "7", "8", "16", "-1", "-4", "32", "63", "64", "65", "255", "4096", "1000000", "1000000000"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "1" + "0" * 40, "9" * 4299, "9" * 4301),
    *("9" * 9000, "0" * 5000 + "1", "1@0", "1@1", "1@63", "1@64", "1@3000000", "1" + "@0" * 8, "1" + "@0" * 9, "-3@2@1"),
]  # fmt: skip


def run(*arguments):
    """Run a command; return its exit status and output. Fails for what takes too much, and for what is no error."""
    with watched(STEPS, MEMORY):
        result = CliRunner().invoke(main, arguments)
    shown = [a[:80] for a in arguments]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(shown) from result.exception
    assert "Traceback" not in result.output, shown
    assert len(result.output) < OUTPUT, (shown, len(result.output))
    return result.exit_code, result.output


class Grammar:
    """Draws expressions of layouts, small and monstrous."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def number(self):
        return self.random.choice(NUMBERS[:12]) if self.random.random() < 0.8 else self.random.choice(NUMBERS)

    def tuple(self, depth):
        if depth <= 0 or self.random.random() < 0.4:
            return "_" if self.random.random() < 0.05 else self.number()
        width = self.random.choice((0, 1, 2, 2, 3, 4)) if self.random.random() < 0.97 else self.random.choice((40, 300))
        return "(" + ",".join(self.tuple(depth - 1 if width < 9 else 0) for _ in range(width)) + ")"

    def like(self, shape):
        """Return a stride of the form of a shape."""
        found, at = "", 0
        while at < len(shape):
            if shape[at] in "(),_":
                found, at = found + shape[at], at + 1
            else:
                while at < len(shape) and shape[at] not in "(),_":
                    at += 1
                found += self.number()
        return found

    def operand(self, depth):
        kind = self.random.random()
        if kind < 0.35 or depth <= 0:
            shape = self.tuple(3)
            return shape if self.random.random() < 0.3 else f"{shape}:{self.like(shape)}"
        if kind < 0.45:
            return f"Sw<{self.number()},{self.number()},{self.number()}>"
        name = self.random.choice(sorted(functions()))
        arguments = [self.expression(depth - 1) for _ in range(self.random.choice((0, 1, 1, 2, 2, 2, 3)))]
        if self.random.random() < 0.1:
            arguments.append(f"{self.random.choice(('rank', 'mode', 'shift', 'n', 'order'))}={self.number()}")
        return f"{name}({', '.join(arguments)})"

    def expression(self, depth):
        length = 1 if self.random.random() < 0.85 else self.random.choice((2, 3, 5))
        return " o ".join(self.operand(depth) for _ in range(length))

    def text(self):
        text = self.expression(2)
        kind = self.random.random()
        if kind < 0.1:
            n = self.random.choice((10, 70, 1000, 4000))
            text = "(" * n + text + ")" * self.random.choice((n, n - 1))
        elif kind < 0.2:
            at = self.random.randrange(len(text) + 1)
            text = (
                text[:at]
                + self.random.choice(("", " ", "\0", "é", "²", "٣", "@", "<", ":", ")", "\n", "'"))
                + text[at + 1 :]
            )
        return text


def one(seed):
    text = Grammar(seed).text()
    command = ["layout", "draw"][seed % 2]
    extra = [[], ["--json"], ["--limit", "64,64"], ["--banks", "float16"]][
        seed // 2 % (2 if command == "layout" else 4)
    ]
    status, output = run(command, *extra, "--", text)
    if status == 0 and "--json" in extra:
        json.loads(output)


@pytest.mark.spread(6)
@pytest.mark.parametrize("first", range(0, 160, 8))
def test_expressions_end_soon(first):
    for seed in range(first, first + 8):
        try:
            one(seed)
        except (AssertionError, TooMuchError) as error:
            raise AssertionError(f"seed {seed}: {Grammar(seed).text()[:300]}") from error


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 5000, 500))
def test_more_expressions_end_soon(first):
    for seed in range(first, first + scaled(500)):
        try:
            one(seed)
        except (AssertionError, TooMuchError) as error:
            raise AssertionError(f"seed {seed}: {Grammar(seed).text()[:300]}") from error


TOO_LARGE = {
    "4:1@3000000": "modes 0 to 63 are read",
    "4:1" + "@1" * 9: "at most 8 are read",
    "E(3000000)": "at most 63 is taken here",
    "E(" + ",".join(["1"] * 3000) + ")": "at most 8 are taken here",
    "Sw<1000000000,0,1000000000>": "at most 62 is taken here",
    "Swizzle(1, 0, shift=-1000000000)": "at most 62 is taken here",
    "make_swizzle(1000000000, 0, 1000000000)": "at most 62 is taken here",
    "append(4:1, rank=1000000000)": "at most 256 is taken here",
    "prepend(4:1, 2:1, rank=1000000)": "at most 256 is taken here",
    "9" * 5000 + ":1": "numbers of layouts are at most 9223372036854775807",
    "4:" + "9" * 5000: "numbers of layouts are at most 9223372036854775807",
    "9223372036854775808": "numbers of layouts are at most 9223372036854775807",
    "(" * 65 + "4" + ")" * 65: "nested more than 64 deep",
    "(" * 5000: "nested more than 64 deep",
    "size(" * 100 + "4" + ")" * 100: "nested more than 64 deep",
    "4" * 10_001: "at most 10000 are read",
    "(" + "2," * 2000 + ")": "at most 256 extents",
    " o ".join(["4:1"] * 3) + " o " + " o 0 o ".join(["Sw<1,0,1>"] * 400) + " o 0 o 4:1": "at most",
    "size((" + ",".join(["9223372036854775807"] * 200) + "))": "numbers of at most 256 bits",
    "(" + ",".join(["9223372036854775807"] * 9) + "):1": "",
}


@pytest.mark.parametrize("text", TOO_LARGE, ids=[text[:20] for text in TOO_LARGE])
@pytest.mark.parametrize("command", ["layout", "draw"])
@pytest.mark.spread(3)
def test_a_refusal_names_the_limit(command, text):
    for extra in (["--json"] if len(text) % 2 else [],):
        status, output = run(command, *extra, "--", text)
        assert (status != 0 and TOO_LARGE[text] in output) or not TOO_LARGE[text], output[:500]
        assert len(output) < 2000 or not TOO_LARGE[text]


LARGE = (
    *(
        "(1000000000,1000000000)",
        "(4,4,1000000000)",
        "(2,2,(3,1000000),5,7)",
        "1000000000:0",
        "Sw<20,0,20>",
        "Sw<31,0,31>",
    ),
    *("composition(Sw<10,3,20>, (1000000,1000000))", "(4,(2,1000000000)):(1,(4,1000000000000))"),
    *("identity_layout((100000,100000))", "identity_layout((" + "2," * 20 + "))"),
)


def test_tables_of_large_layouts_are_small():
    for text in LARGE:
        run("layout", "--json", "--", text)


@pytest.mark.slow
@pytest.mark.parametrize("text", LARGE)
def test_tables_and_pictures_of_large_layouts_are_small(text, tmp_path):
    picture = str(tmp_path / "picture.typ")
    for options in ([], ["--json"], ["--banks", "float32"], ["-o", picture], ["-o", picture, "--limit", "64,64"]):
        run("draw", *options, "--", text)
    run("layout", "--", text)
    assert (tmp_path / "picture.typ").stat().st_size < 4 * 2**20


@pytest.mark.parametrize("limit", ["65537,1", "1,65537", "1000000,1000000", "257,256", "999999999,999999999"])
def test_pictures_have_at_most_so_many_cells(limit):
    for text in ("4:1", "(1000000,1000000)"):
        status, output = run("draw", "--limit", limit, "--", text)
        assert status != 0 and "cells a grid; at most 65536 are drawn" in output


FILE = """
import tilewright as tw
@tw.kernel
def copy(y, x, n: tw.constexpr = 4):
    y[tw.thread_idx.x] = x[tw.thread_idx.x]
"""
LONG = "9" * 5000


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ["draw", "4:1", "--limit", limit]
            for limit in (f"{LONG},1", "0,1", "-1,1", "1000000,1000000", "65537,1", "1", "²,1")
        ),
        *(
            ["show", "FILE:copy", "--block", block]
            for block in (LONG, "0", "1,1,1,1", "99999999999", "9999999999,9999999999")
        ),
        *(["show", "FILE:copy", "--grid", grid, "--block", "32"] for grid in (LONG, "0", "-1")),
        *(
            ["show", "FILE:copy", "--arg", f"x=float32[{n}]", "--arg", "y=float32[4]"]
            for n in (LONG, "9" * 19, "0" * 5000 + "4")
        ),
        *(["show", "FILE:copy", "--arg", f"x=float32[4]:[{n}]", "--arg", "y=float32[4]"] for n in (LONG, "9" * 19)),
        *(["show", "FILE:copy", "--arg", "(" * 500, "--arg", "n=" + "(" * 500], ["show", f"FILE:{'x' * 9000}"]),
        *(["show", "FILE:copy", "--arch", "sm_" + LONG], ["bench", "compile", "--arch", LONG]),
        *(
            ["bench", "sgemm", "--size", size]
            for size in (LONG, "x".join(["9" * 400] * 3), "1x" * 4000, "99999999999", "-1", "")
        ),
        *(["bench", "sgemm", "--rungs", rungs] for rungs in ("1-1000000000", LONG, f"1-{LONG}", "9-1", "1-9999", "")),
        *(["bench", "transpose", "--size", size] for size in (LONG, "-32", "0", "32000000000", "99999999999999999999")),
        *(["profile", "FILE", "--blocks", n] for n in (LONG, "0")),
        *([name, "--json", LONG[:9]] for name in ("info", "cache", "layout", "draw", "check")),
        *(["bench", "sgemm", "-o", "/nonexistent/x.json"], ["bench", "sgemm", "--size", "32", "--plot", "x.exe"]),
    ],
    ids=lambda arguments: " ".join(a[:12] for a in arguments),
)
def test_options_are_bounded(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels.py").write_text(FILE)
    arguments = [a.replace("FILE", str(tmp_path / "kernels.py")) for a in arguments]
    try:
        output = run(*arguments)[1]
    except TooMuchError as error:
        pytest.fail(str(error))
    assert len(output) < 40_000
    assert (tmp_path / "x.json").exists() is False


@pytest.mark.parametrize(
    "arguments",
    [
        *(["profile", "FILE", "--html", path] for path in ("no/page.html", "folder", "FILE/page.html")),
        *(["draw", "4:1", "-o", path] for path in ("no/x.svg", "FILE/x.typ", "folder/", "y" * 300 + ".typ")),
        *(["show", f"{path}:f"] for path in ("binary.py", "half.py", "folder", "missing.py", "latin.py")),
    ],
    ids=lambda arguments: " ".join(a[:12] for a in arguments),
)
def test_files_that_cannot_be_used_are_named(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "kernels.py").write_text("print('it ran')")
    (tmp_path / "binary.py").write_bytes(bytes(range(256)))
    (tmp_path / "latin.py").write_bytes(b"x = '\xe4'")
    (tmp_path / "half.py").write_text("def (")
    status, output = run(*[a.replace("FILE", str(tmp_path / "kernels.py")) for a in arguments])
    assert status != 0 and "Error" in output
    assert "it ran" not in output


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_no_file_takes_the_place_of_a_device_or_a_pipe(tmp_path):
    (tmp_path / "kernels.py").write_text(FILE)
    pipe = tmp_path / "pipe.html"
    os.mkfifo(pipe)
    handle = os.open(pipe, os.O_RDWR)  # so that neither side waits
    try:
        assert run("profile", str(tmp_path / "kernels.py"), "--html", str(pipe))[0] == 0
        assert os.read(handle, 15) == b"<!DOCTYPE html>"
    finally:
        os.close(handle)
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)


def test_text_of_layouts_is_bounded_in_the_library():
    for text in ("4:1@3000000", "4:1" + "@1" * 9, "9" * 5000, "4:" + "9" * 5000, "(" * 65 + ")" * 65, "(" * 9000, "4" * 10_001,
                 "(" * 5000 + ")" * 5000, " " * 20_000):  # fmt: skip
        with watched(STEPS, MEMORY), pytest.raises(tw.LayoutError) as caught:
            tw.Layout.from_text(text)
        assert len(str(caught.value)) < 400
    for layout in (tw.Layout(LARGEST, -LARGEST), tw.Layout((2, 3), (1 * tw.layout.E(63), 5))):
        assert tw.Layout.from_text(str(layout)) == layout
    deep = 4
    for _ in range(DEPTH):
        deep = (deep,)
    assert tw.Layout.from_text(str(tw.Layout(deep))) == tw.Layout(deep)
    with watched(STEPS, MEMORY):
        tw.Layout.from_text("(" + "1," * 4000 + ")")
