"""What collectives give each thread, in the order of combination that docs/language.md says."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any

from tests.fuzz.meaning import WARP, View, by_name, made

COLLECTIVES = ("reduce", "scan", "broadcast")


def combined(name: str, gathered: dict[int, Any], thread: int) -> Any:
    """Return what a thread gets of what the threads of its group have brought: the call's arguments."""
    group = gathered[thread][2]
    width = len(gathered) if group == "block" else WARP if group == "warp" else group
    first = thread // width * width
    members = [t for t in range(first, first + width) if t in gathered]
    values = [gathered[t][0] for t in members]
    if name == "broadcast":
        return values[int(gathered[thread][1])]
    op = gathered[thread][1]
    if name == "scan":
        options = gathered[thread][3] if len(gathered[thread]) > 3 else {}
        found = list(accumulate(values, partial(by_name, op)))
        if options.get("exclusive"):
            dtype = values[0].dtype
            found = [made(dtype, 0), *found[:-1]]
            assert int(options["initial"]) == 0
        return found[thread - first]
    values = [tree(op, list(v.items())) if isinstance(v, View) else v for v in values]
    warps = [tree(op, values[k : k + WARP]) for k in range(0, len(values), WARP)]
    return tree(op, warps)


def tree(op: Any, values: list[Any]) -> Any:
    """Combine neighbours, then pairs of them, and so on; what has no neighbour goes on as it is."""
    while len(values) > 1:
        pairs = [by_name(op, *values[k : k + 2]) for k in range(0, len(values) - 1, 2)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]
