"""Writes Python state into kernels: lists, dicts, objects, closures, helpers that change their argument.

An item or an attribute is named as a variable is (`l3[0]`, `d4["m"][1]`, `o5.a`), keeps its element type, and is registered
with the variables: every statement and expression of the fuzzer reads, writes, swaps and updates it. What is written here
makes the structures and the functions that change them, and the statements that only they allow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.fuzz.expressions import COMPARISONS, name_of

import tilewright as tw

if TYPE_CHECKING:
    from tests.fuzz.programs import Writer

IMPORTS = [
    "from collections import deque",
    "from dataclasses import dataclass, replace",
    "from typing import Any, NamedTuple",
]
MOST_FUNCTIONS = 3  # functions that change state, of a kernel: each call is traced again


@dataclass
class State:
    """What a kernel can name besides its variables."""

    lists: list[tuple[str, tw.DType, int]] = field(default_factory=list)  # of items of one type
    queues: list[tuple[str, tw.DType]] = field(default_factory=list)
    dicts: list[tuple[str, tw.DType]] = field(default_factory=list)
    effects: list[tuple[str, tw.DType, tw.DType]] = field(default_factory=list)  # a call, its parameter and result
    replaced: list[tuple[str, str]] = field(default_factory=list)  # a name, and a call whose result it takes
    untyped: list[tuple[str, tw.DType, bool]] = field(default_factory=list)  # Python numbers that meet one type only
    tensors: list[tuple[str, tw.DType]] = field(default_factory=list)  # names that may be swapped


@contextmanager
def scope(writer: Writer) -> Iterator[None]:
    """Forget at the end what was declared inside."""
    kept = writer.variables, writer.assignable, writer.pure, writer.state
    writer.variables = {t: list(names) for t, names in writer.variables.items()}
    writer.assignable = {t: list(names) for t, names in writer.assignable.items()}
    writer.pure = {t: list(calls) for t, calls in writer.pure.items()}
    writer.state = State(*(copy(v) for v in vars(writer.state).values()))
    try:
        yield
    finally:
        writer.variables, writer.assignable, writer.pure, writer.state = kept


# --- structures ----------------------------------------------------------------------------------------


def write_list(writer: Writer, indent: int, *_: object) -> None:
    """Make a list of one type, sometimes with a second name, or a list of lists."""
    dtype, name = writer.type(), writer.fresh("l")
    size = writer.integer(2, 4)
    items = [writer.of(dtype, 1) for _ in range(size)]
    if writer.chance(3):
        other = writer.type()
        parts = [writer.of(other, 1) for _ in range(2)]
        writer.put(indent, f"{name} = [[{', '.join(items)}], [{', '.join(parts)}]]")
        _declare_items(writer, f"{name}[1]", other, 2)
        name = f"{name}[0]"
    elif writer.chance(4):
        writer.put(indent, f"{name} = [{items[0]}] * {size}")
    else:
        writer.put(indent, f"{name} = [{', '.join(items)}]")
    _declare_items(writer, name, dtype, size)
    writer.state.lists.append((name, dtype, size))
    if writer.chance(4):
        alias = writer.fresh("l")
        writer.put(indent, f"{alias} = {name}")
        _declare_items(writer, alias, dtype, size)


def _declare_items(writer: Writer, name: str, dtype: tw.DType, size: int) -> None:
    for place in range(size):
        writer.declare(f"{name}[{place - size if writer.chance(3) else place}]", dtype)


def write_dict(writer: Writer, indent: int, *_: object) -> None:
    """Make a dict of values of one type, with a list in it at times."""
    dtype, name = writer.type(), writer.fresh("d")
    keys = writer.random.sample(['"a"', '"b"', "3", "(1, 2)", "None"], writer.integer(1, 3))
    entries = [f"{key}: {writer.of(dtype, 1)}" for key in keys]
    if writer.chance():
        other = writer.type()
        entries.append(f'"m": [{writer.of(other, 1)}, {writer.of(other, 1)}]')
        _declare_items(writer, f'{name}["m"]', other, 2)
    else:
        writer.state.dicts.append((name, dtype))
    writer.put(indent, f"{name} = {{{', '.join(entries)}}}")
    for key in keys:
        writer.declare(f"{name}[{key}]", dtype)


def write_queue(writer: Writer, indent: int, *_: object) -> None:
    """Make a deque: its items go round."""
    dtype, name = writer.type(), writer.fresh("q")
    writer.put(indent, f"{name} = deque([{', '.join(writer.of(dtype, 1) for _ in range(3))}])")
    _declare_items(writer, name, dtype, 3)
    writer.state.queues.append((name, dtype))


def write_untyped(writer: Writer, indent: int, *_: object) -> None:
    """Make a Python number that gets its type where it meets one."""
    # A loop gives them float32 or int32 where they meet nothing wider, so narrower types would differ.
    dtype = writer.choice([tw.float64, tw.float64, tw.float32, tw.int32])
    name = writer.fresh("acc")
    holder, place = (f"{name}", name) if writer.chance() else (name, f"{name}[0]")
    is_exact = writer.chance()
    number = _python_number(writer, dtype, is_exact)
    writer.put(indent, f"{holder} = {number if place == name else f'[{number}]'}")
    writer.state.untyped.append((place, dtype, is_exact))
    writer.variables.setdefault(dtype, []).append(f"{name_of(dtype)}({place})")


def _python_number(writer: Writer, dtype: tw.DType, is_exact: bool) -> str:
    """Return a number: one that float32 has too, or any."""
    if dtype.is_float and is_exact:
        return writer.pick("0.0", "1.5", "-2.0", "0.25")
    if dtype.is_float:
        return writer.pick("0.1", "0.0", "1.5", "-0.3", *(("-1e300", "1e-60") if dtype is tw.float64 else ()))
    return writer.pick("0", "3", "-7")


# --- classes -------------------------------------------------------------------------------------------


def inner_writer(writer: Writer, variables: dict[str, tw.DType], constants: dict[str, tw.DType]) -> Writer:
    """Return a writer for the body of a function outside of the kernel: it sees its parameters only."""
    inner = type(writer)(writer.random, writer.loose, writer.threads, writer.grid)
    inner.is_helper, inner.counter, inner.prelude = True, writer.counter, writer.prelude
    for name, dtype in variables.items():
        inner.declare(name, dtype)
    for name, dtype in constants.items():
        inner.declare(name, dtype, assignable=False)
    return inner


def write_body(inner: Writer, is_device: bool, indent: int = 1) -> list[str]:
    """Return lines that change variables; with branches and loops where the function is one of the device."""
    inner.is_plain = not is_device
    kinds = ["assign", "augment", "swap", *(["if", "for", "while", "state"] if is_device else ["unpack"])]
    for _ in range(inner.integer(1, 3)):
        getattr(inner, f"_{inner.pick(*kinds)}")(indent, 1, False)
    lines, inner.lines = inner.lines, []
    return lines


def write_early_return(writer: Writer, indent: int, result: tw.DType) -> None:
    """Write a return under a condition, at times with a change before it."""
    if writer.chance(3):
        writer.put(indent, f"if {writer.condition()}:")
        if writer.chance():
            writer._assign(indent + 1)
        writer.put(indent + 1, f"return {writer.of(result, 1)}")


def _methods(writer: Writer, fields: dict[str, tw.DType]) -> tuple[list[str], list[tuple[str, tw.DType, tw.DType]]]:
    """Return the lines of two methods that change their object, and their names with parameter and result."""
    lines, methods = [], []
    for number in range(writer.integer(1, 2)):
        parameter, result = writer.type(), writer.choice([*fields.values()])
        is_device = not writer.chance(3)
        inner = inner_writer(writer, {f"self.{f}": t for f, t in fields.items()} | {"x": parameter}, {"n": tw.int32})
        body = write_body(inner, is_device, 2)
        if is_device:
            write_early_return(inner, 2, result)
            body += inner.lines
            lines.append("    @tw.function")
        lines += [f"    def step{number}(self, x, n):", *body, f"        return {inner.of(result, 1)}", ""]
        methods.append((f"step{number}", parameter, result))
    return lines, methods


def write_object(writer: Writer, indent: int, *_: object) -> None:
    """Make an object of a class with methods that change it, or, where one is there, another object of its class."""
    fields = {name: writer.type() for name in ("a", "b", "c")[: writer.integer(1, 3)]}
    held = writer.type() if writer.chance(3) else None
    number = next(writer.counter)
    methods, signatures = _methods(writer, fields)
    parameters = "".join(f", {f}" for f in fields)
    if writer.chance():
        head = ["@dataclass", f"class Counter{number}:", *(f"    {f}: Any" for f in fields)]
        if held:
            head.append("    parts: Any = None")
    else:
        head = [f"class Counter{number}:", f"    def __init__(self{parameters}, parts=None):"]
        head += [f"        self.{f} = {f}" for f in fields] + ["        self.parts = parts"]
    writer.prelude += [*head, "", *methods, ""]
    name = writer.fresh("o")
    values = [writer.of(t, 1) for t in fields.values()]
    if held:
        values.append(f"[{writer.of(held, 1)}, {writer.of(held, 1)}]")
    writer.put(indent, f"{name} = Counter{number}({', '.join(values)})")
    if writer.chance(3):  # in a list, under another name
        holder = writer.fresh("box")
        writer.put(indent, f"{holder} = {writer.pick('[{0}]', '({0}, 1)', '[0, {0}]').format(name)}")
    for f, dtype in fields.items():
        writer.declare(f"{name}.{f}", dtype)
    if held:
        _declare_items(writer, f"{name}.parts", held, 2)
    for method, parameter, result in signatures:
        writer.state.effects.append((f"{name}.{method}({{x}}, n)", parameter, result))


def write_value(writer: Writer, indent: int, *_: object) -> None:
    """Make a frozen dataclass or a NamedTuple, which is replaced by the next one."""
    fields = {name: writer.type() for name in ("a", "b", "c")[: writer.integer(1, 3)]}
    number = next(writer.counter)
    parameter, is_device, is_tuple = writer.type(), writer.chance(), writer.chance()
    inner = inner_writer(writer, {f"{f}_": t for f, t in fields.items()} | {"x": parameter}, {"n": tw.int32})
    body = write_body(inner, is_device, 2)
    head = [f"class Value{number}(NamedTuple):"] if is_tuple else ["@dataclass(frozen=True)", f"class Value{number}:"]
    renewed = f"Value{number}({', '.join(f'{f}_' for f in fields)})"
    if writer.chance(3):
        assigned = ", ".join(f"{f}={f}_" for f in fields)
        renewed = f"self._replace({assigned})" if is_tuple else f"replace(self, {assigned})"
    writer.prelude += [
        *head,
        *(f"    {f}: Any" for f in fields),
        "",
        *(["    @tw.function"] if is_device else []),
        "    def next(self, x, n):",
        *(f"        {f}_ = self.{f}" for f in fields),
        *body,
        f"        return {renewed}",
        "",
    ]
    name = writer.fresh("z")
    made = f"Value{number}({', '.join(writer.of(t, 1) for t in fields.values())})"
    writer.put(indent, f"{name} = {made}")
    for f, dtype in fields.items():
        writer.declare(f"{name}.{f}", dtype, assignable=False)
    if is_tuple:
        for place, dtype in enumerate(fields.values()):
            writer.declare(f"{name}[{place}]", dtype, assignable=False)
    writer.state.replaced.append((name, f"{name}.next({writer.of(parameter, 1)}, n)"))
    writer.state.replaced.append((name, f"Value{number}({', '.join(writer.of(t, 1) for t in fields.values())})"))


# --- functions -----------------------------------------------------------------------------------------


def write_lambda(writer: Writer, indent: int, *_: object) -> None:
    """Name an expression that sees the current values, or a function of one value."""
    parameter, result, name = writer.type(), writer.type(), writer.fresh("look")
    with scope(writer):
        writer.variables[parameter].append("y")
        text = writer.of(result, 2)
    if writer.chance(3):
        writer.put(indent, f"def {name}(y):")
        writer.put(indent + 1, f"return {text}")
    else:
        writer.put(indent, f"{name} = lambda y: {text}")
    call = f"{name}({{x}})"
    if writer.chance(4):
        if "def apply(f, x):" not in writer.prelude:
            writer.prelude += ["def apply(f, x):", "    return f(x)", ""]
        call = f"apply({name}, {{x}})"
    writer.pure.setdefault(result, []).append((call, parameter))


def write_nested(writer: Writer, indent: int, *_: object) -> None:
    """Define a function inside of the kernel that changes the kernel's variables and items."""
    if writer.functions_left <= 0:
        return write_lambda(writer, indent)
    writer.functions_left -= 1
    parameter, result, name = writer.type(), writer.type(), writer.fresh("put")
    given = writer.fresh("x")
    outside = {n for names in writer.assignable.values() for n in names if n.isidentifier()}
    outside |= {n for n, _call in writer.state.replaced} | {n for n, *_ in writer.state.untyped if n.isidentifier()}
    held = (*writer.state.lists, *writer.state.dicts, *writer.state.queues)
    outside |= (
        {n for n, *_ in held if n.isidentifier()}
        | {n for n, _ in writer.state.tensors}
        | {n for n, *_ in writer.registers}
    )
    lines, writer.lines = writer.lines, []
    with scope(writer):
        writer.declare(given, parameter)
        for _ in range(writer.integer(1, 2)):
            writer.statement(indent + 1, 1, False)
        write_early_return(writer, indent + 1, result)
        writer.put(indent + 1, f"return {writer.of(result, 1)}")
    body, writer.lines = writer.lines, lines
    shared = sorted(n for n in outside if any(re.search(rf"\b{n}\b", line) for line in body))
    writer.put(indent, f"def {name}({given}):")
    if shared:
        writer.put(indent + 1, f"nonlocal {', '.join(shared)}")
    writer.lines += body
    writer.state.effects.append((f"{name}({{x}})", parameter, result))


def write_changer(writer: Writer, indent: int, *_: object) -> None:
    """Define a function outside of the kernel that changes the list that it is handed."""
    if not writer.state.lists or writer.functions_left <= 0:
        return write_lambda(writer, indent)
    writer.functions_left -= 1
    _, dtype, size = writer.choice(writer.state.lists)
    parameter, name, is_device = writer.type(), writer.fresh("bump"), writer.chance()
    items = {f"items[{place}]": dtype for place in range(size)}
    inner = inner_writer(writer, items | {"x": parameter}, {"n": tw.int32})
    body = write_body(inner, is_device)
    writer.prelude += [*(["@tw.function"] if is_device else []), f"def {name}(items, x, n):", *body]
    writer.prelude += [f"    return {inner.of(dtype, 1)}", ""]
    for known, of, length in writer.state.lists:
        if of is dtype and length == size:
            writer.state.effects.append((f"{name}({known}, {{x}}, {writer.pick('n', 'n=n')})", parameter, dtype))


def write_factory(writer: Writer, indent: int, *_: object) -> None:
    """Define a function that returns a function with a variable of its own."""
    if writer.functions_left <= 0:
        return write_lambda(writer, indent)
    writer.functions_left -= 1
    dtype, parameter = writer.type(), writer.type()
    name, made, is_device = writer.fresh("make"), writer.fresh("add"), writer.chance()
    inner = inner_writer(writer, {"held": dtype, "x": parameter}, {"n": tw.int32})
    body = write_body(inner, is_device, 2)
    writer.prelude += [*(["@tw.function"] if is_device else []), f"def {name}(held, n):", "    def add(x):"]
    writer.prelude += ["        nonlocal held", *body, f"        return {inner.of(dtype, 1)}", "    return add", ""]
    writer.put(indent, f"{made} = {name}({writer.of(dtype, 1)}, n)")
    writer.state.effects.append((f"{made}({{x}})", parameter, dtype))


def write_recursion(writer: Writer, indent: int, *_: object) -> None:
    """Define a function that calls itself down to a number that is known."""
    dtype, name = writer.type(), writer.fresh("rec")
    inner = inner_writer(writer, {"x": dtype}, {"n": tw.int32})
    start, step = inner.of(dtype, 1), inner.of(dtype, 1)
    inner.declare("deeper", dtype)
    end = inner.of(dtype, 1)
    writer.prelude += ["@tw.function", f"def {name}(x, depth, n):", "    if depth == 0:", f"        return {start}"]
    writer.prelude += [f"    deeper = {name}({step}, depth - 1, n)", f"    return {end}", ""]
    writer.pure.setdefault(dtype, []).append((f"{name}({{x}}, {writer.integer(0, 3)}, n)", dtype))


# --- statements ----------------------------------------------------------------------------------------


def call_of(writer: Writer) -> tuple[str, tw.DType]:
    """Return a call that changes state, and the type of its result."""
    text, parameter, result = writer.choice(writer.state.effects)
    return text.format(x=writer.of(parameter, 1)), result


def write_effect(writer: Writer, indent: int, depth: int, loop: bool) -> None:
    """Call what changes state: alone, in an expression with other reads, where it may not be evaluated."""
    if not writer.state.effects:
        return writer.statement(indent, depth, loop)
    call, dtype = call_of(writer)
    found = writer.target((dtype,))
    other, second = writer.of(dtype, 1), writer.choice(writer.state.effects)
    forms = [call]
    tests = [f"{call} {writer.pick(*COMPARISONS)} {other}"]
    tests.append(f"{writer.condition()} {writer.pick('and', 'or')} {tests[0]}")
    if found is not None:
        target = found[0]
        forms += [f"{target} = {call}", f"{target} = {call} if {writer.condition()} else {other}"]
        forms += [f"{target} = {other} if {tests[0]} else {writer.of(dtype, 1)}", f"{target} = [{call}, {other}][-1]"]
        forms += [f"{target}, _ = {other}, {call}", f"{target} = ({other}, {call})[0]"]
        operator = writer.pick("&", "|", "^") if not dtype.is_float else writer.pick("+", "-")
        forms += [f"{target} {operator}= {call}", f"{target} = {target} {operator} {call}"]
    truth = writer.target((tw.bool_,))
    if truth is not None:
        forms += [f"{truth[0]} = {writer.of(tw.bool_, 1)} {writer.pick('and', 'or')} ({tests[0]})"]
    if depth and writer.chance(3):
        writer.put(indent, f"if {writer.pick(*tests)}:")
        return writer.block(indent + 1, depth - 1, loop)
    if writer.chance(6) and second[2] is dtype:
        forms = [f"max({call}, {second[0].format(x=writer.of(second[1], 1))})"]
    writer.put(indent, writer.pick(*forms))


def write_replacement(writer: Writer, indent: int, depth: int, loop: bool) -> None:
    if not writer.state.replaced:
        return writer.statement(indent, depth, loop)
    name, made = writer.choice(writer.state.replaced)
    if writer.chance(4):
        made = f"{made} if {writer.condition()} else {name}"
    writer.put(indent, f"{name} = {made}")


def write_accumulation(writer: Writer, indent: int, depth: int, loop: bool) -> None:
    """Update a Python number by values of its type."""
    if not writer.state.untyped:
        return writer.statement(indent, depth, loop)
    name, dtype, is_exact = writer.choice(writer.state.untyped)
    value = writer.of(dtype, 1)
    if dtype.is_float:
        lines = [f"{name} += {value}", f"{name} = {name} - {value}", f"{name} = tw.maximum({name}, {value})"]
        lines += [f"{name} = {value}", f"{name} = {value} if {writer.condition()} else {name}"]
    else:
        lines = [f"{name} ^= {value}", f"{name} = ({name} & 255) + ({value} & 15)", f"{name} = {value} | {name}"]
    if writer.chance(4) and is_exact:  # others would be rounded to float32 in a loop in which they meet nothing
        lines = [f"{name} = {_python_number(writer, dtype, is_exact)}"]
    writer.put(indent, writer.pick(*lines))


def write_unpacking(writer: Writer, indent: int, *_: object) -> None:
    """Unpack values into variables and items."""
    targets = [t for t in (writer.target(), writer.target(), writer.target()) if t is not None]
    if len({name for name, _ in targets}) < 3:
        return writer._assign(indent)
    (a, at), (b, bt), (c, ct) = targets
    x, y, z = writer.of(at, 1), writer.of(bt, 1), writer.of(ct, 1)
    writer.put(
        indent,
        writer.pick(
            f"{a}, {b} = {x}, {y}", f"{a}, ({b}, {c}) = {x}, [{y}, {z}]", f"[{a}, {b}, {c}] = ({x}, {y}, {z})",
            f"*_, {a}, {b} = [{z}, {x}, {y}]", f"{a}, {c} = {x}, {z}",
        ),
    )  # fmt: skip


def write_list_change(writer: Writer, indent: int, depth: int, loop: bool) -> None:
    """Change a list by what only lists can: comprehensions, slices, append and pop, loops over items."""
    if not writer.state.lists:
        return writer.statement(indent, depth, loop)
    name, dtype, _ = writer.choice(writer.state.lists)
    with scope(writer):
        writer.variables[dtype].append("e")
        item = writer.of(dtype, 1)
        test = writer.condition()
    first, value = writer.fresh("e"), writer.of(dtype, 1)
    lines = [
        f"{name}[:] = [{item} for e in {name}]",
        f"{name}[:] = [{item} if k else e for k, e in enumerate({name})]",
        f"{name}[:] = [({item} if {test} else e) for e in {name}]",
        f"{name}[:] = {name}[1:] + {name}[:1]",
        f"{name}[0:2] = {name}[1], {value}",
        f"{name}.append({value}); {name}.pop(0)",
        f"{first} = {name}.pop(); {name}.insert(0, {first})",
        f"{name}.reverse()",
        f"{name}[:] = [{item} for e, _ in zip({name}, {name}[::-1])]",
        f"for e in {name}: {name}[0] = {item}",
    ]
    writer.put(indent, writer.pick(*lines))


def write_queue_change(writer: Writer, indent: int, depth: int, loop: bool) -> None:
    if not writer.state.queues:
        return writer.statement(indent, depth, loop)
    name, dtype = writer.choice(writer.state.queues)
    lines = f"{name}.rotate({writer.pick('1', '-1', '2')})", f"{name}.append({name}.popleft())"
    writer.put(indent, writer.pick(*lines, f"{name}.appendleft({writer.of(dtype, 1)}); {name}.pop()"))


def write_dict_change(writer: Writer, indent: int, depth: int, loop: bool) -> None:
    if not writer.state.dicts:
        return writer.statement(indent, depth, loop)
    name, dtype = writer.choice(writer.state.dicts)
    with scope(writer):
        writer.variables[dtype].append("e")
        item = writer.of(dtype, 1)
    lines = (
        f"{name}.update({{k: {item} for k, e in {name}.items()}})",
        f"{name} = {{k: {item} for k, e in {name}.items()}}",
    )
    writer.put(indent, writer.pick(*lines, f"for k, e in {name}.items(): {name}[k] = {item}"))


def write_walk(writer: Writer, indent: int, depth: int, loop: bool) -> None:
    """Loop over the items of a list or over places in it, while tracing; a device value may end the loop."""
    if not writer.state.lists or not depth:
        return write_list_change(writer, indent, depth, loop)
    name, dtype, size = writer.choice(writer.state.lists)
    with scope(writer):
        if writer.chance():
            place = writer.fresh("k")
            writer.put(indent, f"for {place} in tw.static_range({size}):")
            writer.declare(f"{name}[{place}]", dtype)
        else:
            item = writer.fresh("e")
            writer.put(indent, f"for {item} in {writer.pick(name, f'{name}[::-1]', f'tuple({name})')}:")
            writer.declare(item, dtype)
        writer.block(indent + 1, depth - 1, True)


def write_gathering(writer: Writer, indent: int, depth: int, loop: bool) -> None:
    """Combine what a comprehension or generator gives."""
    known = [entry for entry in writer.state.lists if entry[1] is not tw.bool_]
    if not known:
        return writer.statement(indent, depth, loop)
    name, dtype, _ = writer.choice(known)
    found, truth = writer.target((dtype,)), writer.target((tw.bool_,))
    with scope(writer):
        writer.variables[dtype].append("e")
        item, test = writer.of(dtype, 1), writer.of(tw.bool_, 1)
    lines = []
    if found is not None and dtype.is_float:
        lines = [f"{found[0]} = sum({item} for e in {name})", f"{found[0]} = sum([{item} for e in {name}], {found[0]})"]
    elif found is not None:
        small = f"(({item}) & 7)"
        lines = [f"{found[0]} = sum({small} for e in {name})", f"{found[0]} = sum([{small} for e in {name}])"]
        lines += [f"{found[0]} = {writer.pick('max', 'min')}({item} for e in {name})"] if "{" in item else []
        lines += [f"{found[0]} = {writer.pick('max', 'min')}(*[{item} for e in {name}])"]
    if truth is not None:
        lines += [f"{truth[0]} = tw.bool_({writer.pick('any', 'all')}({test} for e in {name}))"]
    if not lines:
        return writer._assign(indent)
    writer.put(indent, writer.pick(*lines))


def write_tensor_swap(writer: Writer, indent: int, depth: int, loop: bool) -> None:
    """Choose or swap tensors by a condition, and read or write the element of this thread."""
    known = {t for _, t in writer.state.tensors}
    if not known:
        return writer.statement(indent, depth, loop)
    dtype = writer.choice(sorted(known, key=str))
    a, b = writer.random.sample([n for n, t in writer.state.tensors if t is dtype], 2)
    found = writer.target((dtype,))
    lines = [f"{a}, {b} = {b}, {a}", f"{a}, {b} = ({b}, {a}) if {writer.condition()} else ({a}, {b})"]
    lines += [f"{a}[i] = {writer.of(dtype, 1)}", f"({a} if {writer.condition()} else {b})[i] = {writer.of(dtype, 1)}"]
    if found is not None:
        lines += [f"{found[0]} = {a}[i]", f"{found[0]} = ({a} if {writer.condition()} else {b})[i]"]
    writer.put(indent, writer.pick(*lines))


def write_list_exchange(writer: Writer, indent: int, depth: int, loop: bool) -> None:
    """Let names hold other lists: each other's, or new ones."""
    if not writer.state.lists:
        return writer.statement(indent, depth, loop)
    name, dtype, size = writer.choice(writer.state.lists)
    alike = [n for n, of, length in writer.state.lists if of is dtype and length == size and n != name]
    if alike and writer.chance():
        other = writer.pick(*alike)
        writer.put(indent, f"{name}, {other} = {other}, {name}")
    elif name.isidentifier():
        writer.put(indent, f"{name} = [{', '.join(writer.of(dtype, 1) for _ in range(size))}]")
    else:
        write_list_change(writer, indent, depth, loop)


STRUCTURES: list[Callable[..., None]] = [
    write_list, write_list, write_list, write_dict, write_object, write_object, write_value, write_queue, write_untyped,
    write_untyped,
]  # fmt: skip
FUNCTIONS: list[Callable[..., None]] = [
    write_lambda,
    write_nested,
    write_nested,
    write_changer,
    write_factory,
    write_recursion,
]
STATEMENTS: list[Callable[..., None]] = [
    write_effect, write_effect, write_effect, write_replacement, write_accumulation, write_unpacking, write_list_change,
    write_list_change, write_queue_change, write_dict_change, write_walk, write_gathering, write_tensor_swap,
    write_list, write_lambda, write_nested, write_changer, write_dict, write_value, write_object, write_list_exchange,
    write_tensor_swap,
]  # fmt: skip
IN_HELPERS = [
    write_list, write_dict, write_untyped, write_accumulation, write_unpacking, write_list_change, write_walk,
    write_gathering, write_lambda,
]  # fmt: skip
