"""What a family of matmul kernels answers: candidates, needs, predicted time, launch.

A family is one way of computing a problem, and one subclass of `Family` in a file of its own; `choice.FAMILIES` lists
them. The base class derives from the answers what is the same for all: which operands are packed first, and what that
adds to the predicted time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeVar, cast  # Any: a family's plan is whatever its kernel is made for

from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.dtypes import DType
from tilewright.kernels.functions import ElementFunction
from tilewright.kernels.model import Machine, Prediction, packing_us
from tilewright.kernels.problem import Configuration, Major, Operand, Problem
from tilewright.launch import Kernel
from tilewright.pickling import changed
from tilewright.trace.host_numbers import NumberUse

P = TypeVar("P")


@dataclass(frozen=True)
class LayoutNeeds:
    """The layouts of a matrix that a kernel takes: its contiguous mode, and the least alignment in bytes.

    >>> import tilewright as tw
    >>> needs = LayoutNeeds(majors=("K",), alignment=4)
    >>> needs.unmet(Operand(tw.int8, "K", 16)), needs.unmet(Operand(tw.int8, "K", 2))
    (None, 'it is aligned to 2 bytes, and 4 are needed')
    """

    majors: tuple[Major, ...] = ("K", "MN", "none")
    alignment: int = 1

    def unmet(self, operand: Operand) -> str | None:
        """Return why a matrix cannot be taken as it lies, or None."""
        if operand.major not in self.majors:
            major = {"K": "along K", "MN": "along M or N", "none": "along neither mode"}
            return (
                f"it is contiguous {major[operand.major]}, and {' or '.join(major[m] for m in self.majors)} is needed"
            )
        if operand.alignment < self.alignment:
            return f"it is aligned to {operand.alignment} bytes, and {self.alignment} are needed"
        return None


@dataclass(frozen=True)
class Needs:
    """What a kernel needs of the layouts of A, B and D.

    A and B are packed where they do not meet it; for a D that does not the kernel is rejected. C, bias and the arrays
    of an epilogue are read as they lie, whatever the family.
    """

    a: LayoutNeeds = LayoutNeeds()
    b: LayoutNeeds = LayoutNeeds()
    d: LayoutNeeds = LayoutNeeds()


@dataclass(frozen=True)
class Resources:
    """What a configuration takes of a multiprocessor, and why it cannot run (None: it can)."""

    shared_bytes: int
    accumulators: int  # registers of each thread for its accumulators
    rejection: str | None = None


LATER = Resources(0, 0)  # are looked at when they count


@dataclass(frozen=True)
class Candidate:
    """A family's configuration for a problem: what it takes, and either a prediction or a reason why it cannot run.

    `problem` is the problem as the kernel reads it: operands that are `packed` first lie there as they do then. With
    resources to be looked at `LATER` there is a prediction, and may be a reason too.
    """

    family: Family
    problem: Problem
    packed: tuple[bool, bool]  # A and B
    configuration: Configuration
    resources: Resources
    prediction: Prediction | None = None

    @property
    def rejection(self) -> str | None:
        return self.resources.rejection

    def looked_at(self, arch: Arch) -> Candidate:
        """Return the candidate with its resources."""
        if self.resources is not LATER:
            return self
        found = self.family.resources(self.problem, self.configuration, arch)
        return changed(self, resources=found, prediction=None if found.rejection else self.prediction)


class Workspace(NamedTuple):
    """Memory that a launch needs for itself, as the rank-3 tensor that it sees.

    The last mode is the slowest, and the second has stride 1.
    """

    dtype: DType
    shape: tuple[int, int, int]
    strides: tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class KernelLaunch:
    """How a candidate is launched: `launch(D, A, B, alpha, beta, plan, *operands, *numbers)`.

    The matrices are rank-3 views, A and B packed where the candidate says so, and `operands` those of C, bias and the
    epilogue's arrays that the problem has. `numbers` says which of the numbers that the epilogue captures are passed.
    `plan` is what the kernel is compiled for. `repeat` is that of `Launcher`, where `launch` is one. With a
    `workspace`, a view of such memory comes before D.
    """

    launch: Callable[..., None]
    plan: Any
    numbers: tuple[NumberUse, ...] = ()
    repeat: Callable[[tuple[Any, ...]], Callable[[tuple[Any, ...]], bool] | None] = lambda arguments: None
    workspace: Workspace | None = None


class Family(ABC):
    """One way of computing matrix products, which answers for itself.

    A family defines `configurations`, `needs`, `resources`, `predict` and `launch`.
    """

    name: ClassVar[str]
    takes_weights: ClassVar[bool] = False  # packed weights in B's place, and only these
    is_simulated: ClassVar[bool] = True  # whether calls that run in the simulator may take it
    takes_parts: ClassVar[bool] = False  # whether the kernel multiplies float32 in parts where the problem asks for it

    takes_further: ClassVar[bool] = False  # whether the kernel has results beside D where the problem asks for them
    follows_packing: ClassVar[bool] = False  # whether its launch begins beside that of a packing
    takes_pairs: ClassVar[bool] = False  # whether the epilogue may take the accumulators of pairs of columns
    predicts_alone: ClassVar[bool] = False  # whether a prediction does without the resources

    def begins_early(self, configuration: Configuration) -> bool:
        """Say whether a launch begins while the packing of its operands ends."""
        return False

    @abstractmethod
    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        """Return the configurations to consider for a problem, legal or not; none where the family is not for it."""

    @abstractmethod
    def needs(self, problem: Problem) -> Needs:
        """Return what the kernel needs of the layouts of A, B and D."""

    @abstractmethod
    def resources(self, problem: Problem, configuration: Configuration, arch: Arch) -> Resources:
        """Return what a configuration takes, with a reason of one line if it cannot run."""

    @abstractmethod
    def predict(
        self, problem: Problem, configuration: Configuration, resources: Resources, machine: Machine
    ) -> Prediction:
        """Return what a configuration that can run is expected to take, without the packing that `needs` asks for.

        This holds for every legal configuration, measured or not.
        """

    @abstractmethod
    def launch(self, problem: Problem, configuration: Configuration, arch: Arch) -> KernelLaunch:
        """Plan the kernel for a problem whose `batch` is that of one launch.

        Raises `NeedsConstant` where the epilogue's function needs the value of a number that it captures.
        """

    def fitted(self, problem: Problem, machine: Machine) -> Sequence[Configuration]:
        """Return configurations that are made for a problem on a GPU, beside those that its target has."""
        return ()

    def candidates(self, problem: Problem, machine: Machine, *, lazily: bool = False) -> list[Candidate]:
        """Return every configuration for a problem: those that can run with a prediction, the others with a reason.

        Resources are looked at `LATER` where that is `lazily` done, and the family predicts alone.
        """
        if (problem.parts is not None and not self.takes_parts) or (problem.further and not self.takes_further):
            return []
        if problem.is_gated and not self.takes_pairs:
            return []
        needs = self.needs(problem)
        packed = _unmet(problem, problem.a, needs.a), _unmet(problem, problem.b, needs.b)
        read = problem
        if any(packed):
            a, b = (
                packed_operand(x) if is_packed else x for x, is_packed in zip((read.a, read.b), packed, strict=True)
            )
            read = replace(problem, a=a, b=b)
        sides = zip(packed, (problem.a, problem.b), (problem.m, problem.columns), strict=True)
        bytes = sum(rows * problem.k * problem.batch * x.dtype.bytes for is_packed, x, rows in sides if is_packed)
        before = packing_us(bytes, machine, self.follows_packing)
        misplaced = needs.d.unmet(problem.d)
        found = []
        for configuration in dict.fromkeys((*self.configurations(read, machine.arch), *self.fitted(read, machine))):
            if problem.further and configuration.splits > 1:  # no block has whole sums
                continue
            is_later = lazily and self.predicts_alone and not misplaced
            resources = LATER if is_later else self.resources(read, configuration, machine.arch)
            if misplaced and not resources.rejection:
                resources = replace(resources, rejection=f"D cannot be written: {misplaced}")
            prediction = None
            if not resources.rejection:
                prediction = self.predict(read, configuration, resources, machine)
                if before:
                    prediction = replace(prediction, packing_us=prediction.packing_us + before)
            found.append(Candidate(self, read, packed, configuration, resources, prediction))
        return found


def with_numbers(plan: P, problem: Problem, arch: Arch) -> P:
    """Return a plan whose epilogue says which of the numbers that its function captures are passed."""
    function, found = problem.epilogue, cast("Any", plan)
    if not isinstance(function, ElementFunction):
        return plan
    numbers = function.uses(problem.accumulator, problem.elements, arch)
    return cast("P", replace(found, epilogue=replace(found.epilogue, numbers=numbers)))


def launch_of(
    problem: Problem, plan: Any, blocks: int, kernel_of: Callable[[int], Kernel], arrays: int = 0
) -> KernelLaunch:
    """Return the launch of a plan's `blocks` by the kernel that takes so many arrays and numbers further.

    They are `arrays`, the operands of the problem, and the numbers of the epilogue.
    """
    kernel = kernel_of(arrays + len(problem.operands) + len(plan.epilogue.numbers))
    launcher = kernel[blocks, plan.threads]
    return KernelLaunch(launcher, plan, plan.epilogue.numbers, launcher.repeat)


def _unmet(problem: Problem, operand: Operand, needs: LayoutNeeds) -> bool:
    """Say whether an operand is read, as beside packed weights always, and has to be packed for that."""
    return (problem.k > 0 or problem.weights is not None) and needs.unmet(operand) is not None


def packed_operand(operand: Operand) -> Operand:
    """Return how an operand lies after it was packed."""
    return Operand(operand.dtype, "K", VECTOR_BYTES)
