"""Text and names of a user's through the compiler: hostile ones give the machine code of harmless ones."""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.helpers.scripts import load_script
from tests.helpers.slow import rest_is_slow
from tests.unit.backends.kernels import Draft

import tilewright as tw
from tilewright.atoms.copy import CacheHints
from tilewright.backends import cuda, hip
from tilewright.backends.cpp.generate import DeviceSource
from tilewright.backends.cpp.names import KEYWORDS, entry_name, legal
from tilewright.backends.cpp.prelude import defined_names
from tilewright.backends.hip.library import PIECES
from tilewright.errors import CompileError
from tilewright.instructions.barrier import NamedBarrier
from tilewright.instructions.mbarrier import MbarrierInit, MbarrierWait
from tilewright.instructions.vote import Elect
from tilewright.ir import ops
from tilewright.ir.core import Kernel
from tilewright.runtime import nvrtc
from tilewright.runtime.nvrtc import compile_cuda, library_path

COMMENTS = (
    "diagonal \\ \\",
    "one \\",
    "one \\ \t ",
    "a trigraph ??/",
    "a trigraph ??/ ",
    "a trigraph of trigraphs ???/",
    "a sign by its name \\u000a trap();",
    "\\U0000000A\\N{LINE FEED}",
    "*/ __trap(); /*",
    "a feed \x0c __trap();",
    "a tab \x0b __trap();",
    "separators \x1c\x1d\x1e __trap();",
    "more of them \x85\u2028\u2029 __trap();",
    "turned round \u202e ;)(part__ \u2066",
    'quotes " and \' and """',
    "\U0001d431 = \u03b1 \u00d7 \u03b2 \u2013 é, 中文, \U0001f600",
)
FILES = (
    "a\n__device__ int x.py",
    "b\\",
    "c??/",
    'd"\n.entry e() { ret; }.py',
    "\udcff.py",
    "e\r__trap();",
    "ü.py",
    "\0.py",
)
# Variables of a kernel that take the names of the functions above it, of types, of PTX's words and of macros.
HIDING = (
    *("load_nc_cs_4", "load_nc_4", "store_cs_4", "elect_one", "mbarrier_init", "mbarrier_wait", "mbarrier_try"),
    *("named_barrier_sync", "cp_async_commit", "to_half", "half", "bit_cast", "uint4", "vec", "l2_policy", "words"),
    *("threadIdx", "printf", "memcpy", "assertion_failed", "va_list", "va_start", "va_arg", "NULL", "linux", "unix"),
    *("asm", "WARP_SZ", "vprintf", "cudaMalloc", "cudaStreamPerThread", "size_t", "kernel", "main", "T", "address"),
)
_numbers = itertools.count()


def copying(file: str, line: str, name: str = "k") -> Draft:
    """Return a kernel that copies, from a line of a file."""
    draft = Draft(name)
    draft.file = file
    linecache.cache[file] = (1, None, [line], file)
    dst, src = draft.pointer("dst"), draft.pointer("src")
    i = draft.special("thread_idx.x", "i")
    draft.at(1)
    draft.kernel.location = draft.location
    draft.store(dst, i, draft.load(src, i))
    return draft


def machine_code(source: DeviceSource, *options: str) -> bytes:
    return compile_cuda(source.text, name=source.name, arch="sm_90a", options=options).cubin


@cache
def plain_machine_code() -> bytes:
    return machine_code(cuda.generate(copying("k.py", "").kernel))


@pytest.mark.parametrize("comment", COMMENTS, ids=ascii)
@pytest.mark.spread(4)
def test_a_comment_changes_no_machine_code(comment: str) -> None:
    source = cuda.generate(copying("k.py", f"dst[i] = src[i]  # {comment}").kernel)
    assert "// k.py:1: dst[i] = src[i]  # " in source.text
    assert machine_code(source) == plain_machine_code()


@pytest.mark.parametrize("comment", [comment for comment in COMMENTS if "??" in comment])
def test_trigraphs_change_no_machine_code(comment: str) -> None:
    source = cuda.generate(copying("k.py", f"dst[i] = src[i]  # {comment}").kernel)
    assert machine_code(source, "--std=c++14") == plain_machine_code()  # C++17 took them out


@pytest.mark.parametrize("file", FILES, ids=ascii)
@pytest.mark.parametrize("line_directives", [False, True])
@pytest.mark.spread(4)
def test_the_name_of_a_file_is_no_code(file: str, line_directives: bool) -> None:
    draft = copying(file, "dst[i] = src[i]")
    draft.builder.emit(ops.Print(("",), ()))
    machine_code(cuda.generate(draft.kernel, line_directives=line_directives), "-lineinfo")
    source = cuda.generate(copying(file, "dst[i] = src[i]").kernel, line_directives=line_directives)
    assert machine_code(source) == plain_machine_code()


ENDS = ["\\ \\", "\\", "??/", "\x0c\x0b __trap();", "\\u000a __trap();"]


@pytest.mark.parametrize("end", rest_is_slow(ENDS, "??/", "\\u000a __trap();"), ids=ascii)
@pytest.mark.spread(2)
def test_a_comment_of_a_kernel_changes_no_machine_code(end: str, tmp_path: Path) -> None:
    """The whole way: from a file of Python to the machine code."""
    text = """
import tilewright as tw

@tw.kernel
def move(dst, src):
    i = tw.thread_idx.x  # {end}
    if i < 7:  # {end}
        dst[i] = src[i]  # diagonal {end}
    tw.device_assert(i < 100, "many")  # {end}
"""
    args = (tw.spec(tw.float32, (64,)), tw.spec(tw.float32, (64,)))
    texts = [imported(tmp_path, text.replace("{end}", each)).move.source(*args, arch="sm_90a") for each in ("", end)]
    assert len(texts[0].splitlines()) == len(texts[1].split("\n")) - 1
    codes = [_instructions(compile_cuda(t, name="move", arch="sm_90a").cubin) for t in texts]
    assert codes[0] == codes[1]


def _instructions(cubin: bytes) -> list[str]:
    """Return the instructions: the message of the assertion is data beside them."""
    from tilewright.runtime.disassemble import disassemble

    lines = disassemble(cubin).split("\n")
    return [line for line in lines if re.match(r"\s+/\*[0-9a-f]{4}\*/", line)]


def imported(folder: Path, text: str, name: str = ""):
    """Import a file of Python with this text."""
    path = folder / (name or f"module_{next(_numbers)}.py")
    path.write_text(text, encoding="utf-8", newline="")
    return load_script(path)


def test_a_kernel_in_a_file_with_a_line_in_its_name(tmp_path: Path) -> None:
    text = "import tilewright as tw\n@tw.kernel\ndef k(x):\n    x[tw.thread_idx.x] = 1.0\n"
    module = imported(tmp_path, text, "a\n__device__ int x.py")
    source = module.k.source(tw.spec(tw.float32, (64,)))
    assert "\n__device__" not in source and "// a[U+000A]__device__ int x.py:4: x[tw.thread_idx.x] = 1.0" in source


# --- names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HIDING)
@pytest.mark.spread(4)
def test_a_variable_of_any_name_hides_no_function(name: str) -> None:
    """All kinds of names: of a parameter, a local, a shared array and a loop's index, and of the kernel too."""
    for kernel in ("k", name):
        source = cuda.generate(_with_every_helper(kernel, name), "sm_90a")
        machine_code(source)
        assert defined_names([source.text]).isdisjoint(_declared(source.text))


def _with_every_helper(kernel: str, name: str) -> Kernel:
    draft = Draft(kernel)
    dst, src = draft.pointer(name), draft.pointer("src")
    i = draft.special("thread_idx.x", name)
    n = draft.scalar("n")
    tile = draft.shared(name, 128)
    barrier = draft.shared("barrier", 2, tw.uint64)
    draft.builder.emit(MbarrierInit(barrier, ops.constant(0, tw.int32), ops.constant(1, tw.int32)))
    (x,) = draft.builder.emit(ops.Load(src, i, CacheHints("cs")), tw.float32)
    draft.store(tile, i, x)
    draft.builder.emit(MbarrierWait(barrier, ops.constant(0, tw.int32), ops.constant(0, tw.int32)))
    draft.builder.emit(NamedBarrier("sync", 128, ops.constant(1, tw.int32)))
    (one,) = draft.builder.emit(Elect(), tw.bool_)
    draft.builder.emit(ops.Assert(one, "one"))
    draft.builder.emit(ops.Print(("x is ",), (x,)))
    with draft.loop(n, name=name):
        y = draft.load(tile, i)
        half = draft.cast(y, tw.float16, name)
        draft.builder.emit(ops.Store(dst, i, draft.cast(half, tw.float32), CacheHints("cs")))
    return draft.kernel


def _declared(text: str) -> set[str]:
    body = text[text.index('extern "C"') :]
    return set(re.findall(r"^\s*(?:const )?(?:int|float|bool|half) (\w+) =", body, re.MULTILINE))


@pytest.mark.parametrize(
    "name",
    [
        "va_list",
        "WARP_SZ",
        "vprintf",
        "llmin",
        "llmax",
        "inlined_at",
        "function_name",
        "printf",
        "umin",
        "main",
        "and",
        "cudaError_t",
        "\u03b1",
    ],
)
@pytest.mark.spread(4)
def test_a_kernel_of_any_name_compiles(name: str) -> None:
    draft = copying("k.py", "", name)
    draft.builder.emit(ops.Print(("here",), ()))
    source = cuda.generate(draft.kernel)
    assert compile_cuda(source.text, name=source.name, arch="sm_90a").resources.registers > 0


def test_no_name_of_the_compilers_headers_is_given() -> None:
    """All words of what NVRTC includes before a text, as kernels, parameters and variables: none is refused."""
    words = sorted(set(re.findall(rb"[A-Za-z]\w*", _headers())))
    names = [word.decode() for word in words] + sorted(KEYWORDS)
    assert len(names) > 2000
    lines: dict[str, None] = {}
    for name in names:
        variable = legal(name)
        lines[f'extern "C" __global__ void {entry_name(name)}(int*, float);'] = None
        lines[f"__device__ inline int v_{variable}(int* {variable}) {{ return {variable}[1]; }}"] = None
        lines[f"__device__ inline int w_{variable}() {{ const int {variable} = 1; return {variable}; }}"] = None
    _compile_all(list(lines))


def _headers() -> bytes:
    path = library_path()
    file = None if path is None else next(path.parent.glob("libnvrtc-builtins.so.*"), None)
    contents = b"" if file is None else file.read_bytes()
    start = contents.find(b"#define __CUDACC__ 1\n")
    if start < 0:
        pytest.skip("NVRTC's headers are not where its wheel has them")
    return contents[start : contents.index(b"\0", start)]


def _compile_all(lines: list[str]) -> None:
    try:
        compile_cuda("\n".join(lines) + '\nextern "C" __global__ void k_() {}\n', name="k_", arch="sm_90a")
    except CompileError as error:
        raise AssertionError(str(error)) from None


def test_the_library_of_hip_defines_only_reserved_names() -> None:
    assert [name for name in PIECES if not name.startswith("__") and legal(name) == name] == []


@pytest.mark.parametrize("generate", [cuda.generate, hip.generate])
def test_texts_without_names_of_ours_are_printed_once(generate: Callable[..., DeviceSource]) -> None:
    assert generate(copying("k.py", "").kernel, "sm_90a" if generate is cuda.generate else "gfx90a").name == "k"


def test_names_that_a_definition_gives() -> None:
    names = defined_names([*PIECES.values()])
    assert {"threadIdx", "float4", "make_float4", "sqrtf", "__shfl", "min", "__global__"} <= names
    assert set(PIECES) <= names


def test_long_names_are_cut() -> None:
    draft = copying("k.py", "", "k" * 5000)
    source = cuda.generate(draft.kernel)
    assert len(source.name) == 200
    nvrtc.compile_cuda(source.text, name=source.name, arch="sm_90a")
