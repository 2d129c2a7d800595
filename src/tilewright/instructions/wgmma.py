"""wgmma: matrix products of a warpgroup, D = A * B + D, under CuTe's names.

A name says all: `SM90_64x128x16_F32BF16BF16_SS` has M x N x K = 64 x 128 x 16, an accumulator of float32, A and B of
bfloat16, both read from shared memory (SS); `RS` takes A from registers. A name alone is K-major for A and B, which
CUTLASS writes out (`_TN`) where the types allow no other; 16-bit types may be M-major or N-major:
`atom.with_majors("MN", "K")`.

    Wgmma           wgmma.mma_async          starts a product; it belongs to the warpgroup's open group
    WgmmaFence      wgmma.fence              orders other uses of its registers before the products that follow
    WgmmaCommit     wgmma.commit_group       closes the group
    WgmmaWait       wgmma.wait_group         waits for all groups but the newest ones

A warp w of the warpgroup has rows 16 w to 16 w + 15. Its accumulator, and A in registers, are spread over its lanes as
those of mma.sync. What lies in shared memory is seen whole by all 128 threads, as in CuTe: stride 0.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions"; CUTLASS, include/cute/arch/mma_sm90_gmma.hpp,
mma_sm90_gmma_ext.hpp and mma_sm90_desc.hpp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.arguments import shown
from tilewright.atoms.fragments import positions
from tilewright.atoms.mma import OperandPlace, Registers
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import binary, literal
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import print_call
from tilewright.backends.sim.machine import Access, AccessKind, Machine, RegisterUse, demand_whole_warps
from tilewright.backends.sim.storage import RegisterStorage
from tilewright.backends.sim.values import Array, Frame, Mask, at_least_2d, both, fill
from tilewright.dtypes import DType, bool_, float16, int32, uint32
from tilewright.errors import LanguageError
from tilewright.instructions.descriptors import CHUNK, SharedDescriptor
from tilewright.instructions.product_fences import (
    LETTERS,
    begins_sums,
    fence_operands,
    fence_results,
    keep_reads_behind,
)
from tilewright.instructions.warpgroup_atoms import NAMES as NAMES
from tilewright.instructions.warpgroup_atoms import ROWS, THREADS, WarpgroupMMAAtom, make_atom, words_of
from tilewright.instructions.warpgroup_operands import (
    Accumulator,
    FragmentA,
    OperandReader,
    RegisterTiles,
    SharedOperand,
    demand_same,
)
from tilewright.ir.core import Buffer, Op, Space, Value
from tilewright.ir.effects import Completion, Effects, Order, Proxy, Scope, attribute, operand, reads, updates
from tilewright.ir.evaluate import facts_of
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import Binary, Constant
from tilewright.tensors import Tensor
from tilewright.trace.control import nest
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current, refuse_partial_warps

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

# --- the atoms -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedMMAAtom(WarpgroupMMAAtom):
    """A wgmma that takes A from shared memory."""

    def begin(self, d: Tensor, a: Tensor, b: Tensor, accumulate: Any, metadata: Any = None) -> None:
        """Emit loops over K, M and N with one instruction inside; D is there after a wait."""
        begin_products(self, d, a, b, accumulate)


@dataclass(frozen=True)
class RegisterMMAAtom(WarpgroupMMAAtom):
    """A wgmma that takes A from registers."""

    a_place: ClassVar[OperandPlace] = OperandPlace.REGISTERS

    @property
    def registers_a(self) -> Registers:
        """How a thread passes its part of A: as words of 32 bits."""
        return words_of(self.dtype_a, self.layout_a)

    def begin(self, d: Tensor, a: Tensor, b: Tensor, accumulate: Any, metadata: Any = None) -> None:
        """Emit loops over K, M and N with one instruction inside; D is there after a wait."""
        begin_products(self, d, a, b, accumulate)


@cache
def warpgroup_mma(name: str) -> WarpgroupMMAAtom:
    """Return the atom of a name in `NAMES`.

    >>> atom = warpgroup_mma("SM90_64x16x16_F32BF16BF16_SS")
    >>> print(atom.instruction, atom.layout_a)
    wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 (128,(64,16)):(0,(1,64))
    """
    return make_atom(name, SharedMMAAtom, RegisterMMAAtom)


# --- what a kernel says ----------------------------------------------------------------------------------


def wgmma_fence() -> None:
    """Order the warpgroup's register accesses before the matrix products that follow (PTX wgmma.fence).

    Call it before the first product, and again after other operations have accessed the accumulator, or A in registers.
    CUTLASS calls it `warpgroup_arrive`.
    """
    _emit("tw.wgmma_fence", WgmmaFence())


def wgmma_commit() -> None:
    """Commit the warpgroup's products started so far as one group (PTX wgmma.commit_group)."""
    _emit("tw.wgmma_commit", WgmmaCommit())


def wgmma_wait(pending: int = 0) -> None:
    """Wait until at most `pending` of the newest groups of products are still running (PTX wgmma.wait_group).

    Once a group has completed, its accumulators may be used and its operands overwritten.
    """
    groups: object = pending
    if not isinstance(groups, int) or isinstance(groups, bool) or not 0 <= groups <= _MOST_PENDING:
        raise LanguageError(
            f"tw.wgmma_wait takes the number of groups left pending, 0 to {_MOST_PENDING}, got {shown(groups)}",
            help="the number is part of the instruction: a Python int",
        )
    _emit("tw.wgmma_wait", WgmmaWait(groups))


_MOST_PENDING = 7  # of wgmma.wait_group


def _emit(what: str, op: Op) -> None:
    tracer = current(what)
    if tracer.arch.name != "sm_90a":
        raise LanguageError(f"{what}: wgmma needs sm_90a, and the target is {tracer.arch}")
    refuse_partial_warps(tracer, what, THREADS)
    tracer.emit(op)


def begin_products(
    atom: WarpgroupMMAAtom, d: Tensor, a: Tensor, b: Tensor, accumulate: Any,
    kinds: tuple[type[Wgmma], type[WgmmaOfRegisters]] | None = None,
    more: Callable[[Any, Any], tuple[Any, ...]] = lambda m, k: (),
) -> None:  # fmt: skip
    """Emit the products of fragments (V, M, K), (V, N, K) and (V, M, N), which sum up in the registers of the last.

    `kinds` are the classes of ops for A in shared memory and in registers, `more` what they have besides, by M and K.
    """
    in_shared, in_registers = kinds or (Wgmma, WgmmaOfRegisters)
    tracer = current("tw.gemm")
    refuse_partial_warps(tracer, str(atom), THREADS)
    adds = as_scalar(accumulate, bool_)
    if adds.dtype is not bool_:
        raise LanguageError(f"tw.gemm: accumulate is a bool, got {adds.dtype}")
    sums = Accumulator(atom, d)
    in_memory = SharedOperand("B", b, atom, atom.majors[1])
    of_a = FragmentA(atom, a) if atom.a_place is OperandPlace.REGISTERS else SharedOperand("A", a, atom, atom.majors[0])
    extents = [_static(x.layout[mode].size) for x, mode in ((a, 2), (a, 1), (b, 1))]

    def instruction(k: Any, m: Any, n: Any) -> None:
        again = adds
        if isinstance(k, Scalar):
            again = Scalar(tracer.pure(Binary("or", adds.value, (k > 0).value), bool_))
        elif k > 0:
            again = as_scalar(True, bool_)
        indices = sums.index(m, n), in_memory.index(n, k), again.value
        if isinstance(of_a, FragmentA):
            op: Op = in_registers(
                atom, sums.buffer, in_memory.tensor.engine.buffer, in_memory.descriptor, *indices,
                of_a.buffer, of_a.offsets, of_a.index(m, k), *more(m, k),
            )  # fmt: skip
        else:
            op = in_shared(
                atom, sums.buffer, in_memory.tensor.engine.buffer, in_memory.descriptor, *indices,
                of_a.tensor.engine.buffer, of_a.descriptor, of_a.index(m, k), *more(m, k),
            )  # fmt: skip
        for each in (d, a, b):
            each.engine.demand_guards()
        tracer.emit(op)

    nest(extents, instruction, unroll=True, names=("k", "m", "n"))


def _static(extent: Any) -> int:
    assert isinstance(extent, int), extent  # fragments have static layouts
    return extent


# --- the ops ---------------------------------------------------------------------------------------------

_OF_WARPGROUP = Effects(together=Scope.WARPGROUP, removable=False, refused_apart=True)


def _chunk(op: _Product) -> int:
    return CHUNK // op.b.dtype.bytes


@dataclass(eq=False)
class _Product(Instruction):
    """accumulator[index ...] = A * B, plus what is there where `adds` holds; B is in shared memory.

    All threads of a warpgroup take part. Registers and shared memory are in use until the product is waited for.
    """

    atom: WarpgroupMMAAtom = attribute()
    accumulator: Buffer = updates("accumulator_index", elements=lambda op: op.registers)
    b: Buffer = reads("b_index", _chunk)
    b_descriptor: SharedDescriptor = attribute()
    accumulator_index: Value = operand()
    b_index: Value = operand()
    adds: Value = operand()

    CALLED: ClassVar[str | None] = "a wgmma"
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = replace(_OF_WARPGROUP, asynchronous=Completion.WARPGROUP, proxy=Proxy.ASYNC)
    COUNTED: ClassVar[str | None] = "mma"
    RESERVED: ClassVar[str] = r"wgmma_\w+|shared_descriptor|fence_registers|keep_reads_behind"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("wgmma", "take a MFMA atom of tw.atoms")

    @property
    def registers(self) -> int:
        """How many registers of the accumulator's buffer a thread has."""
        return self.atom.shape_mnk[1] // 2 * self.atom.dtype_d.bytes // self.accumulator.dtype.bytes

    @property
    def shape(self) -> tuple[object, ...]:
        """What products have in common that need no fence between them where they sum up in the same registers."""
        return self.atom.shape_mnk, self.atom.dtype_d

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        held = uint32 if self.atom.dtype_d is float16 else self.atom.dtype_d
        expect(
            self.accumulator.space is Space.REGISTER and self.accumulator.dtype is held, f"{held} registers of the sum"
        )
        expect(self.b.space is Space.SHARED and self.b.dtype is self.atom.dtype_b.storage, "B is in shared memory")
        expect(self.adds.type is bool_, "whether to add is a bool")

    def work(self, warp: int) -> tuple[str, int, bool] | None:
        return f"tensor {self.atom.dtype_a}", 2 * self.atom.products * warp // THREADS, True

    def read_a(self, compiler: Compiler) -> Callable[[Frame, Array], Array]:
        """Return what gives the tiles of A of some warpgroups."""
        raise NotImplementedError

    def registers_of_a(self, compiler: Compiler) -> list[tuple[RegisterStorage, int, int]]:
        """Return the registers that are read until the wait: where they are, the slot of the first, and how many."""
        return []

    def text_of_metadata(self, printer: Printer) -> list[str]:
        """Return the arguments between B and whether to add."""
        return []

    def simulate(self, compiler: Compiler) -> Step:
        """Read both tiles as descriptors say, compute, and sum up; the observers know when it may be used."""
        machine, atom = compiler.machine, self.atom
        storage = machine.storages[self.accumulator]
        assert isinstance(storage, RegisterStorage), self.accumulator
        _, n, k = atom.shape_mnk
        read_a, reader_b = self.read_a(compiler), OperandReader(self, machine, self.b, n, k, self.b_descriptor)
        sums = RegisterTiles(machine, positions(atom.layout_c), (ROWS, n))
        at_sum, at_b, adds = compiler.slots((self.accumulator_index, self.b_index, self.adds))
        read = self.registers_of_a(compiler)

        def run(frame: Frame) -> None:
            values, mask = frame.values, frame.mask
            demand_whole_warps(self, "a wgmma", mask, machine, full=True)
            groups = np.flatnonzero(machine.products.active(mask).any(axis=0))
            if not groups.size:
                return
            first, again = int(values[at_sum]), at_least_2d(values[adds])
            demand_same(self, "values of accumulate", again, mask, machine)
            uses = [RegisterUse(held, int(values[slot]), count, is_sum=False) for held, slot, count in read]
            self._announce(machine, [RegisterUse(storage, first, self.registers, is_sum=True), *uses], again, mask)
            a, b = read_a(frame, groups), reader_b.read(values[at_b], mask, groups)
            if again.any():
                held = [storage.load(np.int32(first + i), 1, mask) for i in range(self.registers)]
                c = sums.tile(held, atom.dtype_d, groups)
                c = np.where(
                    fill(again, len(again), machine.threads)[:, groups * THREADS, None, None], c, c.dtype.type(0)
                )
            else:
                c = np.zeros((1, len(groups), ROWS, n), atom.dtype_d.numpy)
            with np.errstate(all="ignore"):
                d = atom.reference(a, b, c)
            for i, register in enumerate(sums.spread(d, storage.buffer.dtype, groups)):
                storage.store(np.int32(first + i), register, 1, mask)

        return run

    def _announce(self, machine: Machine, uses: list[RegisterUse], again: Array, mask: Mask) -> None:
        if not machine.observers:
            return
        if again.any():
            adding, sums = None if again.all() else again, uses[0]
            machine.observe(
                Access(self, AccessKind.ACCUMULATE, sums.storage, np.int32(sums.index), sums.lanes, both(mask, adding))
            )
        for observer in machine.observers:
            observer.multiply(self, uses, mask)

    def cuda(self, printer: Printer) -> None:
        if printer.arch.name != self.atom.arch:
            raise printer.refuse(self, f"{self.atom.name} needs {self.atom.arch}, and the target is {printer.arch}")
        name, definition = _product_function(self.atom, self.accumulator.dtype, begins_sums(printer, self))
        printer.prelude.need(definition)
        given = [
            [address(printer, self.accumulator, self.accumulator_index).text],
            self.text_of_a(printer),
            [_descriptor(printer, self.b, self.b_index, self.b_descriptor)],
            self.text_of_metadata(printer),
            [exact(printer, self.adds).text],
        ]
        print_call(printer, self, name, given)

    def text_of_a(self, printer: Printer) -> list[str]:
        """Return the arguments that pass A."""
        raise NotImplementedError


@dataclass(eq=False)
class Wgmma(_Product):
    """D = A * B + D, with A in shared memory."""

    a: Buffer = reads("a_index", _chunk)
    a_descriptor: SharedDescriptor = attribute()
    a_index: Value = operand()

    def read_a(self, compiler: Compiler) -> Callable[[Frame, Array], Array]:
        index, k = compiler.slot(self.a_index), self.atom.extent("A", 2)
        reader = OperandReader(self, compiler.machine, self.a, ROWS, k, self.a_descriptor, "A")
        return lambda frame, groups: reader.read(frame.values[index], frame.mask, groups)

    def text_of_a(self, printer: Printer) -> list[str]:
        return [_descriptor(printer, self.a, self.a_index, self.a_descriptor)]


@dataclass(eq=False)
class WgmmaOfRegisters(_Product):
    """D = A * B + D, with A in registers: the words at `a_index` plus `a_offsets`."""

    a: Buffer = reads("a_index", elements=lambda op: max(op.a_offsets) + 1)
    a_offsets: tuple[int, ...] = attribute()
    a_index: Value = operand()

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        super().verify(expect)
        expect(self.a.space is Space.REGISTER and self.a.dtype is uint32, "A is in registers, in words")
        expect(len(self.a_offsets) == self.atom.registers_a.count, "the number of words of A")

    def read_a(self, compiler: Compiler) -> Callable[[Frame, Array], Array]:
        machine, atom, index = compiler.machine, self.atom, compiler.slot(self.a_index)
        storage = machine.storages[self.a]
        spread = RegisterTiles(machine, positions(atom.layout_a), (ROWS, atom.extent("A", 2)))

        def read(frame: Frame, groups: Array) -> Array:
            first = int(frame.values[index])
            held = []
            for offset in self.a_offsets:
                at = np.int32(first + offset)
                if machine.observers:
                    machine.observe(Access(self, AccessKind.OPERAND_READ, storage, at, 1, frame.mask))
                held.append(storage.load(at, 1, frame.mask))
            return spread.tile(held, atom.dtype_a.storage, groups)

        return read

    def registers_of_a(self, compiler: Compiler) -> list[tuple[RegisterStorage, int, int]]:
        storage = compiler.machine.storages[self.a]
        assert isinstance(storage, RegisterStorage), self.a
        return [(storage, compiler.slot(self.a_index), max(self.a_offsets) + 1)]

    def text_of_a(self, printer: Printer) -> list[str]:
        first = exact(printer, self.a_index)
        name, start = printer.buffer_names[self.a], first.text
        constant = self.a_index.definition
        if isinstance(constant, Constant):
            return [f"{name}[{int(constant.value) + offset}]" for offset in self.a_offsets]
        return [f"{name}[{start} + {offset}]" if offset else f"{name}[{start}]" for offset in self.a_offsets]


@dataclass(eq=False)
class WgmmaFence(Instruction):
    """Order the warpgroup's accesses to registers before the products that follow (wgmma.fence)."""

    CALLED: ClassVar[str | None] = "tw.wgmma_fence"
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = _OF_WARPGROUP
    COUNTED: ClassVar[str | None] = "fence"
    RESERVED: ClassVar[str] = _Product.RESERVED
    ON_AMD: ClassVar[tuple[str, str] | None] = _Product.ON_AMD

    def simulate(self, compiler: Compiler) -> Step:
        machine = compiler.machine

        def run(frame: Frame) -> None:
            demand_whole_warps(self, "tw.wgmma_fence", frame.mask, machine, full=True)
            for observer in machine.observers:
                observer.fence_registers(self, frame.mask)

        return run

    def cuda(self, printer: Printer) -> None:
        fence_operands(printer, self)
        _statement(printer, self, "wgmma_fence", "wgmma.fence.sync.aligned")


@dataclass(eq=False)
class WgmmaCommit(Instruction):
    """Close the warpgroup's open group of products (wgmma.commit_group)."""

    CALLED: ClassVar[str | None] = "tw.wgmma_commit"
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = replace(_OF_WARPGROUP, commits=Completion.WARPGROUP)
    COUNTED: ClassVar[str | None] = "commit"
    RESERVED: ClassVar[str] = _Product.RESERVED
    ON_AMD: ClassVar[tuple[str, str] | None] = _Product.ON_AMD

    def simulate(self, compiler: Compiler) -> Step:
        machine = compiler.machine

        def run(frame: Frame) -> None:
            demand_whole_warps(self, "tw.wgmma_commit", frame.mask, machine, full=True)
            machine.products.commit(frame.mask)

        return run

    def cuda(self, printer: Printer) -> None:
        _statement(printer, self, "wgmma_commit", "wgmma.commit_group.sync.aligned")


@dataclass(eq=False)
class WgmmaWait(Instruction):
    """Wait until at most `pending` of the warpgroup's newest groups are under way (wgmma.wait_group)."""

    pending: int = attribute()

    CALLED: ClassVar[str | None] = "tw.wgmma_wait"
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = replace(_OF_WARPGROUP, order=Order.ACQUIRE, completes=Completion.WARPGROUP)
    COUNTED: ClassVar[str | None] = "wait"
    RESERVED: ClassVar[str] = _Product.RESERVED
    ON_AMD: ClassVar[tuple[str, str] | None] = _Product.ON_AMD

    @property
    def effects(self) -> Effects:
        return replace(self.EFFECTS, pending=self.pending)

    def simulate(self, compiler: Compiler) -> Step:
        machine = compiler.machine

        def run(frame: Frame) -> None:
            demand_whole_warps(self, "tw.wgmma_wait", frame.mask, machine, full=True)
            machine.products.wait(self.pending, frame.mask)
            for observer in machine.observers:
                observer.wait(self, frame.mask)

        return run

    def cuda(self, printer: Printer) -> None:
        _statement(printer, self, "wgmma_wait", "wgmma.wait_group.sync.aligned", self.pending)
        if self.pending == 0:
            keep_reads_behind(printer, self)
        fence_results(printer, self, self.pending)


# --- how it is written -----------------------------------------------------------------------------------

_DESCRIPTOR = f"""\
// The descriptor of a tile in shared memory: where it begins, and by `layout` how it goes on. The tile lies `chunks`
// of 16 bytes behind an address; these are added last, so that tiles side by side share all but one addition.
{FUNCTION} unsigned long long shared_descriptor(const void* address, unsigned int chunks, unsigned long long layout) {{
    const unsigned int first = (unsigned int)layout | ((unsigned int)__cvta_generic_to_shared(address) & 0x3FFFF) >> 4;
    return (layout >> 32 << 32) | (first + chunks);
}}"""


def _descriptor(printer: Printer, buffer: Buffer, index: Value, described: SharedDescriptor) -> str:
    """Print the descriptor of a tile: the address of the first term of its index, and the others as chunks."""
    printer.prelude.need(_DESCRIPTOR)
    lanes, terms = CHUNK // buffer.dtype.bytes, _terms(index)
    first, others = address(printer, buffer, terms[0]).text, terms[1:]
    if any(facts_of(term).divisor % lanes for term in terms):
        first, others = address(printer, buffer, index).text, []
    elif not others and not isinstance(index.definition, Constant):
        first, others = printer.buffer_names[buffer], terms
    shift = literal(lanes.bit_length() - 1, int32)
    chunks = [binary(">>", exact(printer, term), shift, int32) for term in others] or [literal(0, int32)]
    total = reduce(lambda x, y: binary("+", x, y, int32), chunks).text
    return f"shared_descriptor({first}, {total}, 0x{described.bits():016x})"


def _terms(index: Value) -> list[Value]:
    """Return the terms of a sum, or what is none by itself."""
    definition = index.definition
    if not (isinstance(definition, Binary) and definition.kind == "add"):
        return [index]
    return [*_terms(definition.lhs), *_terms(definition.rhs)]


def _product_function(atom: WarpgroupMMAAtom, held: DType, begins: bool) -> tuple[str, str]:
    """Return the name and the definition of a product's function; one that `begins` sums does not read them first."""
    m, n, k = atom.shape_mnk
    count = n // 2 * atom.dtype_d.bytes // held.bytes
    words = atom.instruction.partition("aligned.")[2].split(".")
    in_registers = atom.a_place is OperandPlace.REGISTERS
    ends = [*(f"{x}_major_{major.lower()}" for x, major in zip("ab", atom.majors, strict=True) if major != "K")]
    ends += [f"minus_{x}" for x, sign in zip("ab", atom.signs, strict=True) if sign < 0]
    sparse = atom.selector is not None
    ends += [f"sparse{atom.selector}"] if sparse else []
    name = "_".join(["wgmma", *words, "rs" if in_registers else "ss", *ends])
    of_a = [f"a{i}" for i in range(atom.registers_a.count)] if in_registers else ["a"]
    a_type, a_letter = ("unsigned int", "r") if in_registers else ("unsigned long long", "l")
    sums = ", ".join(f"%{i}" for i in range(count))
    first = ", ".join(f"%{count + i}" for i in range(len(of_a)))
    first = f"{{{first}}}" if in_registers else first
    after = count + len(of_a)
    options = ""
    if atom.dtype_d.is_float:
        options += f", {atom.signs[0]}, {atom.signs[1]}"
    if atom.dtype_a.bits == 16:
        transposed = [str(int(major == "MN")) for major in atom.majors]
        options += "".join(f", {x}" for x in (transposed[1:] if in_registers else transposed))
    outputs = ", ".join(f'"+{LETTERS[held]}"(d[{i}])' for i in range(count))
    inputs = ", ".join(f'"{a_letter}"({x})' for x in of_a) + ', "l"(b)' + ', "r"(metadata)' * sparse
    parameters = (
        ", ".join(f"{a_type} {x}" for x in of_a) + ", unsigned long long b" + ", unsigned int metadata" * sparse
    )
    kept = f"%{after + 1}, {atom.selector}, " if sparse else ""
    text = f"""    asm volatile(
        "{{\\n"
        ".reg .pred p;\\n"
        "setp.ne.b32 p, %{after + 1 + sparse}, 0;\\n"
        "{atom.instruction} {{{sums}}}, {first}, %{after}, {kept}p{options};\\n"
        "}}"
        : {outputs}
        : {inputs}, "r"((int)adds));
"""
    if begins:
        name += "_first"
        text = f"    if (adds) {{\n{text}        return;\n    }}\n{text.replace('+', '=')}"
    definition = f"""\
// D = A * B by a warpgroup, {m} x {n} x {k}, plus D where `adds` holds; it goes on until it is waited for.
{FUNCTION} void {name}({held.c_name}* d, {parameters}, bool adds) {{
{text}}}"""
    return name, definition


def _statement(printer: Printer, op: Op, name: str, instruction: str, number: int | None = None) -> None:
    if printer.arch.name != "sm_90a":
        raise printer.refuse(op, f"wgmma needs sm_90a, and the target is {printer.arch}")
    if number is None:
        printer.prelude.need(f'{FUNCTION} void {name}() {{\n    asm volatile("{instruction};" ::: "memory");\n}}')
        printer.statement(f"{name}();", op)
        return
    printer.prelude.need(
        "// Waits until at most `pending` of the warpgroup's newest groups of products are under way.\n"
        f"template <int pending>\n{FUNCTION} void {name}() {{\n"
        f'    asm volatile("{instruction} %0;" :: "n"(pending) : "memory");\n}}'
    )
    printer.statement(f"{name}<{number}>();", op)
