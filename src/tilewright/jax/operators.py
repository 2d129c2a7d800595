"""`tw.jax.op`: functions that launch kernels as functions of JAX, under jit, gradients and transforms."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

import jax
from tilewright.errors import ArgumentError
from tilewright.frames import hiding_frames

Shapes: TypeAlias = Any  # jax.ShapeDtypeStruct, or a tuple of them
_Key: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]  # names of arrays, and the other arguments
# Programs on several devices of the CPU call from several threads, and kernels are traced by one at a time.
_one_at_a_time = threading.RLock()
_METHODS = ("sequential", "broadcast_all", "expand_dims")


class Operator:
    """A function that launches kernels, callable with arrays of JAX and under its transforms; `tw.jax.op` makes it."""

    def __init__(self, function: Callable[..., Any], shape: str | Sequence[str] | Callable[..., Shapes], vmap: str):
        self.function = function
        self._signature = inspect.signature(function)
        self._shape = shape if callable(shape) else self._like((shape,) if isinstance(shape, str) else tuple(shape))
        self._is_several = not callable(shape) and not isinstance(shape, str)
        if vmap not in _METHODS:
            raise ArgumentError(f"vmap of {function.__name__} is {vmap!r}", help=f"one of {', '.join(_METHODS)}")
        self._vmap = vmap
        self._backward: Callable[..., Any] | None = None
        self._traced = functools.lru_cache(maxsize=256)(self._make)
        functools.update_wrapper(self, function)

    def _like(self, names: tuple[str, ...]) -> Callable[..., Shapes]:
        unknown = [name for name in names if name not in self._signature.parameters]
        if unknown:
            raise ArgumentError(
                f"shape names {unknown[0]!r}, and {self.function.__name__} has the parameters "
                f"{', '.join(self._signature.parameters)}"
            )

        def shapes(**given: Any) -> Shapes:
            found = tuple(jax.ShapeDtypeStruct(given[name].shape, given[name].dtype) for name in names)
            return found if self._is_several else found[0]

        return shapes

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function the gradient; use it as a decorator.

        It is called with the gradients of the results, in order, and after them with whatever it names of the inputs,
        `result` (`results`, where there are several), and returns a dict of gradients by the names of inputs. Inputs
        that it leaves out have a gradient of 0. It computes with functions of JAX and other operators.
        """
        parameters = list(inspect.signature(function).parameters)
        known = {*self._signature.parameters, "result", "results"}
        gradients = [name for name in parameters if name not in known]
        if not gradients or parameters[: len(gradients)] != gradients:
            raise ArgumentError(
                f"the backward function of {self.function.__name__} takes ({', '.join(parameters)})",
                help=f"first the gradients of the results, then any of {', '.join(known)}",
            )
        self._backward = function
        self._traced.cache_clear()
        return function

    @hiding_frames
    def __call__(self, *args: Any, **keywords: Any) -> Any:
        bound = self._signature.bind(*args, **keywords)
        bound.apply_defaults()
        arrays = {name: x for name, x in bound.arguments.items() if isinstance(x, (jax.Array, np.ndarray))}
        if not any(isinstance(x, jax.core.Tracer) for x in arrays.values()):
            return self._now(bound.arguments, arrays)
        others = tuple((name, x) for name, x in bound.arguments.items() if name not in arrays)
        try:
            hash(others)
        except TypeError as error:
            raise ArgumentError(
                f"{self.function.__name__} is traced by JAX, and arguments beside arrays are compiled in: {error}",
                help="pass tuples in place of lists",
            ) from None
        return self._traced((tuple(arrays), others))(*arrays.values())

    def _now(self, arguments: dict[str, Any], arrays: dict[str, Any]) -> Any:
        """Compute outside of programs of JAX: on the host as inside of them, and on a GPU by the arrays themselves."""
        ours = [x for x in arrays.values() if isinstance(x, jax.Array)]
        if not ours or any(device.platform != "cpu" for x in ours for device in x.devices()):
            return self.function(**arguments)
        found = self.function(**{**arguments, **{name: np.asarray(x) for name, x in arrays.items()}})
        return tuple(map(jax.numpy.asarray, found)) if isinstance(found, tuple) else jax.numpy.asarray(found)

    def _make(self, key: _Key) -> Callable[..., Any]:
        """Return a function of arrays alone, for arguments that are none."""
        names, others = key[0], dict(key[1])

        def on_host(*arrays: Any) -> Any:
            with _one_at_a_time:
                return self.function(**dict(zip(names, map(np.asarray, arrays), strict=True)), **others)

        def call(*arrays: Any) -> Any:
            _refuse_gpus(self.function.__name__)
            given = dict(zip(names, arrays, strict=True))
            varies = frozenset().union(*map(_varies, arrays))
            shapes = jax.tree.map(lambda x: _struct(x, varies), self._shape(**given, **others))
            return jax.pure_callback(on_host, shapes, *arrays, vmap_method=self._vmap)

        if self._backward is None:
            return call
        function = self._backward
        wanted = list(inspect.signature(function).parameters)
        count = sum(name not in self._signature.parameters and name not in ("result", "results") for name in wanted)

        def forward(*arrays: Any) -> tuple[Any, Any]:
            found = call(*arrays)
            return found, (arrays, found)

        def pull(kept: Any, gradients: Any) -> tuple[Any, ...]:
            arrays, found = kept
            given = {**dict(zip(names, arrays, strict=True)), **others, "result": found, "results": found}
            slopes = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
            pulled = function(*slopes[:count], *(given[name] for name in wanted[count:]))
            if not isinstance(pulled, Mapping):
                raise ArgumentError(
                    f"the backward function of {self.function.__name__} returned a {type(pulled).__name__}",
                    help="return a dict of gradients by the names of inputs",
                )
            return tuple(_gradient(pulled.get(name), x) for name, x in zip(names, arrays, strict=True))

        differentiable = jax.custom_vjp(call)
        differentiable.defvjp(forward, pull)
        return differentiable

    def __repr__(self) -> str:
        return f"<operator {self.function.__name__}{self._signature}>"


def _gradient(found: Any, x: Any) -> Any:
    """Return a gradient in the type that JAX wants for an input: none for whole numbers."""
    if not jax.numpy.issubdtype(x.dtype, jax.numpy.inexact):
        return np.zeros(x.shape, jax.dtypes.float0)
    found = jax.numpy.zeros(x.shape, x.dtype) if found is None else found.astype(x.dtype)
    # Within shard_map: what is the same on all devices has the sum of their gradients.
    summed, spread = tuple(_varies(found) - _varies(x)), tuple(_varies(x) - _varies(found))
    if summed:
        found = jax.lax.psum(found, summed)
    return jax.lax.pcast(found, spread, to="varying") if spread else found


def _varies(x: Any) -> frozenset[Any]:
    """Return the axes of the mesh along which an array differs within shard_map."""
    return getattr(jax.typeof(x), "vma", None) or frozenset()


def _struct(x: Any, varies: frozenset[Any]) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, vma=varies) if varies else x


def _refuse_gpus(name: str) -> None:
    """Refuse to be compiled for GPUs, where a callback would bring everything to the simulator."""
    device = jax.config.jax_default_device
    platform = getattr(device, "platform", device) or jax.default_backend()
    if platform != "cpu":
        raise ArgumentError(
            f"{name} is traced by JAX for {platform}, and kernels run inside of compiled programs on the CPU only",
            help="call it outside of jax.jit, jax.grad and jax.vmap, or compile for the CPU: "
            "with jax.default_device(jax.devices('cpu')[0])",
        )


def op(
    *, shape: str | Sequence[str] | Callable[..., Shapes], vmap: str = "sequential"
) -> Callable[[Callable[..., Any]], Operator]:
    """Make a function that launches kernels callable inside of `jax.jit`, `jax.vmap` and `jax.shard_map`.

    >>> import jax, numpy as np, tilewright as tw
    >>> @tw.kernel
    ... def scale(out, x, factor):
    ...     i = tw.block_idx.x * 32 + tw.thread_idx.x
    ...     if i < x.shape[0]:
    ...         out[i] = x[i] * factor
    >>> @tw.jax.op(shape="x")
    ... def scaled(x, factor=2.0):
    ...     out = np.empty_like(x)
    ...     scale[tw.ceil_div(x.size, 32), 32](out, x, factor)
    ...     return out
    >>> @scaled.backward
    ... def _(grad, factor):
    ...     return {"x": scaled(grad, factor)}
    >>> jax.jit(jax.grad(lambda x: scaled(x, 3.0).sum()))(jax.numpy.ones(3)).tolist()
    [3.0, 3.0, 3.0]

    In a program of JAX on the CPU the function gets NumPy arrays, and kernels run in the simulator, through
    `jax.pure_callback`; outside of one it gets the arrays that it is called with. It returns new arrays and writes into
    no input. Arguments that are no arrays are compiled in, and have to be hashable. On GPUs it is not part of compiled
    programs yet, and is refused there.

    `shape` says what the results look like: the name of an argument, names for several results, or a function of the
    same arguments, with `jax.ShapeDtypeStruct` or tracers for arrays, that returns `jax.ShapeDtypeStruct`. `vmap` is
    the `vmap_method` of `jax.pure_callback`: "sequential" calls the function for each item, "broadcast_all" once with
    one more mode in front of all arrays.

    Raises `ArgumentError` for names that are no arguments.
    """

    def decorate(function: Callable[..., Any]) -> Operator:
        return Operator(function, shape, vmap)

    return decorate
