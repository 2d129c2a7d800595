"""What functions of one kind have in common: which arguments they take, of which shapes, and what they raise.

The docstrings of most small functions say only what the function returns. The reference adds the rule of the module in
which a function is defined to each docstring that names no error, so that every entry says what is accepted.
"""

from __future__ import annotations

_OUTSIDE = "Raises `LanguageError` outside of a kernel"
_NUMBER = "Each argument is one number of the calling thread"
_WORDS = (
    "Arguments are integers, or tensors of integers with matching shapes; for tensors the result is a fragment of the "
    "same shape. Raises `LanguageError` outside of a kernel and for arguments that are not such integers."
)

# By the module that defines a function, or by `module.name` for one function.
RULES = {
    "tilewright.trace.threads": f"Returns a device int32. {_OUTSIDE}.",
    "tilewright.instructions.cluster": f"{_OUTSIDE}, and for targets before sm_90.",
    "tilewright.instructions.cluster.block_rank_in_cluster": f"Returns a device int32. {_OUTSIDE}.",
    "tilewright.instructions.wgmma": f"{_OUTSIDE}, for targets other than sm_90a, and for a number of groups below 0.",
    "tilewright.instructions.barrier": f"{_OUTSIDE}.",
    "tilewright.instructions.barrier.sync_threads": (
        f"{_OUTSIDE}, and in a branch that only some threads of the block may take."
    ),
    "tilewright.instructions.cp_async": f"{_OUTSIDE}, and for a number of groups that is not an int from 0 on.",
    "tilewright.instructions.bulk_groups": f"{_OUTSIDE}, and for targets before sm_90.",
    "tilewright.language.pipeline": "Raises `LanguageError` for fewer than 2 stages.",
    "tilewright.instructions.vote": f"{_NUMBER}; all threads of the warp must take part. {_OUTSIDE}.",
    "tilewright.instructions.shuffle": (
        f"{_NUMBER}; all threads of the group must take part. {_OUTSIDE}, for a tensor, for a width that is not a "
        "power of two up to the warp, and for a block that does not consist of whole groups."
    ),
    "tilewright.instructions.match": (
        f"{_NUMBER}; all threads of the warp must take part. {_OUTSIDE}, for AMD's targets, and for a block that does "
        "not consist of whole warps."
    ),
    "tilewright.language.copying": (
        "The tensors may be in registers, shared or global memory, and of any shape. Raises `ArgumentError` for an "
        "argument that should be a tensor and is not one."
    ),
    "tilewright.language.collectives": (
        "Raises `LanguageError` outside of a kernel, for values that are not numbers or fragments, and for a group "
        "that `tw.reduce` does not have."
    ),
    "tilewright.trace.mathematics": (
        "Arguments are numbers, or tensors with matching shapes; for tensors the result is a fragment of the same "
        "shape, one result for each element. Outside of a kernel NumPy numbers and arrays are accepted. Raises "
        "`ArgumentError` for anything else."
    ),
    "tilewright.trace.mathematics.where": (
        "Arguments are numbers, or tensors with matching shapes; for tensors the result is a fragment of the same "
        "shape. Outside of a kernel it is NumPy's `where`. Raises `LanguageError` for values that are not numbers."
    ),
    "tilewright.trace.mathematics.popcount": _WORDS.replace("outside of a kernel and ", ""),
    "tilewright.trace.mathematics.clz": _WORDS.replace("outside of a kernel and ", ""),
    "tilewright.instructions.products": _WORDS,
    "tilewright.instructions.bits": _WORDS,
    "tilewright.instructions.approximate": (
        "Arguments are floats of up to 32 bits, or tensors of these; for tensors the result is a fragment of the same "
        f"shape. {_OUTSIDE}, for float64, and for a target that lacks the instruction."
    ),
    "tilewright.language.random": (
        f"Seed and offset are integers of up to 64 bits. {_OUTSIDE}, for arguments of other types, and, of functions "
        "that return several numbers, for tensors."
    ),
    "tilewright.launch": "Raises `LanguageError` for something that is not a function.",
    "tilewright.runtime.specs": "A launch raises `ArgumentError` if the argument is not an array.",
    "tilewright.products": "Raises `ArgumentError` for arguments that are not arrays, and shapes that do not match.",
    "tilewright.kernels.quantized": "Raises `ArgumentError` for arguments that are not arrays of matching shapes.",
    "tilewright.tensors": "Raises `LayoutError` for a layout that reaches more elements than there are.",
    "tilewright.tensors.construction.identity_tensor": "Raises `LayoutError` for a shape that is not of integers.",
    "tilewright.tiled": "Raises `ArgumentError` for an atom, a tiled copy or a tiled mma that is not one.",
    "tilewright.layout": "Raises `LayoutError` for leaves that are not integers, where it computes with them.",
    "tilewright.layout.layouts": "Raises `ArgumentError` for leaves that are not integers.",
    "tilewright.layout.comparisons": (
        "Raises `LayoutError` for coordinates that are not integers, or that are nested differently."
    ),
    "tilewright.dtypes": "Raises `ArgumentError` for a value that is not a number in the range of the type.",
    "tilewright.schedule": "Raises `ScheduleError` for operands that the logic of a nest cannot compute with.",
    "tilewright.schedule.values.cast": "Raises `ArgumentError` for something that is not an element type.",
    "tilewright.schedule.values.apply": "Raises `ArgumentError` for something that is not a function.",
    "tilewright.draw": "Raises `ArgumentError` for something that has no picture.",
    "tilewright.bench": "It takes no arguments that could be wrong.",
}


def rule(module: str, name: str) -> str:
    """Return what holds for a function of a module: the rule of the function, of its module, or of a package above."""
    path = f"{module}.{name}"
    while path:
        if path in RULES:
            return RULES[path]
        path = path.rpartition(".")[0]
    return ""
