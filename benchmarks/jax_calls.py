"""Host time of operators of `tw.jax` in compiled programs, by its parts, with a GPU or without one.

    python -m benchmarks.jax_calls [--json FILE] [--profile]

A call by XLA goes through `ctypes` into the handler of `tw.jax`, which reads the frame, calls the function of Python,
and brings what it returned to its place. On a GPU, programs of one and of ten operators are timed, with a function that
does nothing, one that launches one kernel, and `tw.jax.softmax`, beside XLA's own softmax; and how long the handler has
of that, and in which thread. What a program takes more than its handler is XLA's, and `ctypes`'s: an operator that does
nothing shows it. Everywhere the handler is called with a frame that is made here, on the memory of JAX's arrays (of the
CPU without a GPU, with the driver of `benchmarks.host_calls` that does nothing), so that its parts can be profiled.
"""

from __future__ import annotations

import argparse
import cProfile
import ctypes
import json
import pstats
import statistics
import struct
import threading
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from benchmarks.host_calls import built, install_driver

import jax
import tilewright as tw
from tilewright.jax import foreign
from tilewright.runtime import compiled

ROWS, COLUMNS, MANY = 64, 4096, 10
BUFFER, STRING = 1, 4  # XLA's numbers of kinds of arguments and attributes


@tw.kernel
def copy(z, x):
    i = tw.block_idx.x * 256 + tw.thread_idx.x
    if i < z.size:
        z[i] = x[i]


@tw.jax.op(shape="x")
def nothing(x, out):
    """Leave the result as it is."""


@tw.jax.op(shape="x")
def one_launch(x, out):
    """Copy an array by a kernel."""
    copy[tw.ceil_div(x.size, 256), 256](out.reshape(-1), x.reshape(-1))


def call_of(function: Callable[..., Any], x: Any) -> bytes:
    """Return the name by which XLA knows the function of an operator that was traced with an array."""
    jax.make_jaxpr(function)(x)
    return next(reversed(foreign._known))


class Frame:
    """A frame as XLA makes it, for one argument and one result of its shape."""

    def __init__(self, label: bytes, x: Any, out: Any, library: Any) -> None:
        self._kept: list[Any] = [x, out, library]
        api = foreign._Api(stream_get=ctypes.cast(library.stream_get, ctypes.c_void_p).value)
        self._kept.append(api)
        names, texts = (self._words(self._span(text)) for text in (b"call", label))
        head = (0, 0, ctypes.addressof(api), 0, foreign._EXECUTE)
        attributes = (0, 0, 1, self._words(STRING), names, texts)
        self.address: int = self._words(*head, *self._buffer(x), *self._buffer(out), *attributes)

    def _bytes(self, data: bytes) -> int:
        self._kept.append(ctypes.create_string_buffer(data, len(data)))
        return ctypes.addressof(self._kept[-1])

    def _words(self, *words: int) -> int:
        return self._bytes(struct.pack(f"@{len(words)}Q", *words))

    def _span(self, text: bytes) -> int:
        return self._words(self._bytes(text), len(text))

    def _buffer(self, x: Any) -> tuple[int, ...]:
        code = next(code for code, name in foreign._TYPES.items() if name == str(x.dtype))
        item = self._words(0, 0, code, x.unsafe_buffer_pointer(), x.ndim, self._words(*x.shape))
        return 0, 0, 1, self._words(BUFFER), self._words(item)


def handled(x: Any, *, profile: bool) -> dict[str, float]:
    """Return what the handler takes of a frame, in microseconds, by what it calls."""
    library, out = ctypes.CDLL(built("xla_frame")), jnp.zeros_like(x)
    found = {}
    for function in (nothing, one_launch, tw.jax.softmax):
        frame, name = Frame(call_of(function, x), x, out, library), function.__name__
        by_c = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda at: foreign._handle(at, True))
        for _ in range(5):
            assert foreign._handle(frame.address, True) is None, name
        timers = {
            f"handler, {name}": lambda frame=frame: foreign._handle(frame.address, True),
            f"handler by ctypes, {name}": lambda frame=frame, by_c=by_c: by_c(frame.address),
        }
        for label, call in timers.items():
            found[label] = min(timeit.repeat(call, number=20, repeat=201)) / 20 * 1e6
        if profile:
            profiler = cProfile.Profile()
            profiler.runcall(lambda frame=frame: [foreign._handle(frame.address, True) for _ in range(3000)])
            print(name)
            pstats.Stats(profiler).sort_stats("tottime").print_stats(22)
    return found


class Timed:
    """The handler, with how long it takes each time and in which threads it is called."""

    def __init__(self) -> None:
        self.real, self.times, self.threads = foreign._handle, [], set()

    def __call__(self, address: int, is_on_gpu: bool) -> Any:
        begin = time.perf_counter()
        found = self.real(address, is_on_gpu)
        self.times.append(time.perf_counter() - begin)
        self.threads.add(threading.get_ident())
        return found


def programs(x: Any) -> tuple[dict[str, float], list[str]]:
    """Return what programs and the handlers in them take, in microseconds, and remarks about threads."""
    functions = {
        "XLA's softmax": jax.nn.softmax,
        "nothing": nothing,
        "one launch": one_launch,
        "softmax": tw.jax.softmax,
    }
    found, remarks = {}, []
    for name, function in functions.items():
        for count in (1, MANY):

            def chain(x: Any, function: Any = function, count: int = count) -> Any:
                for _ in range(count):
                    x = function(x)
                return x

            program = jax.jit(chain)
            jax.block_until_ready([program(x) for _ in range(5)])
            timed = Timed()
            vars(foreign)["_handle"] = timed
            alone, behind = [], []
            for _ in range(31):
                begin = time.perf_counter()
                jax.block_until_ready(program(x))
                alone.append(time.perf_counter() - begin)
                begin = time.perf_counter()
                results = [program(x) for _ in range(40)]
                behind.append((time.perf_counter() - begin) / 40)
                jax.block_until_ready(results)
            vars(foreign)["_handle"] = timed.real
            label = f"program of {count}, {name}"
            found[f"{label}, and waiting for it"] = statistics.median(alone) * 1e6
            found[f"{label}, one behind another"] = statistics.median(behind) * 1e6
            if timed.times:
                found[f"{label}, each handler"] = statistics.median(timed.times) * 1e6
                other = timed.threads - {threading.get_ident()}
                remarks.append(f"{label}: {len(timed.times)} calls, other threads than the program's: {len(other)}")
    return found, remarks


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the times here, too")
    parser.add_argument("--profile", action="store_true", help="print where the handler spends its time")
    options = parser.parse_args(arguments)
    on_gpu = jax.default_backend() == "gpu"
    if not on_gpu:
        install_driver()
    compiled.wait()
    x, remarks = jnp.ones((ROWS, COLUMNS), jnp.bfloat16), []
    found = handled(x, profile=options.profile)
    if on_gpu:
        more, remarks = programs(x)
        found |= more
    for name, microseconds in found.items():
        print(f"{microseconds:8.2f} us  {name}")
    print(*remarks, sep="\n")
    if options.json:
        here = {"jax": jax.__version__, **(dict(tw.bench.machine()) if on_gpu else {})}
        options.json.write_text(
            json.dumps({"machine": here, "microseconds": found, "remarks": remarks}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
