"""`tw.torch.op`: a function that launches kernels becomes an operator of PyTorch.

The function is registered with `torch.library`, so that the dispatcher, autograd, vmap, autocast, `torch.compile` and
`torch.export` see one operator with a schema and look no further. CPU tensors run in the simulator, because the
kernels that the function launches do.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast  # Any: inputs of operators, of any type that a schema has

import torch
from torch._library.autograd import make_autograd_impl
from torch.utils._pytree import tree_leaves, tree_map

from tilewright.errors import ArgumentError
from tilewright.frames import warn_at
from tilewright.torch import repeats, sharding
from tilewright.torch.eager import AT_ONCE, WITH_GRADIENTS, Inputs, is_plain_thread, shares_memory, without_views
from tilewright.torch.gradients import Backward, Transformed, autograd_function, check_names, for_autograd

P = ParamSpec("P")
R = TypeVar("R")
_Function = TypeVar("_Function", bound=Callable[..., Any])

_is_traced = torch.compiler.is_dynamo_compiling  # the least of such questions where the answer is no
_DEVICES = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}  # that kernels run on, and their keys in the dispatcher
_of_name: defaultdict[str, weakref.WeakSet[Operator[Any, Any]]] = defaultdict(weakref.WeakSet)


class Operator(Generic[P, R]):
    """An operator of PyTorch that launches kernels. `tw.torch.op` makes it; call it like the function.

    `overload` is the entry in `torch.ops`, for graphs and for `torch.library`. `backward` gives it gradients, and
    `check` runs `torch.library.opcheck`.

    >>> import torch, tilewright as tw
    >>> print(tw.torch.matmul_operator.overload)
    tilewright.matmul.default
    """

    def __init__(
        self,
        name: str,
        function: Callable[P, R],
        mutates: Sequence[str],
        shape: _Shape,
        vmap: _Vmap,
        autocast: Any,
    ) -> None:
        functools.update_wrapper(self, function)
        self.name = name
        self._signature = inspect.signature(function)
        schema = _schema(name, function, self._signature, mutates)
        self._rule = _rule(name, function, self._signature, shape)
        self._definition = torch.library.custom_op(name, self._run, mutates_args=mutates, schema=schema)
        self._definition.register_kernel = self._register_kernel
        self.overload: Any = self._definition._opoverload  # Any: torch's OpOverload, which its types do not show
        self._inputs: Inputs = Inputs(self.overload._schema)
        for earlier in _of_name[name]:  # torch has freed what their overloads call: they are this one from here on
            earlier.overload, earlier._inputs.is_known = self.overload, False
            earlier._calls, earlier._function = None, None
        _of_name[name].add(self)
        returns = self.overload._schema.returns
        self._results: int = len(returns)
        if any("Tensor" not in str(each.type) for each in returns):
            raise ArgumentError(f"{name} returns what is not a tensor", help="return tensors, lists of them, or None")
        self._is_list: bool = any(str(each.type) != "Tensor" for each in returns)  # of as many as the function likes
        parameters = self._signature.parameters.values()
        self._places = {parameter.name: place for place, parameter in enumerate(parameters)}
        self._defaults = tuple([parameter.default for parameter in parameters])
        self._is_mutable: bool = self.overload._schema.is_mutable
        self._targets = [self._places[given] for given in mutates]
        self._is_ours = name.startswith("tilewright::")
        self.is_collective: bool = False  # other ranks wait for a call, also for one whose results are empty
        if self._rule is None and self._results:
            raise ArgumentError(
                f"{name} returns tensors, and nothing says of what shape",
                help='pass shape="x" for a result like the argument x, or a function of the arguments that returns '
                "empty tensors",
            )
        rule = self._rule or (lambda *args, **keywords: None)
        self._definition.register_fake(functools.partial(_on_one_device, name, rule))
        # Where there are gradients: a torch.autograd.Function for transforms, and what applies one without them.
        self._function: Transformed | None = None
        self._apply: Callable[..., Any] | None = None
        self._gradient: Backward | None = None
        # What makes calls in C++ that were met before, and what adds kinds of calls to it: see repeats.py.
        self._calls: Any = None  # Any: as the next, a function in C++
        self._add: Any = None
        self._renewals = 0
        self.ways: sharding.Rule | None = None  # what `sharding` was given
        if vmap is None and self._is_mutable:
            vmap = "loop"  # as torch calls operators that do not write
        self._vmap = None if vmap is None else _vmap_rule(self, vmap)
        if self._vmap is not None:
            self._definition.register_vmap(self._vmap)
        if not self._is_mutable and not self._is_list:  # else left to torch, whose functions return only tuples
            self._set_function(functools.partial(_no_gradient, name), lambda ctx, inputs, output: None)
        refuse = for_autograd(self, make_autograd_impl(self.overload, self._definition))
        for device in _DEVICES:
            self._definition._lib.impl(name, refuse, f"Autograd{device.upper()}", with_keyset=True)
        if autocast is not None:
            _register_autocast(self, autocast)

    def __call__(self, *args: P.args, **keywords: P.kwargs) -> R:
        result: R
        if not _is_traced() and (calls := self._calls) is not None:
            result = calls(args, keywords)
            if result is not NotImplemented:
                return result
        if self._inputs.is_known and not torch.compiler.is_compiling() and is_plain_thread():
            given = self._filled(args, keywords)
            kind, found = self._inputs.look(given), self._run_direct
            if kind and self._learn(given, kind) and (result := self._calls(args, keywords)) is not NotImplemented:
                return result
            if kind == WITH_GRADIENTS and self._apply is not None:
                kind, found = AT_ONCE, self._apply
            if kind == AT_ONCE:
                result = found(*given)  # no `cast`, which is called
                return result
        if _untold:
            _tell_dtensor()
        function = self._function
        if function is not None and not torch.compiler.is_compiling() and _is_transformed():
            # torch.func differentiates no operator of torch.library, but functions like this one.
            return cast("R", function(*self._named_inputs(args, keywords).values()))
        if self._is_mutable and torch.is_grad_enabled():
            self._refuse_gradients((*args, *keywords.values()))
        return cast("R", self.overload(*args, **keywords))

    def __reduce__(self) -> str:
        return self.__qualname__  # type: ignore[attr-defined,no-any-return]  # one object for each process, as a function

    def _register_kernel(self, *args: Any, **keywords: Any) -> Any:
        """Leave calls to the dispatcher from here on: it knows of the kernel that the user registers for a device."""
        self._inputs.is_known, self._calls = False, None
        return torch.library.CustomOpDef.register_kernel(self._definition, *args, **keywords)

    def _refuse_gradients(self, given: Iterable[Any]) -> None:
        """Raise an error for tensors that require a gradient: what is written would pass without one."""
        for x in tree_leaves(given):
            if isinstance(x, torch.Tensor) and x.requires_grad:
                raise ArgumentError(
                    f"{self.name} writes to its inputs, so it has no gradients, and a tensor of "
                    f"{tuple(x.shape)} requires one",
                    help="call it under torch.no_grad(), or pass x.detach()",
                )

    def _learn(self, given: tuple[Any, ...], kind: int) -> bool:
        """Let calls like this one be made in C++, where that is built; nothing has to be asked for them any more."""
        library = repeats.library(given)
        if library is None or (kind == WITH_GRADIENTS and self._gradient is None):
            return False
        if self._calls is not None and (added := self._add(given, {})) is not None:
            return bool(added)
        self._renewals += 1
        self._calls, self._add = repeats.calls_of(library, self, self._gradient, self._renewals)
        return bool(self._add(given, {}))

    def _filled(self, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the inputs in order, defaults filled in; something else where the call is wrong, as torch will say."""
        if not keywords:
            return (*args, *self._defaults[len(args) :])
        given = [*args, *self._defaults[len(args) :]]
        for name, value in keywords.items():
            place = self._places.get(name, -1)
            if place < len(args):
                return ()
            given[place] = value
        return tuple(given)

    def _run_direct(self, *args: Any) -> Any:
        """Compute as the dispatcher would have it computed; what it refuses, it shall refuse."""
        found = self._compute(*[[*x] if type(x) is list else x for x in args])  # the caller's lists stay as they are
        if self._results > 1 and type(found) is list:
            found = tuple(found)
        if not self._is_ours and (not self._is_right(found) or shares_memory(found, args)):
            return self.overload(*args)
        return found

    def _is_right(self, found: Any) -> bool:
        """Say whether a function returned as many tensors as it says; lists are left to the dispatcher."""
        if self._is_list or self._results == 0:
            return self._is_list or found is None
        parts = found if self._results > 1 else (found,)
        is_plain = type(parts) is tuple and len(parts) == self._results
        return is_plain and all(x is None or isinstance(x, torch.Tensor) for x in parts)

    def __repr__(self) -> str:
        return f"<operator {self.overload._schema}>"

    def _run(self, *args: Any, **keywords: Any) -> Any:
        """Compute what is asked for; for results without elements no kernel is launched."""
        is_empty = any(isinstance(x, torch.Tensor) and x.numel() == 0 for x in args)
        if is_empty and self._rule is not None and not self.is_collective:
            made = self._rule(*args, **keywords)
            if all(x.numel() == 0 for x in ((made,) if isinstance(made, torch.Tensor) else made)):
                return without_views(made)
        found = self._compute(*args, **keywords)
        if not self._is_list and isinstance(found, (list, tuple)) and len(found) != self._results:  # torch would crash
            raise ArgumentError(f"{self.name} returned {len(found)} results, and its annotation has {self._results}")
        return found

    def _compute(self, *args: Any, **keywords: Any) -> Any:
        function: Any = self.__wrapped__  # type: ignore[attr-defined]  # set by update_wrapper
        if not torch.is_grad_enabled():
            return without_views(function(*args, **keywords))
        torch._C._set_grad_enabled(False)  # gradients are the operator's, not the kernels'; a context costs 2 us
        try:
            return without_views(function(*args, **keywords))
        finally:
            torch._C._set_grad_enabled(True)

    def backward(self, function: _Function, *, setup: Callable[..., None] | None = None) -> _Function:
        """Define the operator's gradients: `function` computes those of its inputs from those of its results.

        Without `setup`, `function` takes the gradients of the results first, one parameter each. Its other parameters
        name what it needs: inputs of the operator, `result` (`results` is a tuple of several, `result_0` the first of
        them), and `needs`, the set of the inputs that require a gradient. Only these are kept from the forward pass,
        and must not be written to until then. It returns the gradient of the
        only tensor among the inputs, or a dict of gradients by the inputs' names; an input that is left out has none.

        With `setup`, both are as `torch.library.register_autograd` takes them: `setup(ctx, inputs, output)` and
        `function(ctx, *gradients)`.

        Where nothing uses a result, its gradient is zeros, or None if the annotation of a gradient allows it.

        Gradients are differentiable if `function` consists of operators that are. They may have any strides, and
        overlap in memory: the gradient of a sum has strides of 0.

        >>> import torch, tilewright as tw
        >>> @tw.kernel
        ... def double(out, x):
        ...     i = tw.block_idx.x * 32 + tw.thread_idx.x
        ...     if i < x.shape[0]:
        ...         out[i] = 2 * x[i]
        >>> @tw.torch.op("docs::doubled", shape="x")
        ... def doubled(x: torch.Tensor) -> torch.Tensor:
        ...     out = torch.empty_like(x)
        ...     double[tw.ceil_div(x.numel(), 32), 32](out, x)
        ...     return out
        >>> @doubled.backward
        ... def doubled_backward(grad: torch.Tensor) -> torch.Tensor:
        ...     return doubled(grad)
        >>> x = torch.ones(3, requires_grad=True)
        >>> doubled(x).sum().backward()
        >>> x.grad
        tensor([2., 2., 2.])

        Raises `ArgumentError` for an unknown parameter name, and for an operator that mutates its inputs.
        """
        if self._is_mutable:
            raise ArgumentError(
                f"{self.name} mutates its inputs, and torch gives such operators no gradients",
                help="return new tensors instead, or write a torch.autograd.Function around it",
            )
        run: Callable[..., Any] = function
        self._gradient, self._calls = None, None
        if setup is None:
            plan = Backward(self, function)
            # Compiled autograd calls functions, and no methods.
            run, setup = (lambda ctx, *gradients: plan.run(ctx, *gradients)), plan.setup
            if not self._is_list:
                self._gradient = plan
        self._definition.register_autograd(run, setup_context=setup)
        if not self._is_list:
            parts = self._set_function(run, setup)
            direct = autograd_function(self.name, {**parts, "forward": self._run_direct})
            # Past what Function.apply does for defaults and transforms, of which there are none here: 20 microseconds.
            self._apply = super(torch.autograd.Function, direct).apply  # type: ignore[misc]
        return function

    def _set_function(self, run: Callable[..., Any], setup: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
        """Set what is applied under transforms, and return its parts."""
        parts = {"forward": self.__call__, "backward": run, "setup_context": setup}
        parts["vmap"] = self._vmap or functools.partial(_one_by_one, self)
        self._function = Transformed(self.name, parts)
        return parts

    def sharding(self, rule: _Function, *, check: Callable[..., bool] | None = None) -> _Function:
        """Define how the operator is divided over devices, so that it takes DTensors (`torch.distributed.tensor`).

        `rule` takes the operator's arguments, where tensors are specifications with a shape, and returns the ways: for
        one dimension of a device mesh, `Way(results, inputs)` has a placement for each result, and placements of inputs
        by name; inputs that it leaves out are replicated. Full replication is always allowed. Each way must be correct:
        the function of the parts is the part of the result that its placement names.

        >>> import torch, tilewright as tw
        >>> from torch.distributed.tensor import Shard
        >>> @tw.torch.op("docs::negated", shape="x")
        ... def negated(x: torch.Tensor) -> torch.Tensor:
        ...     return -x
        >>> @negated.sharding
        ... def negated_sharding(x):
        ...     return [tw.torch.Way([Shard(n)], {"x": Shard(n)}) for n in range(len(x.shape))]

        DTensor takes the way that needs the least communication, over each dimension of the mesh. A way that divides a
        mode over more devices than it has elements is left out. `check` is called with the tensors' specifications on
        all dimensions of the mesh, by name, and rejects them by returning False.

        Raises `ArgumentError` for an operator that mutates its inputs.
        """
        if self._is_mutable:
            raise ArgumentError(
                f"{self.name} mutates its inputs, and such operators are not divided",
                help="return new tensors instead, or call it on the tensors' to_local()",
            )
        self.ways = rule
        _untold[self.overload] = (rule, check)
        _tell_dtensor()
        return rule

    def check(self, *args: P.args, **keywords: P.kwargs) -> dict[str, str]:
        """Run `torch.library.opcheck` on a call: schema, fake implementation, gradients, and tracing with symbols.

        >>> import torch, tilewright as tw
        >>> set(tw.torch.matmul_operator.check(torch.ones(4, 8), torch.ones(8, 4)).values())
        {'SUCCESS'}

        Raises `torch.library.OpCheckError` for the first failure.
        """
        found: dict[str, str] = torch.library.opcheck(self.overload, args, keywords)
        return found

    def _named_inputs(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of a call by name, with defaults filled in."""
        bound = self._signature.bind(*args, **keywords)
        bound.apply_defaults()
        return dict(bound.arguments)


def _no_gradient(name: str, ctx: Any, *gradients: Any) -> None:
    """Say under transforms what torch says elsewhere; unlike there, results may have been computed."""
    raise RuntimeError(f"Trying to backward through {name} but no autograd formula was registered")


def _is_transformed() -> bool:
    """Say whether a transform of torch.func is to see a call: not within a rule of vmap, which excludes its key."""
    batched = torch._C.DispatchKey.FuncTorchBatched
    if not torch._C._are_functorch_transforms_active() or torch._C._dispatch_tls_is_dispatch_key_excluded(batched):
        return False
    # Functions like that one are not functionalized, and operators are.
    functorch = torch._C._functorch
    return bool(functorch.peek_interpreter_stack().key() != functorch.TransformType.Functionalize)


_untold: dict[Any, tuple[sharding.Rule, sharding.Check | None]] = {}  # ways of overloads that DTensor has to be told


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # tracing runs it, no graph holds it
def _tell_dtensor() -> bool:
    """Register ways as soon as this process has DTensors. It never imports them: that takes long."""
    if sharding.is_loaded():
        while _untold:
            overload, (rule, check) = _untold.popitem()
            try:
                sharding.register(overload, rule, check)
            except (ImportError, AttributeError, TypeError) as error:  # DTensor has no public name for all of it
                _untold.clear()
                warn_at(
                    f"PyTorch {torch.__version__} cannot be told how operators are divided ({error}), so DTensors "
                    "are refused; tensors are taken as always"
                )
    return True


_Rule = Callable[..., Any]
_Shape = str | Sequence[str] | _Rule | None  # also read at runtime, so that no quotes stand around it
_Vmap = str | Callable[..., Any] | None


def op(
    name: str,
    *,
    mutates: str | Iterable[str] = (),
    shape: str | Sequence[str] | Callable[..., Any] | None = None,
    vmap: str | Callable[..., Any] | None = None,
    autocast: Any = None,  # Any: "lower" or a torch.dtype, whose type torch does not show
) -> Callable[[Callable[P, R]], Operator[P, R]]:
    """Make an operator of PyTorch from a function that launches kernels on tensors.

    >>> import torch, tilewright as tw
    >>> @tw.kernel
    ... def scale(out, x, factor):
    ...     i = tw.block_idx.x * 32 + tw.thread_idx.x
    ...     if i < x.shape[0]:
    ...         out[i] = x[i] * factor
    >>> @tw.torch.op("docs::scaled", shape="x", vmap="loop")
    ... def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    ...     out = torch.empty_like(x)
    ...     scale[tw.ceil_div(x.numel(), 32), 32](out, x, factor)
    ...     return out
    >>> scaled(torch.arange(3.0), 10.0)
    tensor([ 0., 10., 20.])
    >>> scaled
    <operator docs::scaled(Tensor x, float factor=2.) -> Tensor>

    `name` is the operator's name for torch, `namespace::name`. The schema comes from the annotations of the function's
    parameters and result, which are those that `torch.library.infer_schema` takes; keyword-only parameters are not
    supported. The function gets tensors with memory, on a GPU or on the CPU, and returns new ones, never an input or a
    view of one.

    `mutates` names the parameters that the function writes to. Such an operator has no gradients: while they are
    enabled, it raises `ArgumentError` for tensors that require one.

    `shape` describes the results, for tracing. A name means: like that parameter (`torch.empty_like`); give several
    names for several results. A function gets the same arguments, with tensors that have no memory, and returns empty
    tensors; sizes may be symbols. Results without elements are made by this rule, without a launch.

    `vmap` is "elementwise" for a function that works element by element on tensors of one shape: a batch then adds
    elements. "loop" calls it once for each item of the batch. A function is a rule as for
    `torch.library.register_vmap`. By default it is called for each item, too.

    `autocast` is "lower" if autocast should convert inputs to its 16-bit type, as for `torch.matmul`, or the type to
    convert them to, such as torch.float32. float64 is not converted. By default autocast has no effect.

    Raises `ArgumentError` for names that are not parameters, and if annotations or the shape are missing.
    """
    if "::" not in name:
        raise ArgumentError(f"the operator's name is {name!r}, without a namespace", help=f'write "mylib::{name}"')

    def decorate(function: Callable[P, R]) -> Operator[P, R]:
        names = (mutates,) if isinstance(mutates, str) else tuple(mutates)
        return Operator(name, function, names, shape, vmap, autocast)

    return decorate


def _schema(name: str, function: Callable[..., Any], signature: inspect.Signature, mutates: Sequence[str]) -> str:
    for parameter in signature.parameters.values():
        if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise ArgumentError(
                f"the parameter {parameter} of {name} is not an ordinary one",
                help="give the operator ordinary parameters; a function around it may have others",
            )
    check_names(name, "mutates", mutates, signature.parameters)
    try:
        return cast("str", torch.library.infer_schema(function, mutates_args=mutates))
    except ValueError as error:
        raise ArgumentError(
            f"no schema follows from the annotations of {name}: {error}",
            help="annotate each parameter and the result, for example (x: torch.Tensor, k: float) -> torch.Tensor",
        ) from None


def _rule(name: str, function: Callable[..., Any], signature: inspect.Signature, shape: _Shape) -> _Rule | None:
    """Return the function that makes empty results."""
    if shape is None or callable(shape):
        return shape
    names = (shape,) if isinstance(shape, str) else tuple(shape)
    check_names(name, "shape", names, signature.parameters)

    def like(*args: Any, **keywords: Any) -> Any:
        bound = signature.bind(*args, **keywords)
        bound.apply_defaults()
        made = tuple(torch.empty_like(bound.arguments[given]) for given in names)
        return made[0] if isinstance(shape, str) else made

    return like


def _on_one_device(name: str, rule: _Rule, *args: Any, **keywords: Any) -> Any:
    """Apply the rule, unless tensors with memory are beside some on "meta".

    torch's dispatcher calls the rule in place of the function as soon as one tensor is on "meta", and a result with
    memory would come back with whatever that held.
    """
    devices: dict[str, str] = {}  # kinds of devices, with an argument on each
    positions = ((f"argument {place}", x) for place, x in enumerate(args))
    for where, given in (*positions, *keywords.items()):
        for x in given if isinstance(given, (list, tuple)) else (given,):
            if isinstance(x, torch.Tensor):
                devices.setdefault(x.device.type, where)
    if "meta" in devices and len(devices) > 1:
        places = ", ".join(f"{where} is on {device}" for device, where in devices.items())
        raise ArgumentError(
            f"the tensors of {name} are on different devices: {places}",
            help='tensors on "meta" have no memory; move all of them to one device',
        )
    return rule(*args, **keywords)


def _vmap_rule(operator: Operator[Any, Any], vmap: str | Callable[..., Any]) -> Callable[..., Any]:
    if callable(vmap):
        return vmap
    if vmap == "elementwise":
        return functools.partial(_more_elements, operator)
    if vmap == "loop":
        return functools.partial(_one_by_one, operator)
    raise ArgumentError(f"vmap of {operator.name} is {vmap!r}", help='"elementwise", "loop", or a rule')


def _more_elements(operator: Operator[Any, Any], info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    """Compute a batch as one call on tensors with one mode more."""

    def with_batch(x: Any, place: Any) -> Any:
        if isinstance(x, (list, tuple)) and isinstance(place, (list, tuple)):
            return [with_batch(item, at) for item, at in zip(x, place, strict=True)]
        if not isinstance(x, torch.Tensor):
            return x
        return x.expand(info.batch_size, *x.shape) if place is None else x.movedim(place, 0)

    _check_targets(operator, in_dims, args)
    found = operator(*map(with_batch, args, in_dims))
    return found, _in_front(found)


def _one_by_one(operator: Operator[Any, Any], info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    """Compute the items of a batch in separate calls."""

    def item(x: Any, place: Any, n: int) -> Any:
        if isinstance(x, (list, tuple)) and isinstance(place, (list, tuple)):
            return [item(inner, at, n) for inner, at in zip(x, place, strict=True)]
        if place is None:
            return x
        return x.select(place, n) if info.batch_size else x.sum(place, dtype=x.dtype)  # zeros, with gradients

    def at(n: int) -> list[Any]:
        return [item(x, place, n) for x, place in zip(args, in_dims, strict=True)]

    def joined(*items: Any) -> Any:
        if items[0] is None:
            return None
        return torch.stack(items) if info.batch_size else torch.stack(items)[:0]

    _check_targets(operator, in_dims, args)
    found = tree_map(joined, *[operator(*at(n)) for n in range(max(info.batch_size, 1))])  # one for its shapes
    return found, _in_front(found)


def _in_front(found: Any) -> Any:
    return tree_map(lambda x: None if x is None else 0, found)


def _check_targets(operator: Operator[Any, Any], in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> None:
    """Refuse to write to a tensor without a batch what has one, as torch does."""
    for place in operator._targets:
        if place >= len(args):  # left to its default, which is no tensor
            continue
        is_list = isinstance(args[place], (list, tuple))
        items = zip(args[place], in_dims[place], strict=True) if is_list else [(args[place], in_dims[place])]
        if any(isinstance(x, torch.Tensor) and at is None for x, at in items):
            raise ArgumentError(
                f"vmap: {operator.name} writes to an input without a batch, and others have one",
                help="map over it too, or return a new tensor",
            )


def _register_autocast(operator: Operator[Any, Any], autocast: Any) -> None:
    """Convert floating-point tensors in a region of autocast, and compute without it, as torch's own operators do.

    `torch.library.register_autocast` knows one fixed type; torch's operators take the region's.
    """
    if autocast != "lower" and not isinstance(autocast, torch.dtype):
        raise ArgumentError(f"autocast of {operator.name} is {autocast!r}", help='"lower", or a type: torch.float32')
    for device, key in _DEVICES.items():
        excluded = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

        def run(keys: Any, *args: Any, _device: str = device, _excluded: Any = excluded, **keywords: Any) -> Any:
            kind = torch.get_autocast_dtype(_device) if autocast == "lower" else autocast
            cast_one = functools.partial(_cast, kind, _device)
            with torch._C._ExcludeDispatchKeyGuard(_excluded):
                converted = {name: cast_one(value) for name, value in keywords.items()}
                return operator.overload(*map(cast_one, args), **converted)

        operator._definition._lib.impl(operator.name, run, key, with_keyset=True)


def _cast(kind: Any, device: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_cast(kind, device, x) for x in value]
    if not isinstance(value, torch.Tensor) or value.device.type != device or not value.is_floating_point():
        return value
    return value if value.dtype == torch.float64 or value.element_size() < 2 else value.to(kind)
