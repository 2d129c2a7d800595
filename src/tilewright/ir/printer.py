"""The IR as text, for people who work on Tilewright: one line an op, blocks indented."""

from __future__ import annotations

from tilewright.ir.core import Block, Kernel, Op, Parameter, Value
from tilewright.ir.ops import Constant


def to_text(kernel: Kernel) -> str:
    """Return a kernel's IR as text; equal kernels give equal text."""
    return _Printer().kernel(kernel)


class _Printer:
    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.lines: list[str] = []

    def kernel(self, kernel: Kernel) -> str:
        parameters = ", ".join(self._parameter(p) for p in kernel.parameters)
        self.lines.append(f"kernel {kernel.name}({parameters}) block={kernel.block} {{")
        for map in kernel.tensor_maps:
            self.lines.append(f"  map {map.name} of {map.buffer.name} box={map.box} swizzle={map.swizzle}")
        for requirement in kernel.requirements:
            self.lines.append(f"  require {requirement.message}")
        self._block(kernel.body, 1)
        self.lines.append("}")
        return "\n".join(self.lines) + "\n"

    def _parameter(self, parameter: Parameter) -> str:
        target = parameter.target
        if isinstance(target, Value):
            return f"{self._name(target)}: {target.type}"
        return f"{target.name}: {target.dtype}*"

    def _name(self, value: Value) -> str:
        if isinstance(value.definition, Constant):
            return f"{value.definition.value}"
        if value not in self.names:
            self.names[value] = f"%{len(self.names)}" + (f".{value.name}" if value.name else "")
        return self.names[value]

    def _block(self, block: Block, depth: int) -> None:
        for op in block.ops:
            self._op(op, depth)

    def _op(self, op: Op, depth: int) -> None:
        pad = "  " * depth
        results = ", ".join(f"{self._name(r)}: {r.type}" for r in op.results)
        words = [type(op).__name__.lower()]
        words += [f"{k}={v}" for k, v in op.attributes.items() if v is not None and v is not False]
        words += [self._name(v) for v in op.operands]
        self.lines.append(pad + (f"{results} = " if results else "") + " ".join(words))
        for block in op.blocks:
            arguments = ", ".join(f"{self._name(a)}: {a.type}" for a in block.arguments)
            self.lines.append(f"{pad}  ({arguments}) {{")
            self._block(block, depth + 2)
            self.lines.append(f"{pad}  }}")
