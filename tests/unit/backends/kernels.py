"""A short way to write IR by hand, for the tests of the backends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest

from tilewright import dtypes as t
from tilewright.arch import Arch
from tilewright.backends import cuda, hip
from tilewright.backends.cpp.generate import DeviceSource
from tilewright.ir import ops
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Buffer, Kernel, Op, Parameter, Space, Type, Value, VectorType
from tilewright.ir.facts import Facts
from tilewright.ir.ops import constant
from tilewright.ir.verify import verify
from tilewright.runtime.clang import compile_hip, find_clang
from tilewright.runtime.nvrtc import CompiledModule
from tilewright.source import SourceLocation

ARCHES = ("sm_80", "sm_89", "sm_90a")
AMD = ("gfx908", "gfx90a")


class Draft:
    """A kernel that is being written: `d.add(x, 1)` appends an op and gives its result."""

    def __init__(self, name: str = "kernel", block: tuple[int, int, int] | None = (128, 1, 1)) -> None:
        self.kernel = Kernel(name, (), Block(), block)
        self.builder = Builder(self.kernel.body, lambda: self.location)
        self.location: SourceLocation | None = None
        self.file = "draft.py"

    # --- places and parameters ---------------------------------------------------------------------------

    def at(self, line: int) -> None:
        self.location = SourceLocation(self.file, line, self.kernel.name)

    def pointer(self, name: str, dtype: t.DType = t.float32) -> Buffer:
        buffer = Buffer(name, dtype, Space.GLOBAL, None, 16)
        self._parameter(name, "pointer", buffer)
        return buffer

    def scalar(self, name: str, dtype: t.DType = t.int32, facts: Facts | None = None) -> Value:
        value = Value(dtype, name, facts)
        self._parameter(name, "value", value)
        return value

    def _parameter(self, name: str, part: str, target: Value | Buffer) -> None:
        self.kernel.parameters += (Parameter(name, part, target),)

    # --- values ------------------------------------------------------------------------------------------

    def value(self, x: object, like: Value) -> Value:
        return x if isinstance(x, Value) else constant(x, like.dtype)  # type: ignore[arg-type]

    def binary(self, kind: str, a: object, b: object, name: str | None = None) -> Value:
        like = a if isinstance(a, Value) else b
        assert isinstance(like, Value)
        lhs, rhs = self.value(a, like), self.value(b, like)
        return named(self.builder.pure(ops.Binary(kind, lhs, rhs), like.type), name)

    def add(self, a: object, b: object, name: str | None = None) -> Value:
        return self.binary("add", a, b, name)

    def sub(self, a: object, b: object, name: str | None = None) -> Value:
        return self.binary("sub", a, b, name)

    def mul(self, a: object, b: object, name: str | None = None) -> Value:
        return self.binary("mul", a, b, name)

    def unary(self, kind: str, x: Value, type: t.DType | None = None) -> Value:
        return self.builder.pure(ops.Unary(kind, x), type or x.type)

    def compare(self, kind: str, a: Value, b: object) -> Value:
        return self.builder.pure(ops.Compare(kind, a, self.value(b, a)), t.bool_)

    def special(self, register: str, name: str | None = None) -> Value:
        return named(self.builder.pure(ops.Special(register), t.int32), name)

    def cast(self, x: Value, dtype: t.DType, name: str | None = None) -> Value:
        return named(self.builder.pure(ops.Cast(x), dtype), name)

    def pure(self, op: Op, type: Type, name: str | None = None) -> Value:
        return named(self.builder.pure(op, type), name)

    # --- memory ------------------------------------------------------------------------------------------

    def shared(self, name: str, size: int, dtype: t.DType = t.float32, offset: int | None = None) -> Buffer:
        return self._allocate(Buffer(name, dtype, Space.SHARED, size, 16, offset=offset))

    def registers(self, name: str, size: int, dtype: t.DType = t.float32) -> Buffer:
        return self._allocate(Buffer(name, dtype, Space.REGISTER, size, 16))

    def _allocate(self, buffer: Buffer) -> Buffer:
        self.builder.emit(ops.Allocate(buffer))
        return buffer

    def index(self, x: object) -> Value:
        return x if isinstance(x, Value) else constant(x, t.int32)  # type: ignore[arg-type]

    def load(self, buffer: Buffer, index: object, lanes: int = 1, name: str | None = None) -> Value:
        type = VectorType(buffer.dtype, lanes) if lanes > 1 else buffer.dtype
        return named(self.builder.emit(ops.Load(buffer, self.index(index)), type)[0], name)

    def store(self, buffer: Buffer, index: object, value: object) -> None:
        stored = value if isinstance(value, Value) else constant(value, buffer.dtype)  # type: ignore[arg-type]
        self.builder.emit(ops.Store(buffer, self.index(index), stored))

    def emit(self, op: Op, *types: Type) -> tuple[Value, ...]:
        return self.builder.emit(op, *types)

    # --- control -----------------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self,
        stop: object,
        *init: Value,
        name: str | None = None,
        start: object = 0,
        step: object = 1,
        unroll: int | None = None,
        carried: tuple[str, ...] = (),
    ) -> Iterator[Loop]:
        """A device loop; the body ends with `loop.next(...)`, and `loop.results` hold afterwards."""
        place, index = self.location, Value(t.int32, name)
        arguments = tuple(Value(v.type, n) for v, n in zip(init, carried or (None,) * len(init), strict=True))
        body = Block(arguments=(index, *arguments))
        made = Loop(self, index, arguments, body)
        with self.builder.inside(body):
            yield made
            if not body.ops or not isinstance(body.ops[-1], ops.Yield):
                made.next()
        op = ops.For(self.index(start), self.index(stop), self.index(step), init, body, unroll, location=place)
        made.results = self.builder.emit(op, *(v.type for v in init))

    @contextmanager
    def branch(self, condition: Value, *names: str) -> Iterator[Branch]:
        """A device branch: `with b.then(...)` and `b.otherwise(...)` inside, results afterwards."""
        place, made = self.location, Branch(self)
        yield made
        op = ops.If(condition, made.blocks[0], made.blocks[1], location=place)
        made.results = self.builder.emit(op, *(v.type for v in made.blocks[0].ops[-1].operands))
        for value, name in zip(made.results, names, strict=True):
            value.name = name

    # --- what comes out ----------------------------------------------------------------------------------

    def source(self, arch: str = "sm_90a", **options: bool) -> DeviceSource:
        verify(self.kernel)
        generate = hip.generate if Arch.parse(arch).is_amd else cuda.generate
        return generate(self.kernel, arch, **options)

    def text(self, arch: str = "sm_90a") -> str:
        return self.source(arch).text

    def body(self, arch: str = "sm_90a") -> str:
        """The statements between the kernel's braces, without indentation."""
        text = self.text(arch)
        inside = text[text.index('extern "C"') :]
        lines = inside[inside.index("{\n") + 2 : inside.rindex("}\n")].split("\n")[:-1]
        return "\n".join(line.removeprefix("    ") for line in lines)

    def compiles(self, arches: tuple[str, ...] = ARCHES) -> None:
        for arch in arches:
            compile_text(self.source(arch), arch)


class Loop:
    def __init__(self, draft: Draft, index: Value, carried: tuple[Value, ...], body: Block) -> None:
        self.draft, self.index, self.carried, self.body = draft, index, carried, body
        self.results: tuple[Value, ...] = ()

    def next(self, *values: Value) -> None:
        self.draft.builder.emit(ops.Yield(values))


class Branch:
    def __init__(self, draft: Draft) -> None:
        self.draft, self.blocks = draft, [Block(), Block()]
        self.results: tuple[Value, ...] = ()

    @contextmanager
    def block(self, number: int) -> Iterator[None]:
        with self.draft.builder.inside(self.blocks[number]):
            yield

    def give(self, *values: Value) -> None:
        self.draft.builder.emit(ops.Yield(values))


def named(value: Value, name: str | None) -> Value:
    if name is not None:
        value.name = name
    return value


@cache
def _has_nvrtc() -> bool:
    try:
        from tilewright.runtime.nvrtc import nvrtc_version

        nvrtc_version()
    except Exception:
        return False
    return True


def compile_text(source: DeviceSource, arch: str) -> CompiledModule:
    """Compile to machine code, or skip the test where NVRTC, or for AMD's targets clang, is not installed."""
    if Arch.parse(arch).is_amd:
        if find_clang() is None:
            pytest.skip("needs clang")
        return compile_hip(source.text, name=source.name, arch=arch, line_map=source.line_map)
    if not _has_nvrtc():
        pytest.skip("needs NVRTC")
    from tilewright.runtime.nvrtc import compile_cuda

    return compile_cuda(source.text, name=source.name, arch=arch, line_map=source.line_map)


# --- drafts that every dialect prints ----------------------------------------------------------------------


def scale() -> Draft:
    """Return dst[i] = src[i] * factor for i < n."""
    d = Draft("scale", (256, 1, 1))
    dst, src = d.pointer("dst"), d.pointer("src")
    n, factor = d.scalar("n"), d.scalar("factor", t.float32)
    i = d.add(d.mul(d.special("block_idx.x"), 256), d.special("thread_idx.x"), "i")
    with d.branch(d.compare("lt", i, n)) as b:
        with b.block(0):
            d.store(dst, i, d.mul(d.load(src, i), factor))
            b.give()
        with b.block(1):
            b.give()
    return d


def moved_vectors(dtype: t.DType) -> Draft:
    """Return vectors of every width that are moved between memories, taken apart, put together, chosen and carried."""
    d = Draft()
    a, b = d.pointer("a", dtype), d.pointer("b", dtype)
    tile, r = d.shared("tile", 64, dtype), d.registers("r", 64, dtype)
    for lanes in (2, 4, 8, 16):
        if dtype.bytes * lanes <= 16:
            v = d.load(a, 16, lanes, name="v")
            d.store(tile, 0, v)
            d.store(r, 16, d.load(tile, 16, lanes))
            elements = tuple(d.pure(ops.Extract(v, lanes - 1 - i), dtype) for i in range(lanes))
            d.store(b, 0, d.pure(ops.Pack(elements), VectorType(dtype, lanes)))
            d.store(b, 16, d.load(r, 16, lanes))
            with d.loop(4, v, carried=("v",)) as loop:
                chosen = ops.Select(d.compare("lt", loop.index, 2), loop.carried[0], d.load(a, 0, lanes))
                loop.next(d.pure(chosen, v.type))
            d.store(b, 32, *loop.results)
    return d
