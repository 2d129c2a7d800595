"""Runs the text of a kernel thread by thread: from each barrier or exchange to the next, warps in turns, block by block."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from tests.fuzz.combining import COLLECTIVES, combined
from tests.fuzz.meaning import WARP, Namespace, View, counted
from tests.fuzz.numbers import Number

import tilewright as tw

Request = tuple[str, tuple[Any, ...]]
Thread = Generator[Request, Any, None]
Warp = Iterator["Callable[[], bool] | None"]

TOGETHER = frozenset(
    ("sync_threads", "sync_warp", "shuffle", "shuffle_up", "shuffle_down", "shuffle_xor", "vote_any", "vote_all",
     "ballot", *COLLECTIVES)
)  # fmt: skip

OF_PIPELINES = frozenset({"wait", "drain"})


class _Requests(ast.NodeTransformer):
    """Rewrites the calls that threads carry out together:  tw.shuffle(x, 3) -> (yield ("shuffle", (x, 3)))."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        if node.name == "kernel":  # a generator in any case
            node.body.insert(0, ast.parse('yield ("sync_warp", ())').body[0])
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        called = node.func
        if not (isinstance(called, ast.Attribute) and called.attr in (*TOGETHER, *OF_PIPELINES)):
            return node
        if called.attr in COLLECTIVES and not (isinstance(called.value, ast.Name) and called.value.id == "tw"):
            return node  # the method of a tensor
        name = "sync_threads" if called.attr in OF_PIPELINES else called.attr
        if node.args and called.attr == "wait":  # of an mbarrier, for a parity
            node.args.insert(0, called.value)
            name = "mbarrier"
        if node.keywords:  # of a collective
            options = [ast.Constant(k.arg) for k in node.keywords]
            node.args.append(ast.Dict(list(options), [k.value for k in node.keywords]))
        arguments = ast.Tuple(node.args, ast.Load())
        return ast.Yield(ast.Tuple([ast.Constant(name), arguments], ast.Load()))


def run(text: str, grid: int, block: int | tuple[int, int, int], arguments: Sequence[Any]) -> None:
    """Run a kernel's text on NumPy arrays, in place, and scalars."""
    tree = ast.fix_missing_locations(_Requests().visit(ast.parse(text)))
    shape = (block, 1, 1) if isinstance(block, int) else block
    threads = math.prod(shape)
    device = Namespace(grid, shape)
    variables: dict[str, Any] = {"__name__": "meaning", "tw": device, "range": counted}
    exec(compile(tree, "<meaning>", "exec", dont_inherit=True), variables)
    given: Sequence[Any] = [_argument(a) for a in arguments]
    given = variables["pack"](*given) if "pack" in variables else given
    for number in range(grid):
        device.begin(number, threads)
        members: list[Thread] = [variables["kernel"](*given) for _ in range(threads)]
        warps = [_warp(device, members, range(first, min(first + WARP, threads))) for first in range(0, threads, WARP)]
        _run_block(warps)


def _run_block(warps: list[Warp]) -> None:
    """Run the warps of a block in turns, each from one place where it waits to the next."""
    at: dict[int, Callable[[], bool] | None] = dict.fromkeys(range(len(warps)), lambda: True)
    while at:
        if all(test is None for test in at.values()):  # the barrier of the block
            at = dict.fromkeys(at, lambda: True)
        ready = [number for number, test in at.items() if test is not None and test()]
        assert ready, "the warps of the block wait for each other"
        for number in ready:
            try:
                at[number] = next(warps[number])
            except StopIteration:
                del at[number]


def _argument(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return View(tw.tensor(x), is_global=True)
    return Number(tw.dtype(x.dtype), x.item() if x.dtype.kind in "biu" else x)


def _warp(device: Namespace, members: list[Thread], lanes: range) -> Warp:
    """Run the threads of a warp. Where it waits, yield what it waits for, None at the block's barrier."""
    answers: list[Any] = [None] * len(lanes)
    while True:
        requests = list(_advance(device, members, lanes, answers))
        names = {request[0] for request in requests if request is not None}
        assert len(names) <= 1 and (None not in requests or not names), ("a warp diverges", requests)
        if not names:
            return
        name, given = names.pop(), [request[1] for request in requests if request is not None]
        if name == "sync_threads":
            yield None
        elif name == "mbarrier":
            barrier, parity = given[0]
            yield partial(barrier.is_over, int(parity))
        if name in COLLECTIVES:
            kept = device.gathered(lanes[0] // WARP)
            kept.update(zip(lanes, given, strict=False))
            if given[0][2] == "block":
                yield None
            answers = [combined(name, kept, lane) for lane in lanes[: len(given)]]
            continue
        answers = [None] * len(given) if name in ("sync_threads", "sync_warp", "mbarrier") else _answers(name, given)


def _advance(
    device: Namespace, members: list[Thread], lanes: range, answers: Sequence[Any]
) -> Iterator[Request | None]:
    for lane, answer in zip(lanes, answers, strict=True):
        device.enter(lane)
        try:
            yield members[lane].send(answer)
        except StopIteration:
            yield None


def _answers(name: str, given: list[tuple[Any, ...]]) -> list[Any]:
    """Return what each thread of a warp gets (PTX ISA, shfl.sync and vote.sync)."""
    values = [arguments[0] for arguments in given]
    if name == "ballot":
        return [Number(tw.uint32, sum(1 << lane for lane, v in enumerate(values) if v))] * len(given)
    if name.startswith("vote"):
        return [Number(tw.bool_, (any if name == "vote_any" else all)(bool(v) for v in values))] * len(given)
    answers = []
    for lane, arguments in enumerate(given):
        other, width = int(arguments[1]), int(arguments[2]) if len(arguments) > 2 else WARP
        group, place = lane // width * width, lane % width
        match name:
            case "shuffle":
                source = group + other % width
            case "shuffle_up":
                source = lane - other if place >= other else lane
            case "shuffle_down":
                source = lane + other if place + other < width else lane
            case _:
                source = lane ^ other if (lane ^ other) < group + width else lane
        answers.append(values[source])
    return answers
