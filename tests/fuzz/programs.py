"""Generates kernels of every construct that threads have: typed arithmetic, branches, loops, memory, exchange.

Every thread begins with a value in each variable and writes its variables out at the end, so that what went wrong
anywhere shows. A variable keeps its type. What needs all threads of a block or warp stands where all of them come by.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from random import Random

from tests.conformance.test_mathematics import FUNCTIONS
from tests.fuzz.expressions import FLOATS, INTEGERS, Expressions, name_of
from tests.fuzz.meaning import TYPES
from tests.fuzz.stages import write_pipeline, write_roles, write_stage
from tests.fuzz.state import FUNCTIONS as STATE_FUNCTIONS
from tests.fuzz.state import IMPORTS, IN_HELPERS, MOST_FUNCTIONS, STATEMENTS, STRUCTURES, State, scope, write_unpacking
from tests.fuzz.tiles import TILES, write_collective
from tests.fuzz.trial import Argument, Program

import tilewright as tw

# Blocks of whole warps, in one to three dimensions, and some whose last warp is not whole.
BLOCKS = (32, 64, 64, 96, (16, 4, 1), (8, 4, 2), (12, 4, 2), 40, (9, 8, 1))
SMALL_BLOCKS = (32, 32, 64, (8, 4, 1), 40, (4, 4, 2), (16, 4, 1))  # of longer programs
ATOMIC_TYPES = (tw.int32, tw.uint32, tw.int64, tw.uint64)
LINEAR = "tw.thread_idx.x + tw.block_dim.x * (tw.thread_idx.y + tw.block_dim.y * tw.thread_idx.z)"
MOST_OUTPUTS = 10
SLOTS = 8  # elements of each array that all threads update


class Writer(Expressions):
    """Writes the lines of one kernel and of a helper function."""

    def __init__(self, random: Random, loose: bool, threads: int, grid: int) -> None:
        super().__init__(random, loose)
        self.threads, self.grid = threads, grid
        self.lines: list[str] = []
        self.preamble: list[str] = []  # allocations, at the start of the kernel
        self.arguments: list[Argument] = []
        self.counter = itertools.count()
        self.assignable: dict[tw.DType, list[str]] = {}
        self.is_helper = False  # a helper function does not see the kernel's arrays
        self.registers: list[tuple[str, tw.DType, int]] = []
        self.exchanges: list[tuple[str, tw.DType]] = []
        self.prelude: list[str] = []  # classes and functions before the kernel
        self.state = State()
        self.functions_left = MOST_FUNCTIONS

    def fresh(self, prefix: str) -> str:
        return f"{prefix}{next(self.counter)}"

    def put(self, indent: int, line: str) -> None:
        self.lines.append("    " * indent + line)

    def declare(self, name: str, dtype: tw.DType, assignable: bool = True) -> None:
        self.variables.setdefault(dtype, []).append(name)
        if assignable:
            self.assignable.setdefault(dtype, []).append(name)

    def target(self, choices: tuple[tw.DType, ...] = TYPES) -> tuple[str, tw.DType] | None:
        """Return a variable that may be assigned."""
        known = [(n, t) for t in choices for n in self.assignable.get(t, ())]
        return self.choice(known) if known else None

    # --- statements of one thread ---

    def block(self, indent: int, depth: int, loop: bool) -> None:
        before = len(self.lines)
        with scope(self):
            for _ in range(self.integer(1, 3)):
                self.statement(indent, depth, loop)
        if len(self.lines) == before:  # they have written before the kernel
            self.put(indent, "pass")

    def statement(self, indent: int, depth: int, loop: bool) -> None:
        kinds = ["assign", "assign", "assign", "augment", "swap"]
        if not self.is_helper:
            kinds += ["register", "atomic", "mathematics"]
            if self.state.lists or self.state.effects or self.prelude:
                kinds += ["state"] * 8
                kinds += ["if", "for", "while", "static", "if", "for"] if depth > 1 else []
            if self.registers:
                kinds += ["tile"] * 4
        if depth:
            kinds += ["if", "if", "for", "while", "static", "pair"]
        if loop:
            kinds += ["jump"]
        getattr(self, f"_{self.pick(*kinds)}")(indent, depth, loop)

    def _assign(self, indent: int, *_: object) -> None:
        found = self.target()
        assert found is not None
        self.put(indent, f"{found[0]} = {self.of(found[1])}")

    def _augment(self, indent: int, *_: object) -> None:
        found = self.target()
        assert found is not None
        name, dtype = found
        operators: tuple[str, ...]
        if dtype is tw.bool_ or (dtype.is_signed and not dtype.is_float):
            operators = ("&", "|", "^")
        elif dtype.is_float:
            operators = ("+", "-", "/")
        else:
            operators = ("+", "-", "*", "&", "|", "^")
        self.put(indent, f"{name} {self.pick(*operators)}= {self.of(dtype, 1)}")

    def _swap(self, indent: int, *_: object) -> None:
        several = [names for names in self.assignable.values() if len(names) > 1]
        if not several:
            return self._assign(indent)
        a, b = self.random.sample(self.choice(several), 2)
        self.put(indent, f"{a}, {b} = {b}, {a}")

    def _register(self, indent: int, *_: object) -> None:
        if not self.registers:
            return self._assign(indent)
        name, dtype, size = self.choice(self.registers)
        place = self.small(size) if self.chance() else str(self.integer(0, size - 1))
        found = self.target((dtype,))
        if found is not None and self.chance():
            self.put(indent, f"{found[0]} = {name}[{place}]")
        else:
            self.put(indent, f"{name}[{place}] = {self.of(dtype, 1)}")

    def _atomic(self, indent: int, *_: object) -> None:
        """Update an element that all threads share; in any order the result is the same."""
        kind = self.pick("add", "max", "min")
        dtype = self.choice([*ATOMIC_TYPES, tw.float32, tw.float64])
        name = f"shared_{kind}_{dtype.name}"
        if all(a.name != name for a in self.arguments):
            self.arguments.append(Argument(name, dtype, (SLOTS,), "zeros"))
        if not dtype.is_float:
            value = self.of(dtype, 1)
        elif kind == "add":  # sums of small integers are exact
            value = f"{self.small(8)}.to({name_of(dtype)})"
        else:
            value = f"tw.abs({self.finite(dtype, 1, '-1e6', '1e6')})"
        self.put(indent, f"tw.atomic_{kind}({name}, {self.small(SLOTS)}, {value})")

    def _mathematics(self, indent: int, *_: object) -> None:
        """Store what a math function gives, which the backends compute within a bound; nothing uses it further."""
        function = self.choice(FUNCTIONS)
        dtype = self.type(FLOATS)
        if not dtype.is_float:
            return self._assign(indent)
        name = self.fresh("math")
        limit = 1.0 if dtype.is_narrow_float else 2 * (function.single if dtype is tw.float32 else function.double) + 1
        self.arguments.append(Argument(name, dtype, (self.grid * self.threads,), "zeros", limit))
        low, high = (f"{name_of(dtype)}({max(b, -1.0) if b < -10 else b})" for b in (function.low, function.high))
        self.put(indent, f"{name}[i] = tw.{function.name}({self.finite(dtype, 1, low, high)})")

    def _state(self, indent: int, depth: int, loop: bool) -> None:
        self.choice(IN_HELPERS if self.is_helper else STATEMENTS)(self, indent, depth, loop)

    def _tile(self, indent: int, depth: int, loop: bool) -> None:
        self.choice(TILES)(self, indent, depth, loop)

    def _unpack(self, indent: int, *_: object) -> None:
        write_unpacking(self, indent)

    def _if(self, indent: int, depth: int, loop: bool) -> None:
        self.put(indent, f"if {self.condition()}:")
        self.block(indent + 1, depth - 1, loop)
        if self.chance(3):
            self.put(indent, f"elif {self.condition()}:")
            self.block(indent + 1, depth - 1, loop)
        if self.chance():
            self.put(indent, "else:")
            self.block(indent + 1, depth - 1, loop)

    def _for(self, indent: int, depth: int, _: bool) -> None:
        index, e = self.fresh("k"), self.small(4)
        bounds = self.pick(e, f"1, {e}", f"3, {e} - 1, -1", f"{e} & 1, 5, 2", "3", "n")
        counted = self.pick("range({})", "range({})", "tw.range({}, unroll=2)", "tw.range({}, unroll=True)")
        if "True" in counted and bounds != "3":
            counted = "range({})"
        self.put(indent, f"for {index} in {counted.format(bounds)}:")
        self.variables.setdefault(tw.int32, []).append(index)
        self.block(indent + 1, depth - 1, "unroll" not in counted)
        self.variables[tw.int32].remove(index)

    def _static(self, indent: int, depth: int, loop: bool) -> None:
        index = self.fresh("k")
        self.put(indent, f"for {index} in {self.pick('tw.static_range(3)', '(2, 0, 1)')}:")
        self.numbers.append(index)
        self.block(indent + 1, depth - 1, True)
        self.numbers.remove(index)

    def _while(self, indent: int, depth: int, _: bool) -> None:
        turns = self.fresh("turns")
        self.put(indent, f"{turns} = 0")
        tests = (f"{turns} < {self.small(4)}", f"{turns} < 3 and {self.condition(0)}", "True")
        test = self.choice(tests)
        self.put(indent, f"while {test}:")
        self.put(indent + 1, f"{turns} += 1")
        if test == "True":
            self.put(indent + 1, f"if {turns} > {self.small(4)} or {turns} > 5:")
            self.put(indent + 2, "break")
        self.block(indent + 1, depth - 1, True)

    def _pair(self, indent: int, *_: object) -> None:
        """Carry two values of different types through a loop or branch as a tuple or list."""
        targets = [found for found in (self.target(), self.target()) if found is not None]
        name, brackets = self.fresh("pair"), self.pick("()", "[]")
        self.put(indent, f"{name} = {', '.join(n for n, _type in targets).join(brackets)}")
        head = self.pick(f"for {self.fresh('k')} in range({self.small(4)}):", f"if {self.condition()}:")
        self.put(indent, head)
        elements = [(f"{name}[{place}]", dtype) for place, (_name, dtype) in enumerate(targets)]
        for element, dtype in elements:
            self.variables[dtype].append(element)
        parts = ", ".join(self.of(dtype, 1) for _element, dtype in elements)
        for element, dtype in elements:
            self.variables[dtype].remove(element)
        self.put(indent + 1, f"{name} = {parts.join(brackets)}")
        self.put(indent, f"{targets[0][0]}, {targets[1][0]} = {name}")

    def _jump(self, indent: int, *_: object) -> None:
        self.put(indent, f"if {self.condition()}:")
        self.put(indent + 1, self.pick("break", "continue"))

    # --- what threads do together ---

    def together(self, indent: int, depth: int) -> None:
        """Write a statement that all threads of the block come by."""
        kinds = ["exchange", "own_atomic", "collective", "collective"]
        if self.threads % 32 == 0:
            kinds += ["shuffle", "vote", "exchange", "exchange_in_warp", "shared_atomic", "stage", "pipeline"]
        if self.threads % 32 == 0 and self.threads > 32 and not indent > 1:  # mbarriers count phases from the start
            kinds += ["roles"] if hasattr(tw, "mbarrier") else []
        getattr(self, f"_{self.pick(*kinds, *(['rounds'] if depth else []))}")(indent, depth)

    def _shuffle(self, indent: int, *_: object) -> None:
        found = self.target()
        assert found is not None
        name, dtype = found
        width = self.choice([32, 32, 16, 8, 4, 2])
        kind = self.pick("shuffle", "shuffle_up", "shuffle_down", "shuffle_xor")
        lane = self.small(32) if kind == "shuffle" else str(self.integer(0, width - 1))
        self.put(indent, f"{name} = tw.{kind}({self.of(dtype, 1)}, {lane}, {width})")

    def _vote(self, indent: int, *_: object) -> None:
        kind = self.pick("vote_any", "vote_all", "ballot")
        dtype = tw.uint32 if kind == "ballot" else tw.bool_
        found = self.target((dtype,)) or self.target(INTEGERS)
        if found is None:
            return self._shuffle(indent)
        name = self.fresh("vote")
        self.put(indent, f"{name} = tw.{kind}({self.of(tw.bool_, 1)})")
        self.put(indent, f"{found[0]} = {name}.to({name_of(found[1])})")

    def _shared(self, dtype: tw.DType) -> str:
        """Return shared memory of an element a thread, in some layout: what stands there, or new."""
        known = [n for n, t in self.exchanges if t is dtype]
        if known and self.chance():
            return self.pick(*known)
        name, count = self.fresh("smem"), self.threads
        rows = self.choice([r for r in (4, 8, 16) if count % r == 0])
        columns, pad = count // rows, self.integer(0, 2)
        layouts = [
            f"{count}",
            f"tw.Layout(({rows}, {columns}), ({columns + pad}, 1))",
            f"tw.Layout(({rows}, {columns}), (1, {rows + pad}))",
            f"tw.Layout(((2, {rows // 2}), {columns}), (({count + pad}, 1), {rows // 2}))",
        ]
        if count % 32 == 0:  # whole blocks of the swizzle
            swizzle = f"tw.Swizzle({self.integer(1, 2)}, 0, 3)"
            layouts.append(f"tw.ComposedLayout({swizzle}, 0, tw.Layout(({rows}, {columns}), (1, {rows})))")
        layout = self.choice(layouts)
        self.preamble.append(f"{name} = tw.shared({name_of(dtype)}, {layout})")
        self.exchanges.append((name, dtype))
        return name

    def _permuted(self) -> str:
        """Return a place for each thread of the block, all different."""
        step = self.choice([k for k in (5, 7, 11) if math.gcd(k, self.threads) == 1])
        places = ["tid", f"(tid * {step} + {self.integer(0, 40)}) % {self.threads}", f"({self.threads - 1} - tid)"]
        if self.threads % 32 == 0:
            places.append(f"(tid ^ {self.integer(1, 31)})")
        return self.choice(places)

    def _exchange(self, indent: int, *_: object) -> None:
        found = self.target()
        assert found is not None
        name, dtype = found
        smem = self._shared(dtype)
        self.put(indent, f"{smem}[{self._permuted()}] = {self.of(dtype, 1)}")
        self.put(indent, "tw.sync_threads()")
        self.put(indent, f"{name} = {smem}[{self.small(1024)} % {self.threads}]")
        self.put(indent, "tw.sync_threads()")

    def _exchange_in_warp(self, indent: int, *_: object) -> None:
        found = self.target()
        assert found is not None
        name, dtype = found
        smem = self._shared(dtype)
        self.put(indent, f"{smem}[tid] = {self.of(dtype, 1)}")
        self.put(indent, "tw.sync_warp()")
        self.put(indent, f"{name} = {smem}[tid // 32 * 32 + {self.small(32)}]")
        self.put(indent, "tw.sync_warp()")
        self.put(indent, "tw.sync_threads()")

    def _shared_atomic(self, indent: int, *_: object) -> None:
        found = self.target(ATOMIC_TYPES)
        if found is None:
            return self._exchange(indent)
        name, dtype = found
        smem = self._shared(dtype)
        kind = self.pick("add", "max", "min")
        self.put(indent, f"{smem}[tid] = {self.of(dtype, 1)}")
        self.put(indent, "tw.sync_threads()")
        self.put(indent, f"tw.atomic_{kind}({smem}, {self.small(32)}, {self.of(dtype, 1)})")
        self.put(indent, "tw.sync_threads()")
        self.put(indent, f"{name} = {smem}[{self._permuted()}]")
        self.put(indent, "tw.sync_threads()")

    def _own_atomic(self, indent: int, *_: object) -> None:
        found = self.target(ATOMIC_TYPES)
        if found is None:
            return self._exchange(indent)
        name, dtype = found
        array = self.fresh("own")
        self.arguments.append(Argument(array, dtype, (self.grid * self.threads,)))
        self.put(indent, f"{name} = tw.atomic_{self.pick('add', 'max', 'min')}({array}, i, {self.of(dtype, 1)})")

    def _rounds(self, indent: int, depth: int) -> None:
        """Write a loop that all threads go through equally often, with barriers inside."""
        index = self.fresh("k")
        self.put(indent, f"for {index} in range({self.pick('n', '2', 'n + 1')}):")
        self.variables.setdefault(tw.int32, []).append(index)
        with scope(self):
            for _ in range(self.integer(1, 2)):
                self.together(indent + 1, 0)
            self.statement(indent + 1, 1, False)
        self.variables[tw.int32].remove(index)

    def _stage(self, indent: int, *_: object) -> None:
        write_stage(self, indent)

    def _pipeline(self, indent: int, *_: object) -> None:
        write_pipeline(self, indent)

    def _roles(self, indent: int, *_: object) -> None:
        write_roles(self, indent)

    def _collective(self, indent: int, *_: object) -> None:
        write_collective(self, indent)


def write_program(random: Random, loose: bool = False, with_state: bool = True) -> Program:
    """Return a kernel over typed variables and, with state, over what Python keeps them in."""
    grid, block = random.randint(1, 2), random.choice(SMALL_BLOCKS if with_state else BLOCKS)
    threads = block if isinstance(block, int) else math.prod(block)
    writer = Writer(random, loose, threads, grid)
    types = [writer.choice(TYPES) for _ in range(writer.integer(2, 4))]
    variables = [(writer.fresh("v"), dtype) for dtype in types]
    inputs = [Argument(f"in_{n}", t, (grid * threads,)) for n, t in variables]
    outputs = [Argument(f"out_{n}", t, (grid * threads,), "zeros") for n, t in variables]
    scalar = writer.choice((tw.int32, tw.int64, tw.float32))
    scalars = [Argument("n", tw.int32, None, "count"), Argument("s", scalar, None)]
    for name, dtype in variables:
        writer.declare(name, dtype)
    helper = write_helper(writer) if writer.chance() else []
    for argument in scalars:
        writer.declare(argument.name, argument.dtype, assignable=False)
    writer.declare("tid", tw.int32, assignable=False)
    write_registers(writer, types, writer.integer(1, 3) if with_state else writer.integer(0, 2))
    if with_state:
        write_state(writer)
    for _ in range(writer.integer(3, 8) if with_state else writer.integer(2, 6)):
        if writer.chance(4 if with_state else 2):
            writer.together(1, 1)
        else:
            writer.statement(1, 3, False)
        if helper and writer.chance(6 if with_state else 3):
            writer.put(1, helper[-1])
    if helper:
        writer.put(1, helper[-1])
    for name, dtype in named_state(writer):
        outputs.append(Argument(f"out_s{len(outputs)}", dtype, (grid * threads,), "zeros"))
        writer.put(1, f"{outputs[-1].name}[i] = {name}")
    arguments = (*outputs, *inputs, *writer.arguments, *scalars)
    reads, signature, packing = write_arguments(writer, arguments, inputs) if with_state else plain_arguments(arguments)
    lines = [
        *(IMPORTS if with_state else []),
        *packing,
        *writer.prelude,
        *helper[:-1],
        "@tw.kernel",
        f"def kernel({signature}):",
        f"    tid = {'tw.thread_idx.x' if isinstance(block, int) else LINEAR}",
        f"    i = tw.block_idx.x * {threads} + tid",
        *(f"    {name} = {reads[f'in_{name}']}[i]" for name, _ in variables),
        *(f"    {line}" for line in writer.preamble),
        *writer.lines,
        *(f"    out_{name}[i] = {name}" for name, _ in variables),
        "",
    ]
    return Program("\n".join(lines), grid, block, arguments, writer.integer(0, 2**32 - 1))


def write_registers(writer: Writer, types: Sequence[tw.DType], count: int) -> None:
    for _ in range(count):
        dtype = writer.choice(types)
        array, size = writer.fresh("reg"), writer.choice([2, 4, 4, 6, 8])
        writer.preamble += [
            f"{array} = tw.registers({name_of(dtype)}, {size})",
            f"tw.fill({array}, {writer.leaf(dtype)})",
        ]
        writer.registers.append((array, dtype, size))


def write_state(writer: Writer) -> None:
    """Make the structures and functions with which the kernel begins."""
    for _ in range(writer.integer(1, 3)):
        writer.choice(STRUCTURES)(writer, 1)
    for _ in range(writer.integer(0, 3)):
        writer.choice(STATE_FUNCTIONS)(writer, 1)
    if writer.chance(3):
        dtype = writer.type()
        for _ in range(2):
            array, name = writer.fresh("row"), writer.fresh("t")
            writer.arguments.append(Argument(array, dtype, (writer.grid * writer.threads,)))
            writer.preamble.append(f"{name} = {array}")
            writer.state.tensors.append((name, dtype))


def named_state(writer: Writer) -> list[tuple[str, tw.DType]]:
    """Return what can be named at the end of the kernel besides its first variables."""
    names = [(n, t) for t in TYPES for n in writer.variables.get(t, ()) if not n.isidentifier()]
    return names[:MOST_OUTPUTS]


def plain_arguments(arguments: Sequence[Argument]) -> tuple[dict[str, str], str, list[str]]:
    return {a.name: a.name for a in arguments}, ", ".join(a.name for a in arguments), []


def write_arguments(
    writer: Writer, arguments: Sequence[Argument], inputs: Sequence[Argument]
) -> tuple[dict[str, str], str, list[str]]:
    """Return how inputs are read, the kernel's parameters, and the lines that put inputs into a structure, at times."""
    reads, signature, _ = plain_arguments(arguments)
    if not writer.chance(3):
        return reads, signature, []
    names = [a.name for a in inputs]
    kind = writer.pick("list", "tuple", "dict", "NamedTuple", "dataclass", "nested")
    made = f"[{', '.join(names)}]"
    read = {name: f"given[{place}]" for place, name in enumerate(names)}
    lines: list[str] = []
    if kind == "tuple":
        made = f"({', '.join(names)},)"
    elif kind == "dict":
        made = f"dict({', '.join(f'{n}={n}' for n in names)})"
        read = {n: f'given["{n}"]' for n in names}
    elif kind == "nested":
        made, read = f'{{"all": ({made}, 1)}}', {n: f'given["all"][0]{r[5:]}' for n, r in read.items()}
    elif kind != "list":
        made, read = f"Given({', '.join(names)})", {n: f"given.{n}" for n in names}
        head = ["class Given(NamedTuple):"] if kind == "NamedTuple" else ["@dataclass", "class Given:"]
        lines = [*head, *(f"    {n}: Any" for n in names), ""]
    others = ", ".join(a.name for a in arguments if a not in inputs)
    lines += [f"def pack({signature}):", f"    return {made}, {others}", ""]
    return reads | read, f"given, {others}", lines


def write_helper(writer: Writer) -> list[str]:
    """Return the lines of a function with early returns, and the line that calls it."""
    found = writer.target()
    assert found is not None
    name, dtype = found
    inner = Writer(writer.random, writer.loose, writer.threads, writer.grid)
    inner.is_helper = True
    inner.declare("x", dtype)
    inner.declare("y", tw.int32)
    inner.put(1, f"if {inner.condition()}:")
    inner.put(2, f"return {inner.of(dtype)}")
    for _ in range(inner.integer(1, 3)):
        getattr(inner, f"_{inner.pick('assign', 'augment', 'if', 'for', 'while')}")(1, 1, False)
    if inner.chance():
        inner.put(1, f"if {inner.condition()}:")
        inner.put(2, f"return {inner.of(dtype)}")
        inner.put(1, "else:")
        inner.put(2, f"return {inner.of(dtype)}")
    else:
        inner.put(1, f"return {inner.of(dtype)}")
    call = f"{name} = helper({name}, {writer.pick('tid', 'i', 'n')}, n)"
    return ["@tw.function", "def helper(x, y, n):", *inner.lines, "", call]
