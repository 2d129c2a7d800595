"""Every message that `docs/troubleshooting.md` quotes is one that users get: each is raised here.

The page has a heading for each message, by how it begins, with `...` for names and numbers.
"""

from __future__ import annotations

import linecache
import math
import re
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.pages import DOCS
from tests.unit.runtime.fake_arrays import InterfaceArray

import tilewright as tw
from tilewright.errors import TilewrightError, TilewrightWarning
from tilewright.runtime import driver, nvrtc
from tilewright.runtime.arrays import ArrayInfo, common_device

PAGE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^### `(.+)`$", PAGE, re.M)


def kernel_of(body: str, parameters: str = "out, x") -> tw.Kernel:
    """Return a kernel with lines of code as its body, behind one that gives it `i`, the thread's number."""
    text = (
        f"@tw.kernel\ndef f({parameters}):\n    i = tw.thread_idx.x\n{textwrap.indent(textwrap.dedent(body), '    ')}"
    )
    file = f"message_{abs(hash(text))}.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"tw": tw, "np": np, "math": math, "G": [0], "MMA": MMA, "helper": helper}
    exec(compile(text, file, "exec"), names)
    kernel = names["f"]
    assert isinstance(kernel, tw.Kernel)
    return kernel


def helper(value: Any) -> Any:
    return value if value > 0 else 0.0


MMA = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN, tw.Layout((2, 2, 1)))
COPY = kernel_of("out[i] = x[i]")


def launch(body: str, *, grid: int = 1, block: int = 64, x: object = None, out: object = None) -> None:
    """Launch a kernel on 64 float32, or on other arrays."""
    arrays = (np.zeros(64, np.float32) if out is None else out, np.ones(64, np.float32) if x is None else x)
    kernel_of(body)[grid, block](*arrays)


def read_only() -> np.ndarray[Any, Any]:
    array = np.zeros(64, np.float32)
    array.setflags(write=False)
    return array


def product(block: int, arch: str = "sm_90a") -> None:
    kernel = kernel_of(
        """
        thread = MMA.get_slice(i)
        ra, rb = thread.partition_fragment_A(a), thread.partition_fragment_B(b)
        tw.copy(thread.partition_A(a), ra)
        tw.copy(thread.partition_B(b), rb)
        acc = thread.make_fragment_C(thread.partition_C(d))
        tw.clear(acc)
        tw.gemm(MMA, acc, ra, rb, acc)
        """,
        "d, a, b",
    )
    a, b, d = np.ones((32, 16), np.float16), np.ones((16, 16), np.float16), np.ones((32, 16), np.float32)
    kernel.configure(arch=arch)[1, block](*map(tw.static, (d, a, b)))


def tune_a_kernel_that_cannot_run() -> None:
    kernel = kernel_of("out[i] = x[i] + missing * n", "out, x, n: tw.constexpr")
    tuned = tw.autotune(configs=[tw.Config(n=1), tw.Config(n=2)], key=["x"], store=None)(kernel)
    tuned.tune(np.zeros(64, np.float32), np.ones(64, np.float32), grid=1, block=64)


def check_for_infinity() -> None:
    with tw.simulate(nan=True):
        launch("out[i] = tw.log(x[i] - 2)")


def report_of_what_was_not_measured() -> None:
    with tw.simulate() as run:
        run.report()


@tw.kernel(cluster=2)
def left_early(out):
    tile, i = tw.shared(tw.float32, 32), tw.thread_idx.x
    tile[i] = 1.0
    tw.cluster_sync()
    out[tw.block_idx.x, i] = tile.at_rank(1 - tw.block_rank_in_cluster())[i]


FLOATS = np.ones(65, np.float32)
COPY_TO_SHARED = """
    s = tw.shared(tw.float32, 64)
    tw.copy(tw.local_tile(x, (1,), (i,)), tw.local_tile(s, (1,), (i,)))
"""

# What raises each message: the body of a kernel that is launched on 64 float32, or a function.
CASES: dict[str, str | Callable[[], object]] = {
    # Calls
    "kernel '...' was called without a grid and a block": lambda: COPY(FLOATS, FLOATS),
    "kernel '...' is launched as kernel[grid, block](...), got kernel[...]": lambda: COPY[64],
    "block ... has ... in x; it takes 1 to 1024": lambda: launch("out[i] = x[i]", block=2048),
    "argument '...' is a str; a kernel takes arrays and numbers": lambda: launch("out[i] = 1", x="mean"),
    "argument '...' is a compile-time constant and must be hashable, but it is a ...": lambda: kernel_of(
        "out[i] = 1", "out, c: tw.constexpr"
    )[1, 64](np.zeros(64), FLOATS),
    "argument '...' cannot be used: complex128 is not an element type of Tilewright": lambda: launch(
        "out[i] = 1", x=np.ones(64, complex)
    ),
    "argument '...' cannot be used: its memory was freed: the pointer of an array of shape ... is null": lambda: launch(
        "out[i] = x[i]", x=InterfaceArray((64,), pointer=None)
    ),
    "argument '...' is written by the kernel, and the array is read-only": lambda: launch(
        "out[i] = x[i]", out=read_only()
    ),
    "argument '...' is written by the kernel, and its elements overlap": lambda: launch(
        "out[i] = x[i]", out=np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (64,), (0,))
    ),
    "arguments '...' and '...' are on different devices": lambda: common_device(
        [ArrayInfo(4096, (1,), (1,), tw.float32, device) for device in ("cpu", 0)],  # type: ignore[arg-type]
        ["out", "x"],
    ),
    "...shape[...] is ..., and the tile of ... does not divide it": lambda: launch(
        "out[i] = tw.local_tile(x, (32,), (tw.block_idx.x,))[i]", x=FLOATS[:60], block=32
    ),
    "kernel '...' takes ... bytes of shared memory; a block of ... has ...": (
        "s = tw.shared(tw.float32, 100000)\ns[i] = x[i]\nout[i] = s[i]"
    ),
    "a shuffle is done by 32 lanes together, and the block of ... threads leaves ...": lambda: launch(
        "out[i] = tw.shuffle_xor(x[i], 1)", block=33
    ),
    "the environment variable TILEWRIGHT_BACKEND is '...'": lambda: launch("out[i] = x[i] * 2"),
    "no architecture is called '...'": lambda: COPY.source(FLOATS, FLOATS, arch="sm_1"),
    "no CUDA driver: ... cannot be loaded": lambda: driver.device_properties(0),
    "NVRTC, the CUDA compiler, is not installed": nvrtc._library.__wrapped__,
    "the source of '...' cannot be read, and a kernel is made from its source": lambda: exec(
        "import tilewright as tw\n@tw.kernel\ndef f(x):\n    x[0] = 1\nf[1, 1](X)", {"X": FLOATS}
    ),
    # What a kernel says
    "the truth of a device value is not known while the kernel is traced": ("out[i] = helper(x[i])"),
    "a device value indexes what is not an array": "table = [1.0, 2.0]\nout[i] = table[i]",
    "the value of a device integer is not known while the kernel is traced": "table = [1.0] * i\nout[i] = table[0]",
    "the value of a device number as a float is not known while the kernel is traced": "out[i] = math.sqrt(x[i])",
    "TypeError: operand 'Scalar' does not support ufuncs": "out[i] = np.exp(x[i])",
    "print runs while the kernel is traced, when the numbers of ... are not known": "print(x[i])\nout[i] = x[i]",
    "variable '...' may have no value here: it is assigned in only one branch of an if": (
        "if x[i] > 0:\n    v = x[i]\nout[i] = v"
    ),
    "variable '...' changes in the loop: it is ... before it and ... after an iteration": (
        "v = tw.int32(0)\nfor k in range(4):\n    v = v + x[k]\nout[i] = v"
    ),
    "the list '...' changes its size or keys in a loop on the device": (
        "items = []\nfor k in range(4):\n    items.append(x[k])\nout[i] = items[0]"
    ),
    "'...' changes in a loop on the device, and it is not the kernel's own": (
        "for k in range(4):\n    G[0] += 1\nout[i] = x[i]"
    ),
    "a bound of a range is float32, and it must be an integer": "for k in range(x.shape[0] / 2):\n    out[k] = x[k]",
    "tw.static_range needs bounds that are known while tracing, and one is a device value": (
        "for k in tw.static_range(x.shape[0]):\n    out[k] = x[k]"
    ),
    "a loop that runs while tracing has not ended after ... iterations": "n = 0\nwhile n >= 0:\n    n += 1",
    "a for statement loops over a range, a list or the like, got Scalar": "for v in x[i]:\n    out[i] = v",
    "try is not possible in a kernel": "try:\n    out[i] = 1\nfinally:\n    pass",
    "kernel '...' is called in a kernel, and only the host launches kernels": lambda: kernel_of(
        "copy(out, x)", "out, x, copy: tw.constexpr"
    )[1, 64](np.zeros(64), FLOATS, COPY),
    "kernel '...' returns a value": "return x[i]",
    "tw.sync_threads can be used only inside a kernel": lambda: tw.sync_threads(),
    "... is int32, and a float32 is not converted to it implicitly": lambda: launch(
        "out[i] = x[i]", out=np.zeros(64, np.int32)
    ),
    "coordinate ... does not fit shape ...": "out[i, 0] = x[i]",
    "a fragment needs a static shape, not ...": "out[i] = x.to(tw.float32)[i]",
    "shared memory needs a size that is known before the launch": "s = tw.shared(tw.float32, i)\nout[i] = s[0]",
    "a tensor has no truth": "if x:\n    out[i] = 1",
    "composition(A, B): ... does not step evenly through ...": lambda: tw.composition(
        tw.Layout((5, 4), (1, 8)), tw.Layout(6, 4)
    ),
    "a TiledMMA of ... threads is used in a block of ... threads": lambda: product(block=64),
    "tw.gemm: ... needs sm_80 or later, and the target is ...": lambda: product(block=128, arch="sm_75"),
    "tw.sync_threads is in a branch that only some threads of the block may run": (
        "if i < 16:\n    tw.sync_threads()\nout[i] = x[i]"
    ),
    # Findings
    "race: ... of ... meets a ... by another thread, and nothing orders the two": (
        "s = tw.shared(tw.float32, 64)\ns[i] = x[i]\nout[i] = s[63 - i]"
    ),
    "race: load of ... meets an asynchronous copy's write by another thread": (
        f"{textwrap.dedent(COPY_TO_SHARED)}tw.sync_threads()\ntw.cp_async_wait()\nout[i] = s[63 - i]"
    ),
    "overlapping writes: store to ... meets a store by another block": lambda: launch("out[i] = x[i]", grid=2),
    "missing wait: load of ... while its own thread's asynchronous copy to it is under way": (
        f"{textwrap.dedent(COPY_TO_SHARED)}out[i] = s[i]"
    ),
    "missing fence: ... meets ... which no proxy fence follows": lambda: launch(
        """
        smem = tw.shared(tw.float32, 64)
        smem[i] = x[i]
        tw.sync_threads()
        if i == 0:
            tw.copy(tw.atoms.SM90_TMA_STORE, smem, tw.local_tile(out, (64,), (0,), guard=True))
            tw.tma_store_commit()
            tw.tma_store_wait(read=False)
        """
    ),
    "block ... of the cluster may have left when another block reaches its ...": lambda: left_early[2, 32](
        np.zeros((2, 32), np.float32)
    ),
    "..., phase ...: ... bytes that were announced have not come": lambda: launch(
        """
        full = tw.mbarrier(1)
        tw.sync_threads()
        if i == 0:
            full.arrive_expect_tx(64)
            if x[0] > 1e9:
                tw.copy(tw.atoms.SM90_BULK_COPY_G2S, tw.local_tile(x, 16, 0), tw.shared(tw.float32, 16), barrier=full)
        out[i] = x[i]
        """,
        x=tw.static(np.ones(64, np.float32)),
    ),
    "... is told to expect bytes of bulk copies, and no copy of the kernel brings bytes to it": lambda: launch(
        """
        full = tw.mbarrier(1)
        tw.sync_threads()
        if i == 0:
            full.arrive_expect_tx(64)
        full.wait(0)
        """
    ),
    "... takes ... arrivals a phase, and at most ... come: this wait never ends": lambda: launch(
        """
        if tw.warp_id() == 0:
            tw.named_barrier(1, 64).sync()
        """
    ),
    "needless wait: ... never waits for anything in this launch": "tw.cp_async_wait()\nout[i] = x[i]",
    "out of bounds: load ..., which has shape ...": lambda: launch("out[i] = x[i + 1]"),
    "uninitialised read: load ..., which nothing has written": "r = tw.registers(tw.float32, 4)\nout[i] = r[0]",
    "misaligned: load ... at address ..., which is not a multiple of ...": lambda: launch(
        """
        r = tw.registers(tw.float32, 4)
        tw.copy(tw.make_tensor(tw.pointer(x[0], tw.float32, align=16), tw.Layout(4)), r)
        tw.copy(r, tw.local_tile(out, (4,), (0,)))
        """,
        x=tw.addresses([FLOATS[1:]]),
        block=1,
    ),
    "integer overflow: a value that does not fit into int32 is an index of ...": lambda: launch(
        "out[x * 4 - x * 4] = 1.0", x=2**30, block=1
    ),
    "deadlock: ... for what no thread will do": lambda: launch(
        'while tw.load(x, 0, sem="acquire") == 0:\n    pass\nout[0] = 1.0', x=np.zeros(1, np.int32), block=1
    ),
    "endless loop: all that the condition goes by comes again, so it never becomes false": lambda: launch(
        "n = tw.int32(0)\nwhile x[0] > 0:\n    n = tw.int32(1)\nout[0] = n", block=1
    ),
    "assertion failed: ...": 'tw.device_assert(x[i] > 2, "x is small")\nout[i] = x[i]',
    "unwritten output: ... of ... elements of ... were not written": lambda: launch("out[i] = x[i]", block=32),
    "not finite: ... gives ... of finite operands": check_for_infinity,
    # Products and measurements
    "the shapes ... and ... have no product": lambda: tw.matmul(np.ones((3, 4)), np.ones((5, 6))),
    "a is ... and b is ...; both have one element type": lambda: tw.matmul(
        np.ones((3, 4), np.float32), np.ones((4, 6), np.float16)
    ),
    "none of the ... candidates for ... can be used": tune_a_kernel_that_cannot_run,
    "nothing was measured in this run": report_of_what_was_not_measured,
}


def test_each_message_of_the_page_is_raised_here() -> None:
    assert HEADINGS == list(CASES)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("heading", CASES)
def test_message_is_one_that_users_get(heading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "TILEWRIGHT_BACKEND" in heading:
        monkeypatch.setenv("TILEWRIGHT_BACKEND", "banana")
    if "CUDA driver" in heading and driver.device_count() > 0:
        pytest.skip("a GPU is there")
    if "NVRTC" in heading:
        monkeypatch.setattr(nvrtc, "library_path", lambda: None)
        monkeypatch.setattr(nvrtc, "_pathfinder_names", lambda: [])
        monkeypatch.setattr(nvrtc, "_NAMES", ["libnvrtc-of-nobody.so"])
    case = CASES[heading]
    with pytest.raises((TilewrightError, TilewrightWarning)) as caught:
        launch(case) if isinstance(case, str) else case()
    pattern = ".*".join(map(re.escape, heading.split("...")))
    assert re.match(pattern, str(caught.value)), str(caught.value)


def test_every_kind_of_finding_is_named() -> None:
    page = (DOCS / "simulator.md").read_text(encoding="utf-8")
    table = page.partition("## What is found")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", table, re.M)
    kinds = [kind for row in rows for kind in re.findall(r"`([\w-]+)`", row)]
    assert len(kinds) > 15
    # Their messages say all, or are refusals of the language first.
    elsewhere = {
        *("barrier-divergence", "warp-divergence", "zero-step", "too-many-registers"),
        *("uninitialised-mbarrier", "reinitialised-mbarrier", "mbarrier-parity", "sparse-metadata", "order-dependent"),
    }
    assert sorted(kind for kind in kinds if f"`{kind}`" not in PAGE) == sorted(elsewhere)
