"""From a rewritten function and the types of its arguments to a kernel's IR, and the checks of the whole kernel.

While a kernel is traced, a type makes a device number of a number: tw.int8(300).
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Mapping
from typing import Any

from tilewright.arch import Arch, missing_float8
from tilewright.dtypes import FLOAT8, OPERANDS, DType, bool_, float32, set_device_number, tfloat32
from tilewright.errors import LanguageError, TilewrightError
from tilewright.ir.core import Block, Kernel, Op, Value
from tilewright.ir.evaluate import reduce_to
from tilewright.ir.ops import Atomic, AtRank, Cast, CastPair, Constant, Inside, Load, Store, constant
from tilewright.ir.thread_sets import ThreadSets
from tilewright.source import SourceLocation
from tilewright.tensors import Tensor
from tilewright.trace.aliases import refuse_changed_copies
from tilewright.trace.arrivals import refuse_endless_waits
from tilewright.trace.heap import memory
from tilewright.trace.literals import is_numpy_number
from tilewright.trace.parameters import ArgumentType, definition_of, stand_ins
from tilewright.trace.scalar import Scalar, as_scalar, convert
from tilewright.trace.threads import refuse_wrong_slices
from tilewright.trace.tracer import Tracer, locate_error, run, tracing
from tilewright.trace.uniformity import refuse_divergent_barriers

# What an error of Python says that comes from using a stand-in as if it were a number, an array or a list.
_STAND_INS = ("Scalar", "Tensor", "BufferEngine", "DeviceRange", "Index3")


def trace(
    function: types.FunctionType,
    arguments: Mapping[str, ArgumentType],
    *,
    arch: Arch,
    block: tuple[int, int, int] | None,
    bounds: bool = False,
    fastmath: bool = False,
    cluster: tuple[int, int, int] = (1, 1, 1),
) -> Kernel:
    """Run a rewritten kernel function once on stand-ins and return the IR that it built.

    With `bounds` the coordinates of single elements are checked against the extents of their tensors, by the simulator.
    With `fastmath` functions of float32 are approximate. `cluster` is how many blocks form a cluster.

    Errors of the package, and Python errors that the user's code raises, get the user's line. Raises `LanguageError`
    for what has no meaning on a device.
    """
    tracer = Tracer(function.__name__, arch, block)
    tracer.bounds, tracer.fastmath, tracer.cluster_shape = bounds, fastmath, cluster
    memory(tracer).note_closure(function)
    memory(tracer).note_kernel(function)
    tracer.arguments = tuple(arguments.values())
    result = _run(tracer, function, stand_ins(tracer, arguments))
    if result is not None:
        raise LanguageError(
            f"kernel {function.__name__!r} returns a value",
            location=definition_of(function),
            help="store results in a tensor that is an argument",
        )
    kernel = Kernel(
        name=function.__name__,
        parameters=tuple(tracer.parameters),
        body=tracer.body,
        block=block,
        requirements=tuple(tracer.requirements.values()),
        grid_limits=tuple(tracer.grid_limits.values()),
        location=definition_of(function),
        copies_to_shared=tracer.copies_to_shared,
        remarks=tuple(tracer.remarks),
        launch_sized=tuple(tracer.launch_sized),
        tensor_maps=tuple(tracer.tensor_maps.values()),
        warp_size=arch.warp_size,
        cluster=cluster,
    )
    refuse_changed_copies(tracer)
    refuse_wrong_slices(tracer)
    refuse_missing_arithmetic(kernel, arch)
    refuse_escapes(kernel)
    refuse_remote_operands(kernel)
    sets = ThreadSets(kernel)
    refuse_divergent_barriers(kernel, sets)
    kernel.untaken_roles = refuse_endless_waits(kernel, sets)
    return kernel


def _run(tracer: Tracer, function: types.FunctionType, values: Mapping[str, Any]) -> Any:
    """Call the function; what it raises gets the user's line."""
    named = {n for n, p in inspect.signature(function).parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    positional = [value for name, value in values.items() if name not in named]
    try:
        return run(tracer, function, positional, {name: values[name] for name in named})
    except TilewrightError as error:
        raise error.at(locate_error(error)) from error.__cause__
    except RecursionError as error:
        place = locate_error(error)
        while place is not None and place.inlined_at is not None:  # where the calls begin, which are hundreds
            place = place.inlined_at
        raise LanguageError(
            f"kernel {function.__name__!r} nests calls too deeply to be traced",
            location=place,
            help="a recursion must end for values that are known while tracing; no device value can end it",
        ) from None
    except Exception as error:
        place = locate_error(error)
        if isinstance(error, (TypeError, AttributeError)) and any(name in str(error) for name in _STAND_INS):
            raise _misused(error, place) from None
        if isinstance(error, IndexError) and str(error).startswith("only integers, slices"):  # NumPy's
            raise LanguageError(
                f"a NumPy array is indexed by what is not an integer known while tracing: {error}",
                location=place,
                help="pass the array to the kernel, where a device value may index it; "
                "or loop with tw.static_range, whose index is a Python int",
            ) from None
        _annotate(error, tracer.name, place)
        raise


def _misused(error: TypeError | AttributeError, place: SourceLocation | None) -> LanguageError:
    """Return the error for a stand-in that is used as what it is not."""
    text = str(error)
    # Not methods of Scalar: NumPy takes what has __getitem__ for a sequence.
    if "'Scalar' object is not subscriptable" in text:
        summary, used = "a number is indexed like an array", "x[...]"
    elif "'Scalar' has no len()" in text:
        summary, used = "a number has no length", "len(x)"
    elif "'Scalar'" in text and isinstance(error, AttributeError) and hasattr(Tensor, error.name or ""):
        summary, used = f"a number has no {error.name!r}, which arrays have", f"x.{error.name}"
    elif "'Index3'" in text:
        return LanguageError(
            f"three indices are used as one number: {text}",
            location=place,
            help="write tw.thread_idx.x, or .y or .z, and so of tw.block_idx, tw.block_dim and tw.grid_dim",
        )
    else:
        return LanguageError(
            f"{type(error).__name__}: {text}",
            location=place,
            help="device values take Python's operators and the functions of tilewright (tw.sqrt, tw.where, ...); "
            "NumPy and math work on numbers that are known while tracing",
        )
    help = f"pass an array where the kernel has {used}; a number is used as it is"
    return LanguageError(summary, location=place, help=help)


def _annotate(error: Exception, kernel: str, place: SourceLocation | None) -> None:
    """Tell an error of the user's own code where in the kernel it was raised; its type stays what it is."""
    lines = [f"while kernel {kernel!r} was traced", *([] if place is None else place.excerpt())]
    text = "\n  ".join(lines)
    if hasattr(error, "add_note"):
        error.add_note("  " + text)
    elif len(error.args) == 1 and isinstance(error.args[0], str):  # Python 3.10 has no notes
        error.args = (f"{error.args[0]}\n  {text}",)


def refuse_remote_operands(kernel: Kernel) -> None:
    """Raise `LanguageError` where an op other than a load, store or atomic one reaches memory of another block."""
    for op in kernel.body.walk():
        plain = isinstance(op, (Load, Store, Atomic, AtRank, Inside)) or op.effects.scope is not None
        plain = plain or op.effects.reaches_blocks
        for buffer in () if plain else op.buffers:
            if buffer.is_remote:
                raise LanguageError(
                    f"{buffer.root.name or 'shared memory'} of another block of the cluster is reached by loads, "
                    f"stores and atomic operations, not by {type(op).__name__}",
                    location=op.location,
                    help="copy it to registers or to shared memory of this block first, element by element; "
                    "tw.atoms.SM90_BULK_COPY_S2S copies to it",
                )


# --- values that left the loop or branch in which they were computed -----------------------------------

# Loops and branches carry variables. The tracer does not see what a list, an attribute or a closure is given inside of
# them, and outside the value does not exist: the loop has run many times by then, or not at all.


def refuse_escapes(kernel: Kernel) -> None:
    """Raise `LanguageError` at the first use of a value that is not visible there."""
    _block(kernel.body, {p.target for p in kernel.parameters if isinstance(p.target, Value)})


def _block(block: Block, visible: set[Value]) -> None:
    own = set(block.arguments) - visible
    visible |= own
    for op in block.ops:
        for value in op.operands:
            if value not in visible and not isinstance(value.definition, Constant):
                raise _escape(op, value)
        for inner in op.blocks:
            _block(inner, visible)
        own.update(op.results)
        visible.update(op.results)
    visible -= own


def _escape(op: Op, value: Value) -> LanguageError:
    name = f"the value {value.name!r}" if value.name else "a value"
    source = value.definition.location if value.definition is not None else None
    return LanguageError(
        f"{name} is used outside of the loop or branch that computes it",
        details=[] if source is None else [f"it is computed at {source}"],
        location=op.location,
        help="keep it in a variable, tw.registers or a tensor; a list or an attribute that is changed inside a loop "
        "or branch of the device does not carry it (tw.static_range loops while tracing)",
    )


# --- arithmetic that the target lacks ------------------------------------------------------------------


def refuse_missing_arithmetic(kernel: Kernel, arch: Arch) -> None:
    """Raise `LanguageError` at a conversion from or to an 8-bit float that the target has no instruction for.

    Arithmetic on them converts to float32 and back, so no other op can need it.
    """
    for op in kernel.body.walk():
        if not isinstance(op, (Cast, CastPair)):
            continue
        for dtype in (op.x.dtype, op.result.dtype):
            if dtype in FLOAT8 and dtype.name not in arch.float8:
                message, advice = missing_float8(dtype.name, arch)
                details = [f"{op.x.dtype} to {op.result.dtype}"]
                raise LanguageError(message, details=details, location=op.location, help=advice)


def typed_number(x: object, target: DType) -> Scalar | None:
    """Return the device number that a type makes of a Python or NumPy number inside a kernel, None outside of one.

    The number is converted as `Cast` converts: integers wrap; a float becomes an integer by truncation, saturating.
    """
    if tracing() is None or (target in OPERANDS and target is not tfloat32):
        return None
    if is_numpy_number(x):
        x = x.item()  # type: ignore[attr-defined]
    if not isinstance(x, (int, float)):
        return None
    if target is tfloat32:
        return convert(as_scalar(float(x), float32), target)
    if target is bool_:
        return Scalar(constant(x != 0, bool_))
    if target.is_float:
        return as_scalar(x if isinstance(x, float) else int(x), target)
    if isinstance(x, float):
        whole = 0 if math.isnan(x) else x
        return Scalar(constant(int(min(max(whole, target.lowest), target.highest)), target))
    return Scalar(constant(reduce_to(int(x), target), target))


set_device_number(typed_number)
