"""What a plan says of itself: its loops, what runs through each, and where caches are filled and written back."""

from __future__ import annotations

from typing import Any

from tilewright.errors import ScheduleError
from tilewright.schedule.caches import Cache, Location, Region
from tilewright.schedule.loop_nest import Loop, Part, substituted
from tilewright.schedule.mma_shapes import MMAFragmentOp
from tilewright.schedule.plan_state import PlanState, Tensorization, operation_text

_INDENT = "    "


def plan_text(plan: PlanState) -> str:
    """Return the loops in the order in which they run: bound ones around all others, then caches and serial loops.

    A remark behind each loop says what it became.
    """
    lines: list[tuple[int, str, str]] = []  # depth, text, remark
    bound = [loop for loop in plan.nest.loops if loop.index in plan.bound]
    for depth, loop in enumerate(bound):
        lines.append((depth, str(loop), _kind(plan, loop)))
    _add_serial(plan, lines, len(bound), 0)
    texts = [f"{_INDENT * depth}{text}" for depth, text, _ in lines]
    width = max((len(text) for text, (_, _, remark) in zip(texts, lines, strict=True) if remark), default=0)
    body = [
        f"{text:{width}}  # {remark}" if remark else text for text, (_, _, remark) in zip(texts, lines, strict=True)
    ]
    return "\n".join([f"# {_heading(plan)}", *body])


def plan_data(plan: PlanState) -> dict[str, Any]:  # Any: plain data
    """Return the same as plain data: numbers where they are known, and expressions as text where they are not."""
    return {
        "target": plan.target.name,
        "block": list(plan.block),
        "producer": plan.producer,
        "blocks": plan.blocks,
        "grid": [_grid_extent(plan, axis) for axis in range(3)],
        "loops": [_loop_data(plan, loop) for loop in plan.nest.loops],
        "caches": [_cache_data(plan, cache) for cache in plan.caches],
        "tensorization": _tile_data(plan),
        "parts": [
            {
                "conditions": [str(condition) for condition in part.conditions],
                "statements": [substituted(statement, part) for statement in part.statements],
            }
            for part in plan.nest.parts
        ],
    }


def _heading(plan: PlanState) -> str:
    x, y, z = plan.block
    blocks = " x ".join(str(_grid_extent(plan, axis)) for axis in range(3 if _grid_extent(plan, 2) != 1 else 2))
    threads = f"{x} x {y} x {z}" if z > 1 else f"{x} x {y}"
    if plan.blocks is not None:
        blocks = f"at most {plan.blocks} blocks, for {blocks},"
    else:
        blocks = f"{blocks} blocks"
    role = ", a warpgroup of which fills caches" if plan.producer else ""
    return f"{plan.target.name}: {blocks} of {threads} threads{role}"


def _grid_extent(plan: PlanState, axis: int) -> int | str:
    """Return the blocks along an axis, as text where only the launch knows them."""
    for binding in plan.bindings:
        if binding.kind == "BLOCK" and binding.axis == axis:
            if binding.extent is not None:
                return binding.extent
            return " * ".join(_trips(loop) for loop in binding.loops)
    return 1


def _trips(loop: Loop) -> str:
    if loop.trips is not None:
        return str(loop.trips)
    return str(loop.stop) if loop.step == 1 else f"ceil({loop.stop} / {loop.step})"


def _kind(plan: PlanState, loop: Loop) -> str:
    """Return what a loop became: a unit of the grid, matrix instructions, vectors, written out, or only a loop."""
    for binding in plan.bindings:
        if loop.index in binding.indices:
            return binding.unit.name
    tile = plan.tensorization
    if tile is not None and loop.index in tile.indices:
        return f"tensorized, {_of_tile(tile)}" if loop.index is plan.serial[-3] else "tensorized"
    if loop.index in plan.vectorized:
        return "vectorized"
    waits = "a barrier behind each iteration" if loop.index in plan.waiting else ""
    return ", ".join(filter(None, ("unrolled" if loop.index in plan.nest.unrolled else "", waits)))


def _of_tile(tile: Tensorization) -> str:
    """Return what computes the three loops of a tile."""
    remark = f"{tile.shape.name}, {tile.passes} {'pass' if tile.passes == 1 else 'passes'}"
    if tile.groups > 1:
        remark += f" in groups of {tile.fused}"
    if tile.has_a_in_registers:
        remark += ", A from registers" if tile.computed is None else ", A computed in registers"
    if len(tile.recipe.mmas) > 1:
        remark += f", {tile.policy.name}"
    for name, operation in (("prologue", tile.prologue), ("epilogue", tile.epilogue)):
        if operation[0] is not MMAFragmentOp.NONE:
            remark += f", {name} {operation_text(operation)}"
    return f"{remark}, saturating" if tile.saturating else remark


def _tile_data(plan: PlanState) -> dict[str, Any] | None:  # Any: plain data
    tile = plan.tensorization
    if tile is None:
        return None
    return {
        "indices": [index.name for index in tile.indices],
        "mma_shape": tile.shape.name,
        "num_total_passes": tile.passes,
        "num_fused_passes": tile.fused,
        "scheduling_policy": tile.policy.name,
        "prologue": operation_text(tile.prologue),
        "epilogue": operation_text(tile.epilogue),
        "element_type": str(tile.recipe.dtype_a),
        "accumulator_type": str(tile.accumulator),
        "saturating": tile.saturating,
    }


def _add_serial(plan: PlanState, lines: list[tuple[int, str, str]], at: int, depth: int) -> None:
    """Add what runs inside of `depth` serial loops, indented by `at`."""
    caches = list(plan.caches_at(depth))
    for cache in caches:
        if plan.is_read(cache):
            lines.append((at, f"{cache.name} = {_box(plan, cache)}", _remark(plan, cache)))
        else:
            lines.append((at, f"{cache.name} for {_box(plan, cache)}", _remark(plan, cache)))
    if depth < len(plan.serial):
        loop = plan.nest.loop(plan.serial[depth])
        lines.append((at, str(loop), _kind(plan, loop)))
        _add_serial(plan, lines, at + 1, depth + 1)
    else:
        for part in plan.nest.parts:
            _add_statements(part, lines, at)
    for cache in caches:
        if plan.is_written(cache):
            how = ", by TMA" if cache.leaves_in_bulk else ""
            lines.append((at, f"{_box(plan, cache)} = {cache.name}", f"written back{how}"))


def _add_statements(part: Part, lines: list[tuple[int, str, str]], at: int) -> None:
    if part.conditions:
        lines.append((at, f"if {' and '.join(map(str, part.conditions))}:", ""))
        at += 1
    lines += [(at + deeper, line, "") for deeper, line in part.lines()]


def _region(plan: PlanState, cache: Cache) -> Region | None:
    """Return what a cache holds, None where the plan does not fit it (which `build` says)."""
    try:
        return plan.region(cache)
    except ScheduleError:
        return None


def _box(plan: PlanState, cache: Cache) -> str:
    """Return the box of the array as slices: A[i:i + 16, k:k + 8], and a single element as an index."""
    region = _region(plan, cache)
    name = cache.source.name
    if region is None:
        return f"{name}[...]"
    parts = [
        str(start) if extent == 1 else f"{start}:{start + extent * step}{'' if step == 1 else f':{step}'}"
        for start, extent, step in zip(region.origin, region.shape, region.steps, strict=True)
    ]
    return f"{name}[{', '.join(parts)}]"


def _remark(plan: PlanState, cache: Cache) -> str:
    where = {
        Location.SHARED: "shared memory", Location.GLOBAL: "global memory", Location.PRIVATE: "registers",
        Location.MMA_FRAGMENT: "fragments",
    }  # fmt: skip
    region = _region(plan, cache)
    shape = "" if region is None else f", {' x '.join(map(str, region.shape))}"
    remark = f"{where[cache.location]}{shape} {cache.element_type}"
    if cache.stages > 1:
        remark += f", {cache.stages} buffers"
    if cache.is_filled_in_bulk:
        remark += ", by TMA"
    return f"{remark}, next iteration through registers" if cache.through_registers else remark


def _loop_data(plan: PlanState, loop: Loop) -> dict[str, Any]:  # Any: plain data
    unit = next((binding.unit.name for binding in plan.bindings if loop.index in binding.indices), None)
    return {
        "index": loop.index.name,
        "stop": loop.stop.constant if loop.stop.is_constant else str(loop.stop),
        "step": loop.step,
        "bound_to": unit,
        "unrolled": loop.index in plan.nest.unrolled,
        "vectorized": loop.index in plan.vectorized,
    }


def _cache_data(plan: PlanState, cache: Cache) -> dict[str, Any]:  # Any: plain data
    region = _region(plan, cache)
    return {
        "array": cache.array.name,
        "source": cache.source.name,
        "index": None if cache.at is None else cache.at.name,
        "trigger_index": None if cache.trigger is None else cache.trigger.name,
        "location": cache.location.name,
        "origin": None if region is None else [str(start) for start in region.origin],
        "shape": None if region is None else list(region.shape),
        "element_type": str(cache.element_type),
        "layout": None if cache.layout is None else str(getattr(cache.layout, "name", cache.layout)),
        "buffers": cache.stages,
        "tma": bool(cache.tma),
        "through_registers": cache.through_registers,
        "strategy": cache.strategy.name,
        "vectorize": cache.vectorize,
        "read": plan.is_read(cache),
        "written": plan.is_written(cache),
    }
