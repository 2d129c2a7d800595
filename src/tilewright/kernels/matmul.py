"""`tw.matmul`: the function that users call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from numbers import Real
from typing import Any  # Any: arrays of any library

from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ArgumentError
from tilewright.frames import hide_frames, hiding_frames
from tilewright.kernels.arguments import (
    NAMES,
    OUT,
    ArrangedProblem,
    C,
    Inputs,
    Options,
    arrange_problem,
    further_infos,
)
from tilewright.kernels.choice import Explanation, all_candidates, fastest
from tilewright.kernels.dispatch import CallPlan, machine_of, plan_call
from tilewright.kernels.functions import Captured, captured
from tilewright.kernels.further import Asked, asked, write_nothing
from tilewright.kernels.model import Machine
from tilewright.kernels.pairs import Gated
from tilewright.kernels.quantized import Quantized
from tilewright.kernels.results import handed_over, maker_for
from tilewright.kernels.weight_arguments import arrange_weights
from tilewright.kernels.weights import WeightFormat
from tilewright.kernels.winners import winner_among
from tilewright.pickling import Refused
from tilewright.recording import prepare_launches
from tilewright.runtime.arrays import ArrayInfo, ArraySpec, Static, adapter_for, describe
from tilewright.runtime.plan import NOT_ASKED, Signature
from tilewright.runtime.replays import quicken
from tilewright.trace.host_numbers import NeedsConstant

_CONSTANTS = ("precision", "out_dtype", "reads_c", "function", "weights")
MAX_PLANS = 512  # kinds of calls that are kept at least, those used last; twice as many at most


class Matmul:
    """Multiply matrices: epilogue(alpha * (a @ b) + beta * c + bias), rounded once to `out_dtype`.

    Call it as `tw.matmul(a, b)`; `tw.matmul.explain(a, b)` says how that would be computed. See `__call__`.
    """

    __name__ = "matmul"

    def __call__(
        self,
        a: Any,
        b: Any,
        *,
        out: Any = None,
        alpha: Any = 1,
        beta: Any = 0,
        c: Any = None,
        bias: Any = None,
        epilogue: Callable[..., Any] | None = None,
        out_dtype: Any = None,
        precision: str | None = None,
        scale_a: Any = None,
        scale_b: Any = None,
        also: Any = (),
    ) -> Any:
        """Return epilogue(alpha * scale_a * scale_b * (a @ b) + beta * c + bias), rounded once to `out_dtype`.

        >>> import numpy as np, tilewright as tw
        >>> a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)
        >>> tw.matmul(a, b, bias=np.array([0, 0, 10, -20], np.float32), epilogue=lambda acc: tw.maximum(acc, 0))
        array([[ 3.,  3., 13.,  0.],
               [12., 12., 22.,  0.]], dtype=float32)

        **Shapes** are those of NumPy's matmul: `a` (..., M, K) and `b` (..., K, N) with batch modes that broadcast, or
        vectors of K; extents may be 0 (K = 0 gives epilogue(beta * c + bias)). Strides are arbitrary: transposed,
        sliced, padded and broadcast arrays are read in place. If the layout of 8- or 16-bit elements prevents vector
        loads (rows of odd length, say), they are first copied into packed memory. `c`, `bias` and the arrays of the
        epilogue broadcast to the result.

        **Arrays** are those of torch, CuPy, NumPy and any other that a kernel takes, all on one device. The result is
        an array of the library of `a`, and the kernel runs on that library's current stream; NumPy arrays and tensors
        on the CPU run in the simulator.

        **Element types**: both float16, bfloat16, float32, float64, or any two of int8 and uint8, or of float8_e4m3fn
        and float8_e5m2. Accumulators are float32; for float64 float64; for integers int32, modulo 2**32. `out_dtype`
        is the type of `a`, int32 for integers, and bfloat16 for float8. `c` and `bias` are converted to the type of the
        accumulators.

        **precision** says how float32 is multiplied. "ieee", the default: by fused multiply-adds in float32. The others
        use tensor cores, from sm_80 on: "tf32" takes the 10 upper bits of the fractions and drops the others. "tf32x3",
        "bf16x6" and "bf16x9" split numbers into parts, and add the products of parts from the smallest on: x = x0 + x1
        of tfloat32 gives x0 y0 + x0 y1 + x1 y0; x = x0 + x1 + x2 of bfloat16 gives the six largest products, or all
        nine. Tensor cores compute sums over 16 to 64 of k, which are added in float32. With u = 2**-24 and S the sum of
        |a b| over k, the error is at most (K/16 + 96) u S for "tf32x3" and (K/16 + 154) u S for "bf16x6" and "bf16x9",
        and at most K u S for "ieee"; numbers below 2**-113 lose their last bits. Results that are not finite are
        computed again as by "ieee". For 8-bit floats, tensor cores sum each 128 of K, keeping some 14 bits on sm_90a,
        and these sums are added in float32; with "fp8_fast" tensor cores sum all of K. "rounded" lets packed weights
        be rounded to the type of `a`.

        >>> a, b = np.full((8, 8), 1 + 2.0**-13, np.float32), np.eye(8, dtype=np.float32)
        >>> [bool((tw.matmul(a, b, precision=p) == a).all()) for p in ("ieee", "tf32", "tf32x3", "bf16x9")]
        [True, False, True, True]

        **beta** = 0 does not read `c`; another beta without `c` adds beta * out, as BLAS does. `out` may be `c`, `bias`
        or an array of the epilogue itself; otherwise it must not share memory with an input.

        **scale_a**, **scale_b** are factors of `a` and `b`, such as their scales of quantisation: numbers, or float32
        arrays of any strides with one element, or (M, 1) for the rows of `a` and (1, N) or (N,) for the columns of `b`,
        with modes of the batch before. They multiply the float32 accumulators, before `c` and `bias` are added. Scales
        of blocks of 128 elements of K, of each row or of 128 rows, multiply the sums of their blocks: (M, K/128) or
        (M/128, K/128) for `a` and (K/128, N) or (K/128, N/128) for `b`, rounded up.

        >>> x = np.eye(2, 3).astype(tw.float8_e4m3fn.numpy)
        >>> rows, columns = np.array([[1], [10]], np.float32), np.array([[2, 4]], np.float32)
        >>> tw.matmul(x, x.T, scale_a=rows, scale_b=columns, out_dtype=tw.float32)
        array([[ 2.,  0.],
               [ 0., 40.]], dtype=float32)

        **epilogue** is compiled into the kernel. It is called with the accumulator, after alpha, beta and bias, and
        returns the result. An array that it captures (from enclosing variables, parameter defaults or
        functools.partial) is its element at the accumulator's position. Python and NumPy numbers that it captures are
        passed to the kernel, so that a new value compiles nothing; they behave like literals. Only if the function
        needs a value while it is traced (in `if`, as an exponent, for math.sqrt, in a function of another package) does
        each value compile its own kernel. Python calls it as `epilogue(accumulator)`, so functools.partial(f, scale=y)
        calls f(accumulator, scale=element). `if` and loops on device values need a function made with def, as
        `tw.function` does. `tw.dropout(p, seed)` is an epilogue, and may be called in one. `tw.gated(f, pairs)` is one
        that takes the accumulators of two columns of `b`: the result has half as many.

        **also** requests more results, which follow this one in a tuple: a list of element types, for results of the
        same shape, and of pairs of an operation ("sum", "max", "min", "amax") and an axis (-1, -2), for reductions of
        values before they are rounded. The epilogue returns a value for each, or one for all. ("scale", -1) divides
        each 128 values of a row of an 8-bit float result by a scale, and returns these scales in the form that
        `scale_a` takes.

        >>> y, sums = tw.matmul(a, b, also=[("sum", -2)])
        >>> bool((sums == y.sum(-2)).all())
        True

        Raises `ArgumentError` for arguments that do not fit together, before anything is written; for tensors that
        require a gradient, unless in torch.no_grad(), because it would be lost (see `tw.torch.matmul`); and where the
        GPU has no kernel for the element types.
        """
        try:  # not hiding_frames: a call more at every product
            if a is None or b is None:
                _check_array("a" if a is None else "b", None)
            found = None if epilogue is None else captured(epilogue)
            if type(alpha) not in (int, float):
                _check_number("alpha", alpha)
            if type(beta) not in (int, float):
                _check_number("beta", beta)
            if beta != 0 and c is None:
                c = _addend(out, beta, epilogue)
            if out_dtype is not None:
                out_dtype = _element_type(out_dtype)
            weights = None
            scales: tuple[Any, ...] = ()
            if type(b) is Quantized:
                a, b, scales, weights = b.take_columns(a), b.packed, b.parts, b.format
            arrays = (a, b, out, c, bias) if found is None else (a, b, out, c, bias, *found.arrays)
            if weights is not None:
                arrays = (*arrays, *scales)
            scaled: tuple[str, ...] = ()
            if scale_a is not None or scale_b is not None:
                alpha, scaled, factors = _scales(alpha, scale_a, scale_b, weights)
                arrays = (*arrays, *factors)
            further = asked(also) if type(also) is not tuple or also else ()
            if further:
                return _compute_also(further, arrays, found, alpha, beta, out_dtype, precision, weights, scaled)
            return _compute(arrays, found, alpha, beta, out_dtype, precision, weights, scaled)
        except Exception as error:
            hide_frames(error)
            raise

    @hiding_frames
    def explain(
        self,
        a: Any,
        b: Any,
        *,
        out: Any = None,
        alpha: Any = 1,
        beta: Any = 0,
        c: Any = None,
        bias: Any = None,
        epilogue: Callable[..., Any] | None = None,
        out_dtype: Any = None,
        precision: str | None = None,
        scale_a: Any = None,
        scale_b: Any = None,
        also: Any = (),
        arch: Arch | str | None = None,
    ) -> Explanation:
        """Return how a call with these arguments would be computed: the problem, all candidates, and the choice.

        Nothing runs, and `tw.spec(dtype, shape)` may replace an array. `arch` is a target other than the arrays'
        device. The result prints as a table, and `.to_dict()` and `.to_json()` give it to programs.

        >>> import tilewright as tw
        >>> matrix = tw.spec(tw.bfloat16, (4096, 4096))
        >>> found = tw.matmul.explain(matrix, matrix)
        >>> found.choice.configuration.tile
        (128, 128, 64)

        Raises `ArgumentError` as the call would.
        """
        for name, given in (("a", a), ("b", b)):
            if given is None:
                _check_array(name, given)
        function = None if epilogue is None else captured(epilogue)
        _check_number("alpha", alpha)
        _check_number("beta", beta)
        if beta != 0 and c is None:
            c = _addend(out, beta, epilogue)
        weights = b.format if isinstance(b, Quantized) else None
        arrays = (a, b, out, c, bias, *(function.arrays if function else ()))
        if isinstance(b, Quantized):
            arrays = (a, b.packed, *arrays[OUT:], *b.parts)
        alpha, scaled, factors = _scales(alpha, scale_a, scale_b, weights)
        arrays = (*arrays, *factors)
        names = _names(function, weights, scaled)
        infos = tuple(None if x is None else _describe(name, x) for name, x in zip(names, arrays, strict=True))
        asked_type = None if out_dtype is None else _element_type(out_dtype)
        further = asked(also)
        _check_also(further, weights)
        infos += further_infos(further, infos, asked_type, precision, function.function if function else None)
        names += tuple(one.name(place) for place, one in enumerate(further))
        options = Options(
            precision, asked_type, beta != 0, function.function if function else None, len(scaled), further
        )
        arranged = _arrange(Inputs(infos, names), options, weights)
        problem, arrangement = arranged.problem, arranged.arrangement
        machine = machine_of(arranged.inputs.of(OUT).device) if arch is None else Machine.of(_arch(arch))
        if arrangement is None:
            return Explanation(problem, machine, 0, False, (), None)
        found = all_candidates(problem, machine)
        won = winner_among(found, problem, arranged.inputs.of(OUT).device) if arch is None else None
        choice = won or fastest(problem, machine, found)
        launches, is_swapped = len(arrangement.offsets), arrangement.is_swapped
        return Explanation(problem, machine, launches, is_swapped, tuple(found), choice, won is not None)

    @hiding_frames
    def prepare(
        self,
        a: Any,
        b: Any,
        *,
        out: Any = None,
        alpha: Any = 1,
        beta: Any = 0,
        c: Any = None,
        bias: Any = None,
        epilogue: Callable[..., Any] | None = None,
        out_dtype: Any = None,
        precision: str | None = None,
        scale_a: Any = None,
        scale_b: Any = None,
        also: Any = (),
    ) -> PreparedMatmul:
        """Return this product as a prepared launch: a call computes it at little more than the driver's cost.

        The arguments are those of the call; they are checked and the kernel is compiled now, and nothing is computed.
        Each call of the result reads the current contents of the arrays, writes `out`, which is allocated once if not
        given, and returns it. Pointers, numbers and the library's current stream are fixed now; the arrays are kept
        alive. Temporary memory is allocated once too, so two calls must not run at the same time on two streams.

        >>> import numpy as np, tilewright as tw
        >>> a, b = np.eye(2, dtype=np.float32), np.array([[1, 2], [3, 4]], np.float32)
        >>> product = tw.matmul.prepare(a, b, alpha=2)
        >>> b[0, 0] = 10
        >>> product()
        array([[20.,  4.],
               [ 6.,  8.]], dtype=float32)

        Raises `ArgumentError` as the call would.
        """
        adapter = adapter_for(a)
        if adapter is not None and adapter.library == "jax" and out is None:
            raise ArgumentError(
                "a prepared product writes its result anew at each call, and arrays of JAX never change",
                help="call tw.matmul, or give an array of another library: out=",
            )
        if isinstance(b, Quantized) and b.order is not None:  # a copy of a, which no launch makes anew
            raise ArgumentError(
                "b is packed in the order of its g_idx, and a prepared product reads the columns of a as they are",
                help="pass a[..., b.order] as a, and dataclasses.replace(b, order=None) as b",
            )
        with prepare_launches() as launches:
            result = self(
                a, b, out=out, alpha=alpha, beta=beta, c=c, bias=bias, epilogue=epilogue, out_dtype=out_dtype,
                precision=precision, scale_a=scale_a, scale_b=scale_b, also=also,
            )  # fmt: skip
        return PreparedMatmul(result, tuple(launches))

    def __repr__(self) -> str:
        return "<function tilewright.matmul>"


class PreparedMatmul(Refused):
    """A product with its arguments packed: a call computes it on the stream it was prepared for, and returns `out`."""

    _why_no_copy = (
        "it holds the addresses of the arrays that it was prepared for",
        "call tw.matmul.prepare where the arrays are",
    )
    __slots__ = ("_launches", "out")

    def __init__(self, out: Any, launches: tuple[Callable[[], None], ...]) -> None:
        self.out: Any = out
        self._launches = launches

    def __call__(self) -> Any:
        for launch in self._launches:
            launch()
        return self.out


def _compute(
    arrays: tuple[Any, ...],
    found: Captured | None,
    alpha: Any,
    beta: Any,
    out_dtype: DType | None,
    precision: str | None,
    weights: WeightFormat | None = None,
    scaled: tuple[str, ...] = (),
    further: tuple[Asked, ...] = (),
) -> Any:
    """Compute a call whose numbers and epilogue were looked at."""
    is_plain = found is None and weights is None and not scaled and not further
    names = NAMES if is_plain else _names(found, weights, scaled, further)
    function = None if found is None else found.function
    reads_c = bool(beta != 0)
    signature, arguments = _signature(names), (*arrays, precision, out_dtype, reads_c, function, weights)
    plan = signature.last
    reading = None if plan is None else plan.read(*arguments)
    if plan is None or reading is None:  # types that the last call did not have
        for name, array in zip(names, arrays, strict=True):
            if array is not None and type(array) not in _array_types:
                _check_array(name, array)
        plan, reading = signature.read(arguments)
    call, values, described = reading
    planned: CallPlan | None = call.kernel
    if planned is None:
        known = plan.describe(arguments)
        # Without owners: what is remembered of a call must not keep its arrays.
        infos = tuple(replace(x, owner=None) if isinstance(x, ArrayInfo) else None for x in known[: len(arrays)])
        arranged = _arrange(
            Inputs(infos, names), Options(precision, out_dtype, reads_c, function, len(scaled), further), weights
        )
        try:
            planned = plan_call(arranged, arrays, plan.starts)
        except NeedsConstant:
            assert found is not None
            return _compute(arrays, found.again(), alpha, beta, out_dtype, precision, weights, scaled, further)
        call.kernel = planned
    if plan.compiled is NOT_ASKED:
        quicken(plan, arguments)
    if planned.tensors:
        _refuse_gradients(names, arrays, planned.tensors)
    pointer = None
    if planned.make is not None:
        result, pointer = planned.make()
        arrays, out_dtype = (*arrays[:OUT], result, *arrays[C:]), None
        if pointer % VECTOR_BYTES:  # decided for one that is aligned
            return _compute(arrays, found, alpha, beta, out_dtype, precision, weights, scaled, further)
    if found is None:
        planned.run(arrays, values, described, alpha, beta, pointer)
        return arrays[OUT] if planned.hands_over is None else planned.hands_over(arrays[OUT])
    try:
        planned.run(arrays, values, described, alpha, beta, pointer, found.numbers)
    except NeedsConstant:  # the function did in the kernel what it did not do by itself; nothing is written yet
        return _compute(arrays, found.constant(), alpha, beta, out_dtype, precision, weights, scaled, further)
    return arrays[OUT] if planned.hands_over is None else planned.hands_over(arrays[OUT])


def _compute_also(
    further: tuple[Asked, ...],
    arrays: tuple[Any, ...],
    found: Captured | None,
    alpha: Any,
    beta: Any,
    out_dtype: DType | None,
    precision: str | None,
    weights: WeightFormat | None,
    scaled: tuple[str, ...],
) -> tuple[Any, ...]:
    """Compute a call with further results, which are made here."""
    _check_also(further, weights)
    infos = tuple(None if x is None else _describe(name, x) for name, x in zip(NAMES, arrays[: OUT + 1], strict=False))
    made_of = further_infos(further, infos, out_dtype, precision, None if found is None else found.function)
    adapter = adapter_for(arrays[0])
    assert adapter is not None
    made = tuple(maker_for(adapter.library, x.shape, x.dtype, x.device)()[0] for x in made_of)
    result = _compute((*arrays, *made), found, alpha, beta, out_dtype, precision, weights, scaled, further)
    if 0 in result.shape:
        for one, array, info in zip(further, made, made_of, strict=True):
            write_nothing(one, array, info.shape, info.dtype)
    return (result, *handed_over(made)) if adapter.library == "jax" else (result, *made)


def _check_also(further: tuple[Asked, ...], weights: WeightFormat | None) -> None:
    if further and weights is not None:
        raise ArgumentError(
            "also= asks for more results, and b is quantised weights", help="multiply by weights.dequantised()"
        )


@lru_cache(maxsize=256)
def _signature(names: tuple[str, ...]) -> Signature:
    return Signature((*names, *_CONSTANTS), _CONSTANTS, MAX_PLANS)


def forget_plans() -> None:
    """Plan each kind of call anew: what planned it may have changed."""
    _signature.cache_clear()


def _arrange(inputs: Inputs, options: Options, weights: WeightFormat | None) -> ArrangedProblem:
    if weights is None:
        return arrange_problem(inputs, options)
    if options.pairs is not None:
        raise ArgumentError(
            "the epilogue is tw.gated, and b is quantised weights", help="multiply by weights.dequantised()"
        )
    return arrange_weights(inputs, options, weights)


def _names(
    found: Captured | None,
    weights: WeightFormat | None = None,
    scaled: tuple[str, ...] = (),
    further: tuple[Asked, ...] = (),
) -> tuple[str, ...]:
    """Return what a call's arrays are called in errors."""
    if further:
        return (*_names(found, weights, scaled), *(one.name(place) for place, one in enumerate(further)))
    if scaled:
        return (*_names(found, weights), *scaled)
    if weights is not None:
        return (*_names(found), "the weights' scales", "the weights' zeros")[: None if weights.zero is None else -1]
    if found is None:
        return NAMES
    own: list[str] = []
    for name in found.names:
        label = f"the epilogue's {name}"
        own.append(label if label not in own else f"{label} ({len(own)})")
    return (*NAMES, *own)


# Types of arrays that calls had; others are looked at.
_array_types: set[type] = set()


def _check_array(name: str, array: object) -> None:
    if isinstance(array, Static):
        raise ArgumentError(f"{name} is a tw.static array, which is for kernels", help="pass the array itself")
    if adapter_for(array) is None:
        raise ArgumentError(
            f"{name} is {'None' if array is None else f'a {type(array).__name__}'}, and matmul takes arrays",
            help="arrays of NumPy, torch, CuPy, or of any library with DLPack or __cuda_array_interface__",
        )
    _array_types.add(type(array))


def _describe(name: str, array: Any) -> ArrayInfo:
    if isinstance(array, ArraySpec):
        return array.info
    _check_array(name, array)
    info = describe(array, name)
    assert info is not None, array
    return info


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, Real):
        raise ArgumentError(
            f"{name} is a number, got {type(value).__name__}",
            help="factors of rows or columns, or one in memory, are scale_a= and scale_b="
            if name == "alpha"
            else "multiply c by it first; an epilogue adds an array as it likes: epilogue=lambda acc: acc + factor * c",
        )


def _scales(
    alpha: Any, scale_a: Any, scale_b: Any, weights: WeightFormat | None
) -> tuple[Any, tuple[str, ...], tuple[Any, ...]]:
    """Return alpha times the scales that are numbers, and the names of the others and the others."""
    given = {name: x for name, x in (("scale_a", scale_a), ("scale_b", scale_b)) if x is not None}
    if given and weights is not None:
        raise ArgumentError(
            f"{next(iter(given))} is given, and b is quantised weights, which have scales of their own",
            help="multiply in an epilogue",
        )
    arrays = {}
    for name, scale in given.items():
        if isinstance(scale, Real):
            try:
                alpha = alpha * float(scale)
            except OverflowError:
                raise ArgumentError(f"{name} is an integer that no float holds") from None
        else:
            arrays[name] = scale
    return alpha, tuple(arrays), tuple(arrays.values())


def _addend(out: Any, beta: Any, epilogue: Any) -> Any:
    """Return what beta multiplies in a call without c."""
    if out is None or type(epilogue) is Gated:  # of which out has not the columns of the product
        raise ArgumentError(f"beta is {beta}, and there is neither c nor out that it could multiply", help="pass c=")
    return out


def _element_type(spec: object) -> DType:
    try:
        return as_dtype(spec)
    except TypeError as error:
        raise ArgumentError(f"out_dtype is not an element type of Tilewright: {error}") from None


def _arch(spec: Arch | str) -> Arch:
    try:
        return Arch.parse(spec)
    except ValueError as error:
        raise ArgumentError(str(error)) from None


def _refuse_gradients(names: tuple[str, ...], arrays: tuple[Any, ...], places: tuple[int, ...]) -> None:
    for place in places:
        if arrays[place].requires_grad and sys.modules["torch"].is_grad_enabled():
            raise ArgumentError(
                f"{names[place]} requires a gradient, and none flows through matmul",
                help=f"gradients flow through tw.torch.matmul; or pass {names[place]}.detach(), "
                "or call it in torch.no_grad()",
            )


matmul: Matmul = Matmul()
