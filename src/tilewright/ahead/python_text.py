"""The Python loader of a package, and the file that registers its kernels as operators of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count
from pathlib import Path

from tilewright.ahead.c_text import describe, limits_of
from tilewright.ahead.functions import Exported, ExportedArray, ExportedFunction, ExportedNumber, Variant
from tilewright.dtypes import DType
from tilewright.ir.core import Buffer, TensorMap
from tilewright.runtime.tensor_maps import element_code, swizzle_code


def file_of(package: str, function: ExportedFunction, variant: Variant) -> str:
    """Return the name of the file of a variant's machine code."""
    return f"{package}.{function.name}.{variant.arch.name}.cubin"


def loader_text(package: str, functions: Sequence[ExportedFunction]) -> str:
    """Return the loader: what all loaders have, and tables of this package's kernels."""
    lines = [
        f'"""Kernels of the package {package}. Made by Tilewright, which need not be installed.',
        "",
        "Call them with arrays on a GPU (of PyTorch, of any library with __cuda_array_interface__, or `Array`) and",
        "numbers; `stream=` is a CUDA handle: without it PyTorch's current one for its tensors, else the default one.",
        "",
        *(f"    {f.name}({', '.join(x.name for x in f.arguments)})" for f in functions),
        '"""',
        "",
        _loader(),
        "",
    ]
    for function in functions:
        lines += [*_function(package, function), ""]
    names = ", ".join(f'"{function.name}"' for function in functions)
    return "\n".join([*lines, f'__all__ = ["Array", "PackageError", {names}]', ""])


def torch_text(package: str, functions: Sequence[ExportedFunction]) -> str:
    """Return what registers the kernels as `torch.ops.<package>.<name>`, operators that write in place."""
    lines = [
        f'"""Register the kernels of the package {package} as torch.ops.{package}.<name>, when imported.',
        "",
        "The operators write arguments in place, as the kernels do. They have no gradients, and refuse tensors that",
        "require one. Under torch.compile each is one call. Made by Tilewright, which need not be installed.",
        '"""',
        "",
        "import os",
        "import sys",
        "",
        "import torch",
        "",
        "sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))",
        "try:",
        f"    import {package} as _kernels",
        "finally:",
        "    del sys.path[0]",
        "",
        f'_library = torch.library.Library("{package}", "FRAGMENT")',
        "",
        "",
        "def _register(name, schema, function):",
        '    _library.define(f"{name}({schema}) -> ()")',
        '    _library.impl(name, lambda *args: function(*args), "CUDA")',
        '    _library.impl(name, lambda *args: None, "Meta")  # nothing is made, and nothing launched',
        "",
        "",
    ]
    for function in functions:
        arrays = count()
        schema = ", ".join(_schema(argument, arrays) for argument in function.arguments)
        lines.append(f'_register("{function.name}", "{schema}", _kernels.{function.name})')
    return "\n".join([*lines, ""])


@cache
def _loader() -> str:
    """Return the text of `_loader.py` behind its docstring."""
    text = Path(__file__).with_name("_loader.py").read_text(encoding="utf-8")
    return text[text.index("import ctypes") :].rstrip()


def _schema(argument: Exported, numbers: Iterator[int]) -> str:
    if isinstance(argument, ExportedArray):
        return f"Tensor(a{next(numbers)}!) {argument.name}" if argument.written else f"Tensor {argument.name}"
    kind = "bool" if argument.dtype.name == "bool" else "float" if argument.dtype.is_float else "int"
    return f"{kind} {argument.name}"


def _function(package: str, function: ExportedFunction) -> list[str]:
    said = "\n".join([function.doc, "", *(f"{x.name}: {describe(x)}" for x in function.arguments)]).strip()
    lines = [f"{function.name} = _Function(", f'    "{function.name}",', f"    {said!r},", "    ("]
    lines += [f"        {_argument(x)}," for x in function.arguments]
    lines += ["    ),", "    ("]
    for variant in function.variants:
        lines += [f"        {line}" for line in _variant(package, function, variant)]
    return [*lines, "    ),", ")"]


def _argument(argument: Exported) -> str:
    if isinstance(argument, ExportedNumber):
        return f'_NumberArgument("{argument.name}", "{argument.dtype.name}")'
    modes = [
        f"({extent}, {divisor}, {stride}, {step})"
        for extent, stride, divisor, step in zip(argument.extents, argument.strides, *argument.divisors, strict=True)
    ]
    table = f"({', '.join(modes)}{',' if len(modes) == 1 else ''})"
    rest = f"{argument.alignment}, {argument.wide}, {argument.written}, {argument.read}"
    return f'_ArrayArgument("{argument.name}", "{argument.dtype.name}", {table}, {rest})'


def _variant(package: str, function: ExportedFunction, variant: Variant) -> list[str]:
    kernel = variant.lowered.kernel
    taken = f"lambda {', '.join(x.name for x in function.arguments)}: " if function.arguments else "lambda: "
    grid = [extent.text("python") for extent in variant.grid]
    limits = tuple(zip(limits_of(variant), kernel.cluster, strict=True))
    checks = [*_requirements(function, variant), repr(limits)]
    cluster = kernel.cluster[0] * kernel.cluster[1] * kernel.cluster[2]
    return [
        "_Variant(",
        f"    {variant.capability}, {variant.is_exact}, "
        f'"{file_of(package, function, variant)}", "{variant.lowered.source.name}", {variant.block},',
        f"    {taken}({', '.join(grid)}),",
        f"    {taken}{_shared(function, variant)},",
        f"    {taken}({', '.join(checks)},)[-1],",
        f"    {taken}({' '.join(f'{x},' for x in _values(variant))}),",
        f"    {taken}({' '.join(f'{_map(variant, map)},' for map in variant.maps)}),",
        f"    {tuple((x.id, x.value) for x in variant.attributes)}, {cluster},",
        "),",
    ]


def _requirements(function: ExportedFunction, variant: Variant) -> list[str]:
    text, found = variant.printer("python").text, []
    for requirement in variant.lowered.kernel.requirements:
        message = f"{function.name}: {requirement.message}; {requirement.help}"
        if requirement.shown is not None and "{value}" in message:
            before, _, after = message.partition("{value}")
            found.append(
                f"require({text(requirement.condition)}, {before!r} + str({text(requirement.shown)}) + {after!r})"
            )
        else:
            found.append(f"require({text(requirement.condition)}, {message!r})")
    return found


def _shared(function: ExportedFunction, variant: Variant) -> str:
    kernel, text = variant.lowered.kernel, variant.printer("python").text
    if not kernel.launch_sized:
        return str(variant.lowered.source.dynamic_shared_bytes)
    last = kernel.launch_sized[-1]
    start = kernel.launch_sized_start
    bytes = f"{start} + {text(last.place)} + {text(last.elements)} * {last.buffer.dtype.bytes}"
    most = variant.arch.shared_bytes_optin
    why = f"{function.name}: a block has {most} bytes of shared memory"
    return f"({bytes}, require(0 <= {bytes} <= {most}, {why!r}))[0]"


def _values(variant: Variant) -> list[str]:
    found = []
    for parameter in variant.slots:
        if isinstance(parameter.target, Buffer):
            found.append(f'("uint64", {variant.argument(parameter.argument).name}.data)')
            continue
        dtype = parameter.target.type
        assert isinstance(dtype, DType), parameter
        found.append(f'("{dtype.name}", {variant.leaf(parameter, "python")})')
    return found


def _map(variant: Variant, map: TensorMap) -> str:
    text, array = variant.printer("python").text, variant.array_of(map.buffer)
    extents, strides = ([text(value) for value in values] for values in (map.extents, map.strides))
    steps = map.steps or (1,) * map.rank
    box = tuple(extent * step for extent, step in zip(map.box, steps, strict=True))
    address = f"{array.name}.data + {map.dtype.bytes} * {text(map.start)}"
    return (
        f'("{array.name}", {element_code(map)}, {map.dtype.bytes}, {address}, ({", ".join(extents)},), '
        f"({', '.join(strides)},), {box}, {tuple(steps)}, {swizzle_code(map)}, {int(map.nan)})"
    )
