"""The base of instructions: ops that answer for themselves, each in one file of `instructions`.

Scalars, memory and control are the core of the IR (`ops`): the backends know them op by op. An instruction brings what
the backends have to know of it: its checks, what it computes (for the simulator, in NumPy), and how it is written for
each vendor's compiler. A backend asks the op, and lists instructions nowhere.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.dtypes import DType
from tilewright.errors import InternalError
from tilewright.ir.core import Op, TensorMap, Type, Value
from tilewright.ir.facts import Facts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilewright.backends.cpp.expression import Expression
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.agents import Pause
    from tilewright.backends.sim.compiler import Compiler, Step
    from tilewright.backends.sim.values import Frame

# Values with the type of what is in them: a register may hold several narrow numbers.
TypedValues = list[tuple[Value, DType]]


@dataclass(frozen=True)
class Meeting:
    """What an instruction does at a barrier that some threads of a block meet at.

    `barrier` is the memory of the barriers, or the number of one of the block's, None where that is not known; `called`
    what messages call it. A phase takes so many arrivals (None: another op says), of which each thread brings so many;
    it waits for the end of a first phase or not, and announces bytes or not. Where not all of that is known, `is_known`
    is false.
    """

    barrier: Hashable
    called: str
    takes: int | None = None
    brings: int = 0
    waits: bool = False
    announces: bool = False
    is_known: bool = True


class Instruction(Op, ABC):
    """An op with its own meaning and text.

    - `CALLED`: what messages call it; None: by the name of its class.
    - `COUNTED`: the class in which the profile counts it, such as "ldmatrix"; None for what costs nothing.
    - `RESERVED`: the names that its C++ defines, as a regular expression; no variable is called so.
    - `ON_AMD`: what AMD's GPUs lack, and what to do instead; None where `hip` writes it.
    - `STANDS_IN_EXPRESSIONS`: its result may be printed where it is used, as a load's is.
    """

    CALLED: ClassVar[str | None] = None
    COUNTED: ClassVar[str | None]
    RESERVED: ClassVar[str] = ""
    ON_AMD: ClassVar[tuple[str, str] | None] = None
    STANDS_IN_EXPRESSIONS: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not inspect.isabstract(cls):
            assert hasattr(cls, "COUNTED"), f"{cls.__name__} does not say how a profile counts it (COUNTED)"

    @abstractmethod
    def simulate(self, compiler: Compiler) -> Step:
        """Return the step that does in NumPy, for all threads of a frame, what the instruction does."""

    @abstractmethod
    def cuda(self, printer: Printer) -> Expression | None:
        """Return the expression of the result in CUDA C++, or print statements and return None."""

    def hip(self, printer: Printer) -> Expression | None:
        """Return or print HIP C++ likewise; refused where `ON_AMD` says what is missing."""
        if self.ON_AMD is None:
            raise InternalError(f"{type(self).__name__} says nothing of AMD's GPUs: neither `hip` nor `ON_AMD`")
        what, help = self.ON_AMD
        raise printer.refuse(self, f"{printer.arch} has no {what}", help)

    def pause(self, compiler: Compiler, live: Sequence[int]) -> Pause:
        """Return where a thread that waits for others stops (`Effects.waits`); `live` are slots that are read later."""
        raise InternalError(f"{type(self).__name__} waits for other threads and does not say how")

    def fold(self, operands: Sequence[float | None], type: Type) -> int | None:
        """Return the integer of a type that a pure instruction gives for operands that may be known; None: it is not.

        It has no results yet.
        """
        return None

    def facts(self) -> Facts | None:
        """Return what is known of the integer that a pure instruction gives; None: its type's range."""
        return None

    def meeting(self) -> Meeting | None:
        """Return what is done at a barrier of some threads, None where there is none."""
        return None

    def fetched_map(self) -> TensorMap | None:
        """Return the tensor map that the kernel itself fetches here, None where it fetches none."""
        return None

    def floats(self) -> tuple[TypedValues, TypedValues] | None:
        """Return operands and results that hold floats, for the check of finite values; None: it computes none."""
        return None

    def work(self, warp: int) -> tuple[str, int, bool] | None:
        """Return the unit that does its arithmetic, how many operations, and whether those are a whole warp's."""
        return None


class ScalarInstruction(Instruction):
    """A pure instruction of one thread: its operands and its one result are scalars, and only these matter.

    `compute` is its meaning, element by element over NumPy's numbers and arrays, in the types of the operands and the
    result; it may ask for operands, and not for the result. Constant folding and the simulator both call it.
    """

    RESULTS: ClassVar[int | None] = 1
    STANDS_IN_EXPRESSIONS: ClassVar[bool] = True

    @abstractmethod
    def compute(self, *operands: NDArray[Any]) -> NDArray[Any]:
        """Return the results for operands of one shape, in the type of the result."""

    def simulate(self, compiler: Compiler) -> Step:
        """Compute all threads at once."""
        import numpy as np

        slots, result = compiler.slots(self.operands), compiler.slot(self.result)
        compute = self.compute

        def run(frame: Frame) -> None:
            values = frame.values
            with np.errstate(all="ignore"):
                values[result] = compute(*[values[slot] for slot in slots])[()]

        return run

    def fold(self, operands: Sequence[float | None], type: Type) -> int | None:
        """Compute what constant integers give."""
        import numpy as np

        known = [value for value in operands if value is not None]
        types = [type, *[value.type for value in self.operands]]
        if len(known) < len(operands) or not all(isinstance(each, DType) and not each.is_float for each in types):
            return None
        arrays = [np.array(value, value_of.dtype.numpy) for value, value_of in zip(known, self.operands, strict=True)]
        with np.errstate(all="ignore"):
            return int(self.compute(*arrays))
