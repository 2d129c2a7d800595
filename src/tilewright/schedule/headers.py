"""C headers of packages: arguments in the order of the machine code, and how to launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.backends.cpp.writer import block_comment, string
from tilewright.schedule.functions import ALIGNMENT, PackagedFunction, c_name, constant_file

# The types of a host: elements that C has no type for are shown by their bits.
_C_TYPES = {
    "bool": "uint8_t",
    "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
    "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t",
    "float16": "uint16_t", "bfloat16": "uint16_t",
    "float32": "float", "tfloat32": "float", "float64": "double",
}  # fmt: skip


def header_text(name: str, functions: Sequence[PackagedFunction]) -> str:
    """Return the header of a package, which compiles as C99 and as C++11.

    For each function f it has: `struct f_arguments`, the parameters of the machine code in order; macros `f_ENTRY`,
    `f_BLOCK_X` to `_Z`, `f_SHARED_BYTES`, `f_ALIGNMENT`; functions `f_grid_x` to `_z` of the sizes that only the launch
    knows; `f_parameters`, which fills the array of pointers that `cuLaunchKernel` and `hipModuleLaunchKernel` take;
    and, for NVIDIA targets where the macro `<NAME>_LAUNCH` is defined, `f_launch`, which calls `cuLaunchKernel`.
    """
    guard = f"TILEWRIGHT_{name.upper()}_H"
    launch = f"{name.upper()}_LAUNCH"
    has_cuda = any(not function.is_amd for function in functions)
    lines = [
        f"/* The functions of the package {name}, for C and C++. Made by Tilewright.",
        " *",
        " * Each function's machine code is in a file of its own, which the manifest names. Arrays that are only read",
        " * must not share memory with those that are written, and each begins at a multiple of ALIGNMENT bytes.",
        " */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        *(_driver(launch) if has_cuda else []),
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
    ]
    for function in functions:
        lines += [*_function(function, name, launch), ""]
    lines += ["#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */", ""]
    return "\n".join(lines)


def _driver(launch: str) -> list[str]:
    """Return the declarations of the CUDA driver that a launch takes, where cuda.h has not made them."""
    return [
        f"/* With {launch} defined, f_launch launches f through the CUDA driver. What it takes of cuda.h is declared",
        " * here; a file that includes cuda.h too includes it first. */",
        f"#if defined({launch}) && !defined(CUDA_VERSION) && !defined(TILEWRIGHT_CUDA_DRIVER)",
        "#define TILEWRIGHT_CUDA_DRIVER",
        "typedef struct CUfunc_st *CUfunction;",
        "typedef struct CUstream_st *CUstream;",
        "#ifdef __cplusplus",
        'extern "C"',
        "#endif",
        "int cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,",
        "                   unsigned int block_x, unsigned int block_y, unsigned int block_z,",
        "                   unsigned int shared_bytes, CUstream stream, void **parameters, void **extra);",
        "#endif",
        "",
    ]


def _function(function: PackagedFunction, package: str, launch: str) -> list[str]:
    name = function.name
    fields = _fields(function, package)
    block, sizes = function.kernel.block, function.dimensions.values()
    takes = ", ".join(f"int64_t {size}" for size in sizes) or "void"
    shared = function.device_source.dynamic_shared_bytes
    calls = ", ".join(
        f"{array.name}: {array.element_type} {_shape(function.extents(array))}" for array in function.arrays
    )
    lines = [
        block_comment(f"{name}, for {function.kernel.plan.target.arch.name}. {calls}"),
        f"struct {name}_arguments {{",
        *(f"    {declaration}; {comment}" for declaration, _, comment in fields),
        "};",
        "",
        f"#define {name}_ENTRY {string(function.device_source.name)}",
        *(f"#define {name}_BLOCK_{axis} {extent}" for axis, extent in zip("XYZ", block, strict=True)),
        f"#define {name}_SHARED_BYTES {shared} /* dynamic shared memory */",
        f"#define {name}_ALIGNMENT {ALIGNMENT}",
        f"#define {name}_PARAMETERS {len(fields)}",
        "",
    ]
    if all(isinstance(extent, int) for extent in function.grid):
        lines += [f"#define {name}_GRID_{axis} {extent}" for axis, extent in zip("XYZ", function.grid, strict=True)]
    for axis, extent in zip("xyz", function.grid, strict=True):
        # The sizes are not negative, so that C's division is Python's.
        text = str(extent).replace("//", "/")
        unused = [f"(void){size};" for size in sizes]
        lines.append(
            f"static inline unsigned int {name}_grid_{axis}({takes}) "
            f"{{ {' '.join([*unused, f'return (unsigned int)({text});'])} }}"
        )
    lines += [
        "",
        f"static inline void {name}_parameters(struct {name}_arguments *arguments, void **parameters) {{",
        *(f"    parameters[{n}] = (void *)&arguments->{field};" for n, (_, field, _) in enumerate(fields)),
        "}",
    ]
    if not function.is_amd:
        passed = ", ".join(sizes)
        given = "".join(f", int64_t {size}" for size in sizes)
        lines += [
            "",
            f"#ifdef {launch}",
            f"static inline int {name}_launch(",
            f"    CUfunction function, CUstream stream, struct {name}_arguments *arguments{given}) {{",
            f"    void *parameters[{name}_PARAMETERS];",
            f"    {name}_parameters(arguments, parameters);",
            "    return (int)cuLaunchKernel(",
            f"        function, {name}_grid_x({passed}), {name}_grid_y({passed}), {name}_grid_z({passed}),",
            f"        {name}_BLOCK_X, {name}_BLOCK_Y, {name}_BLOCK_Z, {name}_SHARED_BYTES, stream, parameters, NULL);",
            "}",
            "#endif",
        ]
    return lines


def _fields(function: PackagedFunction, package: str) -> list[tuple[str, str, str]]:
    """Return the declaration, the name and the comment of each parameter of the machine code."""
    arrays: dict[str, Any] = {
        array.name: array for array in (*function.arrays, *function.kernel.constants, *function.held)
    }
    written = function.lowered.written
    found: list[tuple[str, str, str]] = []
    taken: set[str] = set()
    for parameter in function.machine_parameters:
        name, part, element = parameter["argument"], parameter["part"], parameter["type"]
        c_type = _C_TYPES.get(element, "uint8_t")  # 8-bit floats by their bits
        field = c_name(name)
        if part == "pointer":
            c_type = f"{'' if name in written else 'const '}{c_type} *"
            array = arrays[name]
            shape = f"{_shape(function.extents(array))}, strides {_shape(function.strides(array))}"
            comment = f"{element} {shape}{_contents(package, function, array)}"
        elif part == "value":
            c_type, comment = f"{c_type} ", element
        else:
            of = function.extents if part == "shape" else function.strides
            field = f"{field}_{part}{parameter['mode']}"
            c_type, comment = f"{c_type} ", str(of(arrays[name])[parameter["mode"]])
        while field in taken:
            field += "_"
        taken.add(field)
        found.append((f"{c_type}{field}", field, block_comment(comment)))
    return found


def _contents(package: str, function: PackagedFunction, array: Any) -> str:  # Any: an array, or memory of a cache
    if array in function.held:
        return ", memory that no other launch uses at the time"
    if array not in function.kernel.constants:
        return ""
    number = next(n for n, constant in enumerate(function.kernel.constants) if constant is array)
    return f", the contents of {constant_file(package, function.name, number)}"


def _shape(sizes: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, sizes))})"
