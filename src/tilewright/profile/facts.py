"""What a report says of a launch beside its lines, in sentences: bytes, bounds, roofline, occupancy."""

from __future__ import annotations

import math

from tilewright.figures import Figures
from tilewright.profile.asynchronous import of_asynchronous_work, of_registers
from tilewright.profile.bounds import Achieved, Bounds, LaunchReport
from tilewright.profile.quantities import amount, quantity
from tilewright.transactions import SECTOR


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
    found += of_asynchronous_work(each)
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
    found += of_registers(each)
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
