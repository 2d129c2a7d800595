"""What a report says of a launch beside its lines: bytes, bounds, roofline, occupancy, asynchronous work.

The text of its numbers is made here, for all parts of a report.
"""

from __future__ import annotations

import math
from dataclasses import asdict

from tilewright.figures import Figures
from tilewright.profile import roles
from tilewright.profile.bounds import Achieved, Bounds, LaunchReport
from tilewright.transactions import LINE, SECTOR

_PREFIXES = {-3: "n", -2: "u", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}


def facts(each: LaunchReport) -> list[tuple[str, str]]:
    """Return what is said of a launch beside its lines: label and sentence."""
    launch, bounds, held = each.launch, each.bounds, each.occupancy
    total: Figures = launch.total
    found = [
        ("instructions", ", ".join(f"{name} {amount(n)}" for name, n in total.instructions.most_common())),
        (
            "bytes",
            (f"shared {quantity(total.shared_bytes, 'B')} asked for; " if total.shared_bytes else "")
            + f"L1 and L2 {quantity(SECTOR * total.global_sectors, 'B')} in sectors for "
            f"{quantity(total.global_bytes, 'B')} asked for; "
            f"DRAM at least {quantity(launch.touched_bytes, 'B')}",
        ),
    ]
    if total.barriers:
        found.append(("barriers", f"{amount(total.barriers)} waits of a warp"))
    found += _of_asynchronous_work(each)
    longest = bounds.longest
    if longest is not None:
        times = ", ".join(f"{limit.name} {quantity(limit.seconds, 's')}" for limit in bounds.limits)
        found.append(("bound", f"{longest.name}, on {each.gpu.title}: {times}"))
    found.append(("roofline", roofline_text(bounds)))
    if each.achieved is not None:
        found.append(("achieved", achieved_text(each.achieved)))
    if bounds.unknown:
        found.append(("no rate for", ", ".join(bounds.unknown)))
    found.append(("occupancy", occupancy_text(each)))
    found += _of_registers(each)
    if held.problem is not None:
        found.append(("", f"without the compiler's figures: {held.problem}"))
    return found


def roofline_text(bounds: Bounds) -> str:
    """Return the sentence on the roofline: what it and the other limits allow, or why the launch is not on it."""
    if bounds.why_no_point is not None:
        return bounds.why_no_point
    text = (
        f"{quantity(bounds.flops, 'flop')}, {bounds.intensity:.3g} for each byte of DRAM: at most "
        f"{quantity(bounds.attainable, 'flop/s')}"
    )
    if math.isfinite(bounds.peak):
        text += f" of {quantity(bounds.peak, 'flop/s')}"
    if bounds.longest is not None and bounds.reachable < 0.995 * bounds.attainable:
        text += f"; {bounds.longest.name} allows no more than {quantity(bounds.reachable, 'flop/s')}"
    return text


def achieved_text(found: Achieved) -> str:
    """Return the sentence on what a launch that was measured reached of its limits."""
    words = [f"{quantity(found.seconds, 's')} on the GPU"]
    if found.flops_per_second:
        words.append(
            f"{quantity(found.flops_per_second, 'flop/s')}, {found.of_peak:.0%} of the peak and "
            f"{found.of_roofline:.0%} of the roofline"
        )
    if found.bytes_per_second:
        words.append(f"{quantity(found.bytes_per_second, 'B/s')} of DRAM at least, {found.of_bandwidth:.0%}")
    return "; ".join([*words, f"{found.bound} takes {found.of_bound:.0%} of the time at least"])


def occupancy_text(each: LaunchReport) -> str:
    """Return the sentence on occupancy."""
    held = each.occupancy
    if not held.blocks:
        return f"no block fits on a multiprocessor of {each.gpu.title}: {held.limiter}"
    takes = f"{held.shared_bytes} bytes of shared memory"
    if held.registers is not None:
        takes = f"{held.registers} registers, {takes}" + (", with spills" if held.spills else "") + f", for {held.arch}"
    return (
        f"{held.warps} of {held.most_warps} warps, {held.blocks} block{'s' * (held.blocks != 1)} a multiprocessor, "
        f"limited by {held.limiter} ({takes})"
    )


_Fact = tuple[str, str]
_DOES = {"load": "loaded", "store": "stored", "reduce": "combined"}


def _of_asynchronous_work(each: LaunchReport) -> list[_Fact]:
    """Return what bulk copies, products and roles did, label and sentence; nothing of what the launch has not."""
    total = each.launch.total
    found = [*_copies(total), *_products(total), *_cache(each)]
    for timeline in each.launch.timelines[:1]:
        waiting = roles.roles_of(timeline)
        if len(waiting) > 1:
            cut = ", cut" if timeline.is_waits_cut else ""
            found.append(("roles", f"of block {timeline.block}, in {timeline.steps} steps of the simulator{cut}"))
            found += [(role.name, roles.sentence(role)) for role in waiting]
    return found


def of_line(line: Figures) -> list[_Fact]:
    """Return what bulk copies and products a line has."""
    return [*_copies(line), *_products(line)]


def _copies(total: Figures) -> list[_Fact]:
    if not total.bulk_boxes:
        return []
    parts = []
    for what, boxes in total.bulk_boxes.items():
        outside = total.bulk_outside[what]
        beyond = f", and {quantity(outside, 'B')} outside of the tensor" if outside else ""
        parts.append(f"{amount(boxes)} boxes {_DOES[what]}, {quantity(total.bulk_moved[what], 'B')}{beyond}")
    use = sum(total.bulk_moved.values()) / (SECTOR * total.bulk_sectors) if total.bulk_sectors else 1.0
    shared = ", ".join(f"{quantity(n, 'B')} {what}" for what, n in total.bulk_shared.items())
    return [
        ("bulk copies", f"{quantity(total.bulk_bytes, 'B')} of these by TMA: {'; '.join(parts)}"),
        ("", f"{amount(total.bulk_sectors)} sectors, {use:.0%} used, in {amount(total.bulk_lines)} lines of L2"),
        ("", f"shared memory: {shared}, {amount(total.bulk_passes)} passes without conflicts"),
    ]


def _products(total: Figures) -> list[_Fact]:
    if not total.products:
        return []
    work = ", ".join(f"{quantity(n, 'flop')} of {unit}" for unit, n in total.operations.items() if "tensor" in unit)
    read = ", ".join(f"{name} {quantity(n, 'B')}" for name, n in sorted(total.operand_bytes.items()))
    conflicts = total.operand_conflicts
    spoiled = f"{amount(conflicts)} of them by conflicts" if conflicts else "without conflicts"
    found = [
        ("wgmma", f"{amount(total.products)} of warpgroups, {work}"),
        ("", f"operands in shared memory: {read}, {amount(total.operand_wavefronts)} passes, {spoiled}"),
    ]
    if total.product_waits:
        waits, needless = total.product_waits, total.needless_waits
        groups = ", ".join(f"{name}: {amount(n)}" for name, n in sorted(waits.items(), reverse=True))
        words = f"{amount(sum(waits.values()))} by warpgroups, groups under way before and after: {groups}"
        found.append(("wgmma waits", words + (f"; {amount(needless)} find none to wait for" if needless else "")))
    return found


def _cache(each: LaunchReport) -> list[_Fact]:
    uses, lines = each.cache_uses, each.launch.cache_lines
    if not uses or lines is None:
        return []
    whole = uses[0]
    kept = "the first " if lines.is_cut else ""
    by_rate = {f"{use.hit_rate:.1%}": use.capacity >> 20 for use in uses}
    rates = " and ".join(f"{rate} with {size} MiB" for rate, size in by_rate.items())
    words = f"{kept}{amount(whole.reads + whole.writes)} lines of {LINE} bytes reached: hits {rates} (LRU)"
    return [("L2", f"{words}; DRAM delivers {' to '.join(dict.fromkeys(quantity(u.bytes_read, 'B') for u in uses))}")]


def _of_registers(each: LaunchReport) -> list[_Fact]:
    """Return how the roles share the registers, beside what the compiler gives each thread; nothing without roles."""
    by_group, given = each.launch.registers_by_role, each.occupancy.registers
    if not by_group:
        return []
    threads = each.launch.threads // len(by_group)
    held = ", ".join(f"warpgroup {n} {count or 'as at the launch'}" for n, count in enumerate(by_group))
    total = sum((count or given or 0) * threads for count in by_group)
    at_launch = "not known" if given is None else str(given)
    return [("registers", f"of a thread: {at_launch} at the launch; then {held} ({amount(total)} of a block)")]


# --- for JSON --------------------------------------------------------------------------------------------------------


def asynchronous_figures(found: Figures) -> dict[str, object]:
    """Return the figures of asynchronous work as a dict."""
    return {
        "bulk_bytes": found.bulk_bytes,
        "bulk_boxes": dict(found.bulk_boxes),
        "bulk_moved": dict(found.bulk_moved),
        "bulk_outside": dict(found.bulk_outside),
        "bulk_sectors": found.bulk_sectors,
        "bulk_lines": found.bulk_lines,
        "bulk_shared": dict(found.bulk_shared),
        "bulk_passes": found.bulk_passes,
        "products": found.products,
        "operand_bytes": dict(found.operand_bytes),
        "operand_wavefronts": found.operand_wavefronts,
        "operand_wavefronts_ideal": found.operand_wavefronts_ideal,
        "product_waits": dict(found.product_waits),
        "needless_waits": found.needless_waits,
    }


def asynchronous_data(each: LaunchReport) -> dict[str, object]:
    """Return roles, registers, caches and what was achieved as a dict."""
    launch, lines = each.launch, each.launch.cache_lines
    return {
        "roles": [roles.data(timeline) for timeline in launch.timelines if timeline.waits],
        "registers_by_role": list(launch.registers_by_role),
        "l2": [
            {**asdict(use), "hit_rate": use.hit_rate, "bytes_read": use.bytes_read, "is_cut": lines.is_cut}
            for use in each.cache_uses
            if lines is not None
        ],
        "achieved": None if each.achieved is None else asdict(each.achieved),
    }


def amount(number: float) -> str:
    """Return a count with separators: 1,024."""
    return f"{number:,.0f}"


def quantity(number: float, unit: str) -> str:
    """Return a number with a decimal prefix: 1.5 GB, 20 us.

    >>> quantity(1.5e9, "B"), quantity(2e-5, "s"), quantity(0, "B"), quantity(999.96, "B")
    ('1.5 GB', '20 us', '0 B', '1 kB')
    """
    if number == 0:
        return f"0 {unit}"
    number = float(f"{number:.3g}")  # 999.96 is 1000 then, of the next prefix
    power = min(max(math.floor(math.log10(number)) // 3, -3), 5)
    return f"{number / 1000.0**power:.3g} {_PREFIXES[power]}{unit}"


def shape(extents: tuple[int, int, int]) -> str:
    """Return a grid or a block without its trailing ones: 4, (4, 2)."""
    x, y, z = extents
    return f"({x}, {y}, {z})" if z > 1 else f"({x}, {y})" if y > 1 else str(x)
