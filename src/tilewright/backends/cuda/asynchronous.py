"""How asynchronous copies from global to shared memory are written."""

from __future__ import annotations

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.cuda import prelude
from tilewright.dtypes import bool_, int32
from tilewright.ir.ops import AsyncCommit, AsyncCopy, AsyncWait, Constant

_LONGEST_CALL = 90


def copy(printer: Printer, op: AsyncCopy) -> None:
    """Print a call that starts an asynchronous copy."""
    if not printer.arch.has_cp_async:
        raise printer.refuse(
            op,
            f"cp.async needs sm_80 or later, and the target is {printer.arch}",
            "copy through registers: load from global memory, then store to shared memory",
        )
    valid = op.valid.definition
    always = op.valid.dtype is bool_ and isinstance(valid, Constant) and bool(valid.value)
    size = op.elements * op.source.dtype.bytes
    some_of = op.elements if op.valid.dtype is int32 else 0
    name, definition = prelude.cp_async(size, op.cache, zero_fill=not always, some_of=some_of, hints=op.hints)
    printer.prelude.need(definition)
    arguments = [address(printer, op.destination, op.destination_index), address(printer, op.source, op.source_index)]
    if not always:
        arguments.append(exact(printer, op.valid))
    text = f"{name}({', '.join(a.text for a in arguments)});"
    if len(text) > _LONGEST_CALL:
        text = f"{name}(\n    " + ",\n    ".join(a.text for a in arguments) + ");"
    printer.statement(text, op)


def commit(printer: Printer, op: AsyncCommit) -> None:
    """Print the call that closes a group of asynchronous copies."""
    # Without asynchronous copies there is nothing to commit, and they are refused below sm_80.
    if printer.arch.has_cp_async:
        printer.prelude.need(prelude.CP_ASYNC_COMMIT)
        printer.statement("cp_async_commit();", op)


def wait(printer: Printer, op: AsyncWait) -> None:
    """Print the call that waits for asynchronous copies."""
    if not printer.arch.has_cp_async:
        return
    if op.pending is None:
        printer.prelude.need(prelude.CP_ASYNC_WAIT_ALL)
        printer.statement("cp_async_wait_all();", op)
    else:
        printer.prelude.need(prelude.CP_ASYNC_WAIT)
        printer.statement(f"cp_async_wait<{op.pending}>();", op)
