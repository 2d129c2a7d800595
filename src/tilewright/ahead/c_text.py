"""The C header of a package, and the source of its launchers: C99, with nothing of CUDA at compile time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from tilewright.ahead.functions import Exported, ExportedArray, ExportedFunction, Variant
from tilewright.arch import MAX_GRID
from tilewright.backends.cpp.writer import block_comment, string
from tilewright.dtypes import DType
from tilewright.ir.core import Buffer, TensorMap, Value
from tilewright.ir.evaluate import facts_of
from tilewright.runtime import compiled
from tilewright.runtime.tensor_maps import element_code, swizzle_code

# Elements that C has no type for go by their bits.
_TYPES = {
    "bool": "uint8_t", "float16": "uint16_t", "bfloat16": "uint16_t", "float32": "float", "float64": "double",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip


def header_text(package: str, functions: Sequence[ExportedFunction]) -> str:
    """Return the header: the type of arrays, a function for each kernel, and the words for what was refused."""
    guard = f"TILEWRIGHT_{package.upper()}_H"
    rank = max([1, *(array.rank for function in functions for array in function.arrays)])
    lines = [
        f"/* Kernels of the package {package}, launched from C or C++. Made by Tilewright.",
        " *",
        f" * Compile {package}.c and {package}_code.c with the program (before glibc 2.34: -ldl). Nothing of CUDA",
        " * has to be there: the driver, for CUDA 12.0 or later, is looked up at the first launch.",
        " * Each function launches on a stream (a CUstream or cudaStream_t, or NULL) of the current context's device,",
        f" * and returns 0, a CUresult of the driver, or {package.upper()}_REFUSED; {package}_error() says why.",
        " * Any number of threads may launch at once.",
        " */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        f"#define {package.upper()}_REFUSED (-1)",
        "",
        "/* An array on a GPU: the address of its first element, its extents, and its strides in elements. */",
        f"typedef struct {package}_array {{",
        "    void *data;",
        f"    int64_t shape[{rank}];",
        f"    int64_t strides[{rank}];",
        f"}} {package}_array;",
        "",
        "/* What the last function of this thread that did not return 0 had to say. */",
        f"const char *{package}_error(void);",
        "",
    ]
    for function in functions:
        lines += [*_comment(function), f"{_declaration(package, function)};", ""]
    return "\n".join([*lines, "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */", ""])


def source_text(package: str, functions: Sequence[ExportedFunction]) -> str:
    """Return the source of the launchers; the machine code is in another file, as it is long."""
    count = sum(len(function.variants) for function in functions)
    lines = [
        f"/* How the kernels of the package {package} are launched. Made by Tilewright. */",
        "#ifndef _WIN32",
        "#define _GNU_SOURCE",
        "#include <dlfcn.h>",
        "#else",
        "#include <windows.h>",
        "#endif",
        "#include <stdarg.h>",
        "#include <stddef.h>",
        "#include <stdio.h>",
        "#include <string.h>",
        "",
        f'#include "{package}.h"',
        "",
        f"typedef {package}_array array;",
        f"enum {{ REFUSED = {package.upper()}_REFUSED, MOST_DEVICES = 64 }};",
        "",
        _text("c_driver.c"),
        *([_text("c_maps.c")] if any(v.maps for function in functions for v in function.variants) else []),
        f"const char *{package}_error(void) {{ return message; }}",
        "",
        f"/* Machine code of {count} kernels, in {package}_code.c. */",
        *(f"extern const uint64_t {code_name(package, f, v)}[];" for f in functions for v in f.variants),
        "",
    ]
    for function in functions:
        for variant in function.variants:
            lines += [*_Launch(function, variant).lines(), ""]
        lines += [*_entry(package, function), ""]
    return "\n".join(lines)


def code_text(package: str, functions: Sequence[ExportedFunction]) -> Iterator[str]:
    """Return the file of machine code, in parts: the images as the driver loads them, in words of 8 bytes."""
    yield f"/* Machine code of the package {package}. Made by Tilewright. */\n#include <stdint.h>\n"
    for function in functions:
        for variant in function.variants:
            cubin = variant.lowered.module.cubin
            cubin += bytes(-len(cubin) % 8)
            words = [f"0x{int.from_bytes(cubin[n : n + 8], 'little'):x}" for n in range(0, len(cubin), 8)]
            name = code_name(package, function, variant)
            yield f"\nextern const uint64_t {name}[];\nconst uint64_t {name}[] = {{\n"
            yield "".join(f"    {', '.join(words[n : n + 6])},\n" for n in range(0, len(words), 6))
            yield "};\n"


def code_name(package: str, function: ExportedFunction, variant: Variant) -> str:
    """Return the name of the machine code of a variant."""
    return f"code_{package}_{function.name}_{variant.arch.name}"  # no package is called code


@cache
def _text(file: str) -> str:
    return compiled.source_text(f"ahead/{file}").decode()


def _comment(function: ExportedFunction) -> list[str]:
    """Return what is said of a function in the header."""
    said = [function.doc.partition("\n")[0] or function.name]
    for argument in function.arguments:
        said.append(f"{argument.name}: {describe(argument)}")
    text = [block_comment(line)[3:-3] for line in said]
    return [f"/* {text[0]}", *(f" * {line}" for line in text[1:]), " */"]


def describe(argument: Exported) -> str:
    """Say what a kernel takes: the type, and of an array what is known of extents, strides and place."""
    if not isinstance(argument, ExportedArray):
        return f"{argument.dtype.name}"
    extents = [
        str(extent) if extent is not None else "any" if step == 1 else f"a multiple of {step}"
        for extent, step in zip(argument.extents, argument.divisors[0], strict=True)
    ]
    strides = [
        str(stride) if stride is not None else "any" if step == 1 else f"a multiple of {step}"
        for stride, step in zip(argument.strides, argument.divisors[1], strict=True)
    ]
    shape = f", extents ({', '.join(extents)}), strides ({', '.join(strides)})" if extents else ""
    use = "written" if argument.written and not argument.read else "changed" if argument.written else "read"
    return f"{argument.dtype.name}{shape}, at a multiple of {argument.alignment} bytes; {use}"


def _declaration(package: str, function: ExportedFunction) -> str:
    taken = [_parameter(f"{package}_array", argument) for argument in function.arguments]
    return f"int {package}_{function.name}({', '.join([*taken, 'void *stream'])})"


def _parameter(array: str, argument: Exported) -> str:
    if isinstance(argument, ExportedArray):
        return f"const {array} *{argument.name}"
    return f"{_TYPES[argument.dtype.name]} {argument.name}"


def _entry(package: str, function: ExportedFunction) -> list[str]:
    """Return the function of a kernel: it looks at the arrays, and takes the code for the current device."""
    name = string(function.name)
    codes = [
        f"        {{.entry = {string(v.lowered.source.name)}, .code = {code_name(package, function, v)}, "
        f".major = {v.capability[0]}, .minor = {v.capability[1]}, .exact = {int(v.is_exact)}, "
        f".cluster_size = {_product(v.lowered.kernel.cluster)}}},"
        for v in function.variants
    ]
    passed = ", ".join(["&codes[chosen]", "device", *(x.name for x in function.arguments), "stream"])
    lines = [
        f"{_declaration(package, function)} {{",
        "    static machine_code codes[] = {",
        *codes,
        "    };",
    ]
    for array in function.arrays:
        lines += [f"    {line}" for line in _check(name, array)]
    for read in function.arrays:
        for written in function.arrays:
            if written.written and not read.written:
                lines += [
                    f"    if (check_apart({name}, {_reached(read)}, {_reached(written)}) != 0) return REFUSED;",
                ]
    lines += [
        "    int device = 0;",
        f"    const int chosen = choose({name}, codes, {len(codes)}, &device);",
        *(
            f"    if (chosen == {n}) return launch_{function.name}_{variant.arch.name}({passed});"
            for n, variant in enumerate(function.variants)
        ),
        "    return REFUSED;",
        "}",
    ]
    return lines


def _check(function: str, array: ExportedArray) -> list[str]:
    modes = [
        f"{{{_or_any(extent)}, {divisor}, {_or_any(stride)}, {step}}}"
        for extent, stride, divisor, step in zip(array.extents, array.strides, *array.divisors, strict=True)
    ]
    table = f"(const mode[]){{{', '.join(modes)}}}" if modes else "NULL"
    rest = f"{array.dtype.bytes}, {array.alignment}, {int(array.wide)}"
    return [
        f"if (check_array({function}, {string(array.name)}, {array.name}, {array.rank}, {table}, {rest}) != 0)",
        "    return REFUSED;",
    ]


def _or_any(value: int | None) -> str:
    return "ANY" if value is None else str(value)


def _reached(array: ExportedArray) -> str:
    return f"{string(array.name)}, {array.name}, {array.rank}, {array.dtype.bytes}"


class _Launch:
    """Prints the function that launches one variant."""

    def __init__(self, function: ExportedFunction, variant: Variant) -> None:
        self.function = function
        self.variant = variant
        self.kernel = variant.lowered.kernel
        self.print = variant.printer("c").text

    def lines(self) -> list[str]:
        taken = [_parameter("array", x) for x in self.function.arguments]
        name = f"launch_{self.function.name}_{self.variant.arch.name}"
        head = f"static int {name}({', '.join(['machine_code *code, int device', *taken, 'void *stream'])}) {{"
        body = [*self._requirements(), *self._grid(), *self._shared(), *self._maps(), *self._parameters()]
        body += self._call()
        words = set(re.findall(r"\w+", "\n".join(body)))
        idle = [f"(void){x.name};" for x in self.function.arguments if x.name not in words]
        return [head, *(f"    {line}" if line else "" for line in [*idle, *body]), "}"]

    def _requirements(self) -> list[str]:
        lines = []
        for requirement in self.kernel.requirements:
            text = requirement.message.replace("%", "%%")
            shown = ""
            if requirement.shown is not None and "{value}" in text:
                text, shown = text.replace("{value}", "%lld"), f", (long long){self.print(requirement.shown)}"
            text = string(f"%s: {text}; {requirement.help.replace('%', '%%')}")
            lines.append(f"if (!{self.print(requirement.condition)})")
            lines.append(f"    return refuse({text}, {string(self.function.name)}{shown});")
        return lines

    def _grid(self) -> list[str]:
        extents = [extent.text("c") for extent in self.variant.grid]
        most, cluster = ", ".join(map_text(limits_of(self.variant))), ", ".join(map_text(self.kernel.cluster))
        return [
            f"const int64_t blocks[3] = {{{', '.join(extents)}}};",
            f"if (check_blocks({string(self.function.name)}, blocks, (const int64_t[]){{{most}}}, "
            f"(const int[]){{{cluster}}}) != 0)",
            "    return REFUSED;",
            "if (blocks[0] == 0 || blocks[1] == 0 || blocks[2] == 0) return 0;",
        ]

    def _shared(self) -> list[str]:
        if not self.kernel.launch_sized:
            return [f"const int shared_bytes = {self.variant.lowered.source.dynamic_shared_bytes};"]
        start, most = self.kernel.launch_sized_start, self.variant.arch.shared_bytes_optin
        lines = [f"int64_t shared_bytes = {start};"]
        for sized in self.kernel.launch_sized:
            elements, place = self.print(sized.elements), self.print(sized.place)
            lines.append(f"if ({elements} < 0) return refuse(\"%s: an array in shared memory has a size below 0\", "
                         f"{string(self.function.name)});")  # fmt: skip
            lines.append(f"shared_bytes = {start} + {place} + {elements} * {sized.buffer.dtype.bytes};")
        return [
            *lines,
            f"if (shared_bytes > {most})",
            f'    return refuse("%s takes %lld bytes of shared memory, and a block has {most}", '
            f"{string(self.function.name)}, (long long)shared_bytes);",
        ]

    def _maps(self) -> list[str]:
        maps = self.variant.maps
        if not maps:
            return []
        lines = [
            f"unsigned char memory[{len(maps)} * 128 + 64], *maps = memory + (64 - (uintptr_t)memory % 64) % 64;",
            "if (find_driver() != 0) return REFUSED;",
        ]
        for number, map in enumerate(maps):
            lines += self._map(number, map)
        return lines

    def _map(self, number: int, map: TensorMap) -> list[str]:
        array = self.variant.array_of(map.buffer)
        numbers = [
            ", ".join(self.print(value) for value in map.extents),
            ", ".join(self.print(value) for value in map.strides),
        ]
        steps = map.steps or (1,) * map.rank
        box = ", ".join(str(extent * step) for extent, step in zip(map.box, steps, strict=True))
        address = f"(uintptr_t){array.name}->data + {map.dtype.bytes} * (uintptr_t){self.print(map.start)}"
        return [
            f"if (encode_map({string(self.function.name)}, {string(array.name)}, maps + {128 * number}, "
            f"{element_code(map)}, {map.dtype.bytes}, {map.rank}, {address},",
            f"               (const int64_t[]){{{numbers[0]}}}, (const int64_t[]){{{numbers[1]}}},",
            f"               (const uint32_t[]){{{box}}}, (const uint32_t[]){{{', '.join(map_text(steps))}}}, "
            f"{swizzle_code(map)}, {int(map.nan)}) != 0)",
            "    return REFUSED;",
        ]

    def _parameters(self) -> list[str]:
        lines = []
        for number, parameter in enumerate(self.variant.slots):
            if isinstance(parameter.target, Buffer):
                array = self.variant.argument(parameter.argument)
                lines.append(f"void *p{number} = {array.name}->data;")
                continue
            dtype = parameter.target.type
            assert isinstance(dtype, DType), parameter
            text, kind = self.variant.leaf(parameter, "c"), _TYPES[dtype.name]
            if isinstance(parameter.part, tuple) and dtype.bits < 64 and _may_overflow(parameter.target):
                lines.append(f"if ({text} != ({kind}){text})")
                lines.append(
                    f'    return refuse("%s: %lld does not fit into {dtype.bits} bits", {string(self.function.name)}, '
                    f"(long long){text});"
                )
            lines.append(f"{kind} p{number} = ({kind}){text};")
        given = [f"&p{n}" for n in range(len(self.variant.slots))]
        given += [f"maps + {128 * n}" for n in range(len(self.variant.maps))]
        return [*lines, f"void *parameters[] = {{{', '.join(given) or 'NULL'}}};"]

    def _call(self) -> list[str]:
        attributes = [f"{{{x.id}, 0, {{{', '.join(map_text(x.value))}}}}}" for x in self.variant.attributes]
        lines = []
        if attributes:
            lines.append(f"const launch_attribute attributes[] = {{{', '.join(attributes)}}};")
        block = ", ".join(map_text(self.variant.block))
        return [
            *lines,
            "const int status = load(code, device, (int)shared_bytes);",
            "if (status != 0) return status;",
            "const launch_config config = {",
            "    {(unsigned int)blocks[0], (unsigned int)blocks[1], (unsigned int)blocks[2]},",
            f"    {{{block}}}, (unsigned int)shared_bytes, stream, "
            f"{'attributes' if attributes else 'NULL'}, {len(attributes)}}};",
            "const int launched = driver.launch(&config, code->kernel, parameters, NULL);",
            f"return launched == 0 ? 0 : failed(launched, {string('launching ' + self.function.name)});",
        ]


def _may_overflow(value: Value) -> bool:
    return facts_of(value).high >= 2**31 - 1


def limits_of(variant: Variant) -> list[int]:
    """Return how many blocks a launch may have along each axis."""
    limits = variant.lowered.kernel.grid_limits
    return [min([most, *(x.blocks for x in limits if x.axis == axis)]) for axis, most in enumerate(MAX_GRID)]


def map_text(numbers: Sequence[int]) -> list[str]:
    """Return numbers as texts."""
    return [str(number) for number in numbers]


def _product(cluster: tuple[int, int, int]) -> int:
    return cluster[0] * cluster[1] * cluster[2]
