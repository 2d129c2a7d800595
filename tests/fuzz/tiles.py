"""Writes arithmetic on fragments, slices of tensors and collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.fuzz.expressions import COMPARISONS, name_of
from tests.fuzz.trial import Argument

import tilewright as tw

if TYPE_CHECKING:
    from tests.fuzz.programs import Writer

GROUPED = (tw.int32, tw.uint32, tw.int64, tw.uint64, tw.float32, tw.float64)  # types of collectives


def tile_slice(writer: Writer, size: int) -> tuple[str, int]:
    """Return the text of a slice of so many elements, and how many of them it takes."""
    start = writer.integer(0, size - 1)
    stop = writer.integer(start + 1, size)
    step = writer.choice([1, 1, 2, -1])
    if step < 0:
        return "::-1", size
    text = f"{start or ''}:{stop if writer.chance() else stop - size or ''}" + (f":{step}" if step > 1 else "")
    return text, len(range(start, stop, step))


def tile_expression(writer: Writer, tile: str, dtype: tw.DType, size: int, depth: int = 2) -> str:
    """Return an expression of a tensor of this type and size: tiles with each other and with numbers."""
    same = [f"{t}" for t, of, length in writer.registers if of is dtype and length == size] or [tile]
    if depth == 0:
        return writer.pick(*same)
    a = tile_expression(writer, tile, dtype, size, depth - 1)
    b = tile_expression(writer, tile, dtype, size, depth - 1) if writer.chance() else writer.of(dtype, 1)
    test = f"({a} {writer.pick(*COMPARISONS)} {b})"
    forms = [f"tw.where({test}, {a}, {b})", f"tw.where({writer.of(tw.bool_, 1)}, {a}, {writer.pick(*same)})", f"+{a}"]
    if dtype is tw.bool_:
        return writer.pick(*forms, test, f"(~{a})", f"({a} {writer.pick('&', '|', '^')} {b})")
    forms += [f"tw.{writer.pick('minimum', 'maximum')}({a}, {b})"]
    if dtype.is_float:
        forms += [f"({a} {writer.pick('+', '-')} {b})", f"tw.abs({a} * {b})", f"(-{a})", f"({a} / {b})"]
        forms += [f"(1.5 - {a})", f"tw.sqrt(abs({a}))", f"({a} + 0.1)"]
    else:
        forms += [f"({a} {writer.pick('&', '|', '^')} {b})", f"(~{a})", f"({a} >> {writer.integer(0, dtype.bits - 1)})"]
        forms += [f"({a} // 3)", f"({a} % 7)", f"(({a} & 3) ** 2)"]
        if dtype.is_signed:
            forms += [
                f"(({a} >> 1) + (({b}) >> 1))",
                f"(({a} >> {dtype.bits // 2}) * 3)" if dtype.bits > 8 else f"({a} | 1)",
            ]
        else:
            forms += [f"({a} {writer.pick('+', '-', '*')} {b})", f"({a} ** 3)", f"(5 - {a})"]
    source = writer.choice(writer.registers)
    if source[2] == size and source[1] is not dtype:
        forms += [f"{source[0]}.to({name_of(dtype)})"]
    return writer.pick(*forms)


def write_tile(writer: Writer, indent: int, depth: int, loop: bool) -> None:
    """Compute with all elements of a fragment, or with a slice of it."""
    if not writer.registers:
        return writer.statement(indent, depth, loop)
    name, dtype, size = writer.choice(writer.registers)
    value = tile_expression(writer, name, dtype, size)
    part, length = tile_slice(writer, size)
    parts = [f"{t}[{p}]" for t, of, n in writer.registers if of is dtype for p in [f"{n - length}:"] if n >= length]
    operator = writer.pick("&", "|", "^") if not dtype.is_float else writer.pick("+", "-")
    lines = [f"{name}[...] = {value}", f"{name}[:] = {value}", f"{name} {operator}= {value}"]
    lines += [f"{name}[{part}] = {writer.pick(*parts)}", f"{name}[{part}] = {writer.of(dtype, 1)}"]
    lines += [f"{name}[{part}] {operator}= {writer.of(dtype, 1)}", f"{name}[{part}] {operator}= {writer.pick(*parts)}"]
    found = writer.target((dtype,))
    if found is not None:
        kinds = ['"min"', '"max"'] if dtype.is_float else ['"min"', '"max"', '"and"', '"or"', '"xor"']
        if dtype.is_float or not dtype.is_signed:
            kinds.append('"add"')
        if dtype is not tw.bool_:
            lines += [f"{found[0]} = ({value}).reduce({writer.pick(*kinds)})"]
            lines += [f"{found[0]} = {name}[{part}].reduce({writer.pick(*kinds)}, init={writer.of(dtype, 1)})"]
        lines += [f"{found[0]} = {name}[{part}][{writer.pick('0', str(length - 1))}]"]
    writer.put(indent, writer.pick(*lines))


def write_row(writer: Writer, indent: int, *_: object) -> None:
    """Update a slice of the row that this thread has in a global tensor."""
    if not writer.registers:
        return writer._assign(indent)
    name, dtype, size = writer.choice(writer.registers)
    rows = [a.name for a in writer.arguments if a.name.startswith("rows") and a.dtype is dtype]
    if rows and writer.chance():
        rows_name = writer.pick(*rows)
    else:
        rows_name = writer.fresh("rows")
        writer.arguments.append(Argument(rows_name, dtype, (writer.grid * writer.threads, 8), is_static=True))
    start = writer.integer(0, 8 - size)
    part = (
        f"{start}:{start + size}"
        if writer.chance() or size > 4
        else writer.pick("::2", "1::2", "::-2")
        if size == 4
        else ":2"
    )
    operator = writer.pick("&", "|", "^") if not dtype.is_float else writer.pick("+", "-")
    found, one = writer.target((dtype,)), writer.of(dtype, 1)
    lines = [
        f"{name}[...] = {rows_name}[i, {part}]",
        f"{rows_name}[i, {part}] = {tile_expression(writer, name, dtype, size)}",
    ]
    lines += [f"{rows_name}[i, {part}] {operator}= {name}", f"{rows_name}[i, {part}] = {one}"]
    lines += [f"{name} {operator}= {rows_name}[i, {part}]", f"tw.copy({rows_name}[i, {part}], {name})"]
    if found is not None:
        lines += [
            f"{found[0]} = {rows_name}[i, 1:7:2][{writer.integer(0, 2)}]",
            f"{found[0]} = {rows_name}[i, {part}][1]",
        ]
    writer.put(indent, writer.pick(*lines))


def write_collective(writer: Writer, indent: int, *_: object) -> None:
    """Combine the values of a group of threads, all of which come by."""
    found = writer.target(GROUPED)
    if found is None:
        return writer._own_atomic(indent)
    name, dtype = found
    groups = ['"block"', '"warp"']
    if writer.threads % 32 == 0:
        groups += ["8", "16", "2"]
    group, value = writer.pick(*groups), writer.of(dtype, 1)
    kinds = ['"min"', '"max"']
    if not dtype.is_float:
        kinds += ['"and"', '"or"', '"xor"', *(['"add"'] if not dtype.is_signed else [])]
        function = "(lambda a, b: a ^ b)"
    else:
        kinds += ['"add"']
        function = "(lambda a, b: a + b)"
    kind = writer.pick(*kinds, function)
    lines = [f"{name} = tw.reduce({value}, {kind}, {group})"] * 2
    if not dtype.is_float:
        exclusive = writer.pick("", ", exclusive=True, initial=0") if "lambda" not in kind else ""
        if "min" in kind or "max" in kind or "and" in kind:
            exclusive = ""
        lines += [f"{name} = tw.scan({value}, {kind}, {group}{exclusive})"] * 2
    lines += [f"{name} = tw.broadcast({value}, {writer.pick('0', '1')}, {group})"]
    sizes = [entry for entry in writer.registers if entry[1] is dtype]
    if sizes:
        lines += [f"{name} = tw.reduce({writer.choice(sizes)[0]}, {kind}, {group})"]
    writer.put(indent, writer.pick(*lines))


TILES: list[Callable[..., None]] = [write_tile, write_tile, write_row]
