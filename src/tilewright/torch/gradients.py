"""Gradients of operators: what is kept for a backward function, and what applies it under transforms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast  # Any: inputs of operators, and torch's contexts

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

from tilewright.errors import ArgumentError
from tilewright.torch.sharding import all_dtensors

if TYPE_CHECKING:
    from tilewright.torch.operators import Operator

_OWN_INPUTS = ("result", "results", "needs")
_ALL, _SINGLE = -1, -2  # places of all results, and of the first of several; the next ones are below


def check_names(name: str, what: str, names: Iterable[str], parameters: Iterable[str]) -> None:
    """Raise `ArgumentError` for a name that no parameter has."""
    parameters = list(parameters)
    for given in names:
        if given not in parameters:
            raise ArgumentError(
                f"{what} of {name} names {given!r}, which is not a parameter",
                help=f"its parameters are {', '.join(parameters)}",
            )


class Backward:
    """What a backward function asks for by the names of its parameters, kept and handed over."""

    def __init__(self, operator: Operator[Any, Any], function: Callable[..., Any]) -> None:
        self.name: str = operator.name
        self.defaults: tuple[Any, ...] = operator._defaults
        self.function: Callable[..., Any] = function
        inputs = list(operator._signature.parameters)
        signature = inspect.signature(function).parameters
        parameters = list(signature)
        self.gradients: int = operator._results
        kinds = [str(signature[n].annotation) for n in parameters[: self.gradients]]
        self.may_be_none: bool = any("None" in kind or "Optional" in kind for kind in kinds)
        self.names: list[str] = parameters[self.gradients :]
        single = {f"result_{n}": _SINGLE - n for n in range(self.gradients)}
        known = [*inputs, *_OWN_INPUTS, *single]
        if len(parameters) < self.gradients or any(name not in known for name in self.names):
            wrong = next((name for name in self.names if name not in known), None)
            raise ArgumentError(
                f"the backward function of {operator.name} takes ({', '.join(parameters)})"
                + (f", and {wrong!r} names nothing" if wrong else f", and there are {self.gradients} results"),
                help=f"first {self.gradients} for the gradients of the results, then any of {', '.join(known)}",
            )
        self.inputs: list[str] = inputs
        # What is kept, and its place among the inputs: -1 for what the operator returned, -2 for the first of that.
        places = {name: place for place, name in enumerate(inputs)} | dict.fromkeys(_OWN_INPUTS, _ALL)
        self.kept: list[tuple[str, int]] = [(n, (single | places)[n]) for n in self.names if n != "needs"]
        arguments = operator.overload._schema.arguments
        self.tensors: list[str] = [x.name for x in arguments if "Tensor" in str(x.type)]

    def setup(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # Any: torch's context
        saved: list[Any] = []
        plain: dict[str, Any] = {}
        places: dict[str, tuple[int, int | None]] = {}
        given = (*inputs, *self.defaults[len(inputs) :], output)
        for name, place in self.kept:
            value = given[place] if place > _SINGLE else output[_SINGLE - place]
            if isinstance(value, torch.Tensor):
                places[name] = (len(saved), None)
                saved.append(value)
            elif isinstance(value, (list, tuple)) and any(isinstance(x, torch.Tensor) for x in value):
                places[name] = (len(saved), len(value))
                saved += value
            else:
                plain[name] = [*value] if type(value) is list else value  # the caller may change it
        ctx.plain, ctx.places = plain, places
        ctx.save_for_backward(*saved)  # the one way that lets torch see writes in place
        if self.may_be_none:
            ctx.set_materialize_grads(False)

    def run(self, ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        given = dict(ctx.plain)
        saved = ctx.saved_tensors
        for name, (start, length) in ctx.places.items():
            given[name] = saved[start] if length is None else tuple(saved[start : start + length])
        wanted = zip(self.inputs, ctx.needs_input_grad, strict=False)
        # For a list of tensors there is a list of answers.
        needs = frozenset(name for name, need in wanted if (any(need) if isinstance(need, (list, tuple)) else need))
        found = self._found(given, needs, all_dtensors(gradients))
        return tuple(found.get(name) for name in self.inputs)

    def finish(
        self, values: tuple[Any, ...], saved: Sequence[Any], needs: list[bool], gradients: Sequence[Any]
    ) -> list[Any]:
        """Return the gradients of the inputs that are tensors, from what C++ kept: see `Kept` there."""
        tensors = [name for name, value in zip(self.inputs, values, strict=True) if value is ...]
        given: dict[str, Any] = {}
        left = iter(saved)
        for name, place in self.kept:
            if place != _ALL:
                given[name] = next(left) if place < 0 or values[place] is ... else values[place]
            else:
                results = tuple([next(left) for _ in range(self.gradients)])
                given[name] = results[0] if self.gradients == 1 else results
        found = self._found(given, frozenset(n for n, need in zip(tensors, needs, strict=True) if need), gradients)
        return [found.get(name) for name in tensors]

    def _found(self, given: dict[str, Any], needs: frozenset[str], gradients: Sequence[Any]) -> Mapping[str, Any]:
        """Call the function, and return the gradients by the names of inputs."""
        if "needs" in self.names:
            given["needs"] = needs
        wanted = [given[name] for name in self.names]
        found: Any = self.function(*gradients, *[[*x] if type(x) is list else x for x in wanted])  # may be kept on
        if not isinstance(found, Mapping):
            if len(self.tensors) != 1:
                raise ArgumentError(
                    f"the backward function of {self.name} returned a {type(found).__name__}, "
                    f"and it has the tensors {', '.join(self.tensors)}",
                    help=f'return a dict: {{"{self.tensors[0]}": ...}}',
                )
            found = {self.tensors[0]: found}
        check_names(self.name, "the backward function", found, self.inputs)
        return cast("Mapping[str, Any]", found)


def autograd_function(name: str, parts: Mapping[str, Callable[..., Any]]) -> Any:
    """Return a `torch.autograd.Function`."""
    return type(name, (torch.autograd.Function,), {part: staticmethod(function) for part, function in parts.items()})


def for_autograd(operator: Operator[Any, Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what the dispatcher calls for gradients, with an error for tangents: torch would drop them.

    It would drop gradients of tensors that stand beside None in a list, too; `Transformed` has them.
    """

    def run(keys: Any, *args: Any, **keywords: Any) -> Any:
        if forward_ad._current_level >= 0:
            for x in tree_leaves((args, keywords)):
                if isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None:
                    raise NotImplementedError(f"Trying to use forward AD with {operator.name} that does not support it")
        has_none = any(y is None for x in args if isinstance(x, (list, tuple)) for y in x)
        if has_none and torch.is_grad_enabled():
            if operator._function is not None:
                return operator._function(*operator._named_inputs(args, keywords).values())
            if any(isinstance(x, torch.Tensor) and x.requires_grad for x in tree_leaves(args)):
                raise NotImplementedError(
                    f"{operator.name} returns a list, and has no gradients where None is beside tensors in a list"
                )
        return function(keys, *args, **keywords)

    return run


class Transformed:
    """Applies an operator under the transforms of torch.func.

    torch looks for tensors among the inputs of a function, and not in lists of them. These are taken apart before: else
    they would have no gradient, and nothing would say so.
    """

    def __init__(self, name: str, parts: Mapping[str, Callable[..., Any]]) -> None:
        self._name, self._parts = name, parts
        self._functions: dict[tuple[int | None, ...], Any] = {}  # by the lengths of lists; None for what is none

    def __call__(self, *inputs: Any) -> Any:
        lengths = tuple(
            len(x) if isinstance(x, (list, tuple)) and any(isinstance(y, torch.Tensor) for y in x) else None
            for x in inputs
        )
        if lengths not in self._functions:
            self._functions[lengths] = autograd_function(self._name, self._parts_for(lengths))
        return self._functions[lengths].apply(*_apart(inputs, lengths))

    def _parts_for(self, lengths: Sequence[int | None]) -> Mapping[str, Callable[..., Any]]:
        parts = self._parts
        if not any(lengths):
            return parts

        def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            ctx.needs_input_grad = _joined(ctx.needs_input_grad, lengths)
            return tuple(_apart(parts["backward"](ctx, *gradients), lengths))

        return {
            "forward": lambda *flat: parts["forward"](*_joined(flat, lengths)),
            "setup_context": lambda ctx, inputs, output: parts["setup_context"](ctx, _joined(inputs, lengths), output),
            "vmap": lambda info, dims, *flat: parts["vmap"](info, _joined(dims, lengths), *_joined(flat, lengths)),
            "backward": backward,
        }


def _apart(values: Iterable[Any], lengths: Iterable[int | None]) -> Iterator[Any]:
    """Yield values, and in place of lists what is in them: None as often where there is none."""
    for value, length in zip(values, lengths, strict=True):
        yield from [value] if length is None else [None] * length if value is None else value


def _joined(flat: Iterable[Any], lengths: Iterable[int | None]) -> tuple[Any, ...]:
    """Return values with their lists again."""
    left = iter(flat)
    return tuple([next(left) if n is None else [next(left) for _ in range(n)] for n in lengths])
