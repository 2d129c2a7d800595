"""What the profiler counts of bulk copies, products of warpgroups and roles: equal to closed forms."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.bench.fake_stopwatch import FakeStopwatch

import tilewright as tw
from tilewright.arch import find_gpu
from tilewright.bench.timing import time_launches
from tilewright.cli.scripts import measure_script, run_script, seconds_of
from tilewright.demo.examples import examples_folder, load_example
from tilewright.dtypes import bfloat16
from tilewright.errors import ArgumentError, DeviceError
from tilewright.figures import CacheLines, Figures, Launch, Line, Requests
from tilewright.instructions.descriptors import NAMES, describe, shared_layout
from tilewright.layout import tile_to_shape
from tilewright.profile import Profile, roles
from tilewright.profile.bounds import LaunchReport, achieved_in, bounds_of
from tilewright.profile.caches import tile_fill, use_of
from tilewright.transactions import core_wavefronts

FOLDER = examples_folder() / "hopper"
M, N, K, STAGES, BLOCKS = 384, 512, 320, 3, 2
TILES, STEPS = (M // 128) * (N // 256), K // 64
GROUPS = 2 * TILES  # of consumers and their tiles


@pytest.fixture(scope="module")
def persistent() -> Profile:
    """A run of example 05, of whose shared memory nothing is asked but what it costs."""
    a, b, c = (np.zeros(shape, ml_dtypes.bfloat16) for shape in ((M, K), (N, K), (M, N)))
    with tw.simulate(profile=True, check=False) as run:
        load_example(FOLDER / "05_persistent.py").matmul(c, a, b, STAGES, BLOCKS)
    return run.profile


@pytest.fixture(scope="module")
def total(persistent: Profile) -> Figures:
    return persistent.total


def test_boxes_and_bytes_of_bulk_copies(total: Figures) -> None:
    loaded, stored = TILES * (128 + 256) * K * 2, M * N * 2
    assert total.bulk_boxes == {
        "load": 2 * TILES * STEPS,
        "store": 4 * GROUPS,
    }  # stores of 64 x 128 in two halves of 128 bytes
    assert total.bulk_moved == {"load": loaded, "store": stored}
    assert not any(total.bulk_outside.values())
    assert (total.bulk_sectors, total.bulk_lines) == ((loaded + stored) // 32, (loaded + stored) // 128)
    assert total.bulk_shared == {"written": loaded, "read": stored}
    assert total.bulk_passes == (loaded + stored) // 128


def test_products_and_their_operands(total: Figures) -> None:
    """Each warpgroup reads its 64 rows of A, and all 256 columns of B itself."""
    issues = GROUPS * STEPS * 4
    assert total.products == issues == total.instructions["mma"] // 4
    assert total.operations["tensor bfloat16"] == 2 * M * N * K == issues * 2 * 64 * 256 * 16
    assert total.operand_bytes == {"A": issues * 64 * 32, "B": issues * 256 * 32}
    assert total.operand_wavefronts == total.operand_wavefronts_ideal == sum(total.operand_bytes.values()) // 128
    assert total.operand_conflicts == 0


def test_waits_by_the_groups_under_way(total: Figures) -> None:
    """Of each tile the first wait finds one group and leaves it, the last one finds and ends one."""
    assert total.product_waits == {"1 to 1": GROUPS, "2 to 1": GROUPS * (STEPS - 1), "1 to 0": GROUPS}
    assert total.needless_waits == GROUPS


def test_waits_for_barriers_are_instructions(total: Figures) -> None:
    """A warp's wait counts once, like any other op that a warp runs."""
    producers, consumers, halves = TILES * STEPS, 8 * TILES * STEPS, 2
    assert total.instructions["mbarrier wait"] == producers + consumers
    assert total.instructions["named barrier"] == 8 * TILES * halves * 2


def test_registers_by_role(persistent: Profile) -> None:
    (launch,) = persistent.launches
    assert launch.registers_by_role == (40, 232, 232)
    assert "warpgroup 0 40, warpgroup 1 232" in str(persistent.report())


def test_roles_and_the_phases_they_wait_for(persistent: Profile) -> None:
    """Block 0 has three tiles: the producer is ahead by the ring's stages, and waits for each stage that comes again."""
    timeline = persistent.launches[0].timelines[0]
    producer, *consumers = roles.roles_of(timeline)
    assert [producer.name, *(role.name for role in consumers)] == ["thread 0", "warpgroup 1", "warpgroup 2"]
    own = TILES // BLOCKS * STEPS
    assert [(w.barrier, w.stage, w.phase) for w in producer.waits] == [
        ("empty", number % STAGES, number // STAGES - 1) for number in range(own)
    ]
    assert len(producer.stalled) == own - STAGES
    for role in consumers:
        full = [(w.stage, w.phase) for w in role.waits if w.barrier == "full"]
        assert full == [(number % STAGES, number // STAGES) for number in range(own)]
        assert {w.stage for w in role.waits if w.barrier == "named barrier"} == {int(role.name[-1])}
    assert all(w.begin <= w.over <= w.end < timeline.steps for role in (producer, *consumers) for w in role.waits)


def test_picture_has_each_stall(persistent: Profile) -> None:
    timeline = persistent.launches[0].timelines[0]
    picture = ElementTree.fromstring(roles.picture(timeline))
    found = [box.findtext("title") for box in picture.iter("rect") if box.get("class") == "k-wait"]
    stalls = [wait for role in roles.roles_of(timeline) for wait in role.stalled]
    assert [title.partition(":")[0] for title in found if title] == [
        f"empty[{w.stage}], phase {w.phase}" for w in stalls
    ]
    assert 'class="picture roles"' in persistent.report().html()


def test_products_are_under_way_until_they_are_waited_for(persistent: Profile) -> None:
    """A wait that leaves one group ends those before it: a step's products are over at the next step's wait."""
    timeline = persistent.launches[0].timelines[0]
    products = [event for event in timeline.events if event.kind == "mma"]
    waits = [event.step for event in timeline.events if event.kind == "wait" and event.warps & products[0].warps]
    assert products and all(event.landed in waits for event in products)
    order = sorted({event.landed or 0 for event in products if event.warps == products[0].warps})
    first = [event for event in products if event.warps == products[0].warps][:4]
    assert all(event.landed == order[0] and waits.index(order[0]) == 1 for event in first)
    assert "never waited for" not in persistent.report().html()


def test_json_has_everything(persistent: Profile) -> None:
    (launch,) = json.loads(persistent.report().json())["launches"]
    assert launch["total"]["operand_bytes"] == {"A": 491520, "B": 1966080}
    assert launch["total"]["product_waits"]["2 to 1"] == GROUPS * (STEPS - 1)
    assert [role["name"] for role in launch["roles"][0]["roles"]] == ["thread 0", "warpgroup 1", "warpgroup 2"]
    assert launch["registers_by_role"] == [40, 232, 232]
    assert [use["capacity"] >> 20 for use in launch["l2"]] == [50, 25]
    assert launch["achieved"] is None


# --- boxes -----------------------------------------------------------------------------------------------


def test_bytes_outside_of_the_tensor() -> None:
    x = np.ones((100, 132), np.float32)
    with tw.simulate(profile=True, check=False) as run:
        load_example(FOLDER / "01_tma_copy.py").launch_copy(np.zeros_like(x), x)
    found = run.profile.total
    boxes = sum(found.bulk_shared.values())
    assert set(found.bulk_outside) == {"load", "store"} and all(found.bulk_outside.values())
    assert sum(found.bulk_outside.values()) == boxes - 2 * x.nbytes
    assert "outside of the tensor" in str(run.report())


ATOMS = {name: getattr(tw.atoms, f"SM90_TMA_{name}") for name in ("STORE", "REDUCE_ADD")}


@tw.kernel
def through(out, x, layout: tw.constexpr, store: tw.constexpr):
    smem, there = tw.shared(x.dtype, layout), tw.mbarrier(1)
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        there.arrive_expect_tx(64 * 64 * 2)
        tw.copy(tw.atoms.SM90_TMA_LOAD, tw.local_tile(tw.guarded(x), (64, 64), (0, 0)), smem, barrier=there)
        there.wait(0)
        tw.copy(ATOMS[store], smem, tw.local_tile(tw.guarded(out), (64, 64), (0, 0)))
        tw.tma_store_commit()
        tw.tma_store_wait(0)


@pytest.mark.parametrize(("name", "use"), [("GMMA_K_SW128", 1.0), ("GMMA_K_SW32", 1.0), ("GMMA_K_INTER", 0.5)])
@pytest.mark.parametrize("store", sorted(ATOMS))
def test_boxes_of_16_bytes_use_half_of_a_sector(name: str, use: float, store: str) -> None:
    x = np.ones((64, 64), np.float16)
    layout = tile_to_shape(shared_layout(name)(tw.float16), (64, 64))
    with tw.simulate(profile=True, check=False) as run:
        through[1, 32](np.zeros_like(x), x, layout, store)
    found = run.profile.total
    assert found.bulk_moved == {"load": x.nbytes, "reduce" if store == "REDUCE_ADD" else "store": x.nbytes}
    assert 2 * x.nbytes / (32 * found.bulk_sectors) == use
    assert found.bulk_passes == 2 * x.nbytes // 128


# --- operands --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_canonical_layouts_have_no_conflicts(name: str) -> None:
    """As a descriptor has it, each core matrix lies in all banks; without the swizzle it does not."""
    major, pattern = ("K" if "_K_" in name else "MN"), shared_layout(name)(bfloat16)
    k = max(16, pattern.shape[1])
    layout = tile_to_shape(pattern, (64, k))
    swizzle, plain = (None, layout) if "INTER" in name else (layout.outer, layout.inner)
    found = describe(plain, swizzle, bfloat16, major)
    places = found.places(64, k, 2)
    lines = places[:, ::8].T.reshape(-1, 8) if major == "K" else places[::8].reshape(-1, 8)
    assert (core_wavefronts(found.swizzled(lines)) == 1).all()
    assert core_wavefronts(lines).max() == found.line // 16


# --- caches ----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40), min_size=1, max_size=200), st.lists(st.integers(1, 60), min_size=2, max_size=2))
def test_least_recently_used_lines_go(lines: list[int], sizes: list[int]) -> None:
    trace = CacheLines([Requests(np.array([[line // 2 * 128]]), None, None, 0, line % 2 == 1) for line in lines], False)
    small, large = (use_of(trace, 128 * size) for size in sorted(sizes))
    assert small.read_hits + small.write_hits <= large.read_hits + large.write_hits
    assert large.reads + large.writes == len(lines)
    # A line is there where fewer others than the cache holds came since its last use.
    numbers = [line // 2 for line in lines]
    last = [max((j for j in range(i) if numbers[j] == n), default=-1) for i, n in enumerate(numbers)]
    near = [j >= 0 and len(set(numbers[j + 1 : i])) < min(sizes) for i, j in enumerate(last)]
    assert small.read_hits + small.write_hits == sum(near)
    whole = use_of(trace, 128 * 100)
    assert len(lines) - whole.read_hits - whole.write_hits == len({line // 2 for line in lines})


def test_lines_of_a_launch(persistent: Profile) -> None:
    """What DRAM delivers is A and B, once, where the cache holds both; the stores find nothing."""
    whole, _ = persistent.report().launches[0].cache_uses
    assert whole.bytes_read == (M + N) * K * 2
    assert (whole.reads, whole.writes) == (TILES * (128 + 256) * K * 2 // 128, M * N * 2 // 128)
    assert whole.write_hits == 0


def test_requests_reach_each_line_once() -> None:
    """Idle lanes reach none, and shifts need not be whole lines."""
    addresses = np.array([[0, 4, 130, 999], [256, 256, 300, 0]])
    active = np.array([[True, True, True, False], [True, False, True, False]])
    found = CacheLines([Requests(addresses, active, np.array([0, 64]), 1024, True)], False).lines
    assert ((found - 1) // 2 - 8).tolist() == [0, 1, 2, 0, 1, 2]


def test_plain_accesses_reach_lines_too() -> None:
    with tw.simulate(profile=True, check=False) as run:
        double[8, 64](np.zeros(512, np.float32))
    uses = run.profile.report().launches[0].cache_uses
    assert [(use.reads, use.writes, use.read_hits, use.write_hits) for use in uses] == [(16, 16, 0, 16)] * 2


@tw.kernel
def double(x):
    i = tw.block_idx.x * 64 + tw.thread_idx.x
    x[i] = 2 * x[i]


TILE = (128, 256, 64)


def rows_first(m: int, n: int, blocks: int) -> list[list[tuple[int, int]]]:
    return [[divmod(number, n) for number in range(block, m * n, blocks)] for block in range(blocks)]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 8), st.integers(1, 8), st.integers(0, 1 << 22))
def test_bytes_of_a_schedule(m: int, n: int, blocks: int, resident: int, capacity: int) -> None:
    k = 200  # the last step is shorter
    found = tile_fill(rows_first(m, n, blocks), TILE, k, "bfloat16", capacity=capacity, resident=resident)
    assert sum(wave.tiles for wave in found.waves) == m * n
    assert found.asked == m * n * (128 + 256) * k * 2
    assert (128 * m + 256 * n) * k * 2 <= found.fetched <= found.asked
    plenty = tile_fill(rows_first(m, n, blocks), TILE, k, "bfloat16", capacity=1 << 40, resident=resident)
    assert plenty.fetched == (128 * m + 256 * n) * k * 2
    nothing = tile_fill(rows_first(m, n, blocks), TILE, k, "bfloat16", capacity=0, resident=resident)
    assert nothing.fetched == found.asked


def test_wave_shares_rows_and_columns() -> None:
    """Blocks of a wave go on together, so that a cache that holds one step has what the others of it ask for."""
    square = [[(i // 4, i % 4)] for i in range(16)]
    line = [[(0, i)] for i in range(16)]
    step = (16 * 128 + 16 * 256) * 64 * 2
    found = [tile_fill(order, TILE, 1024, "bfloat16", capacity=step) for order in (square, line)]
    assert [(each.waves[0].rows, each.waves[0].columns) for each in found] == [(4, 4), (1, 16)]
    assert [each.fetched for each in found] == [(4 * 128 + 4 * 256) * 2048, (128 + 16 * 256) * 2048]


def test_more_blocks_than_fit_come_in_waves() -> None:
    order = [[(0, column)] for column in range(7)]
    found = tile_fill(order, TILE, 64, "bfloat16", "bfloat16", resident=3)
    assert [wave.tiles for wave in found.waves] == [3, 3, 1]
    assert found.stored == 7 * 128 * 256 * 2
    parts = tile_fill([[(0, 0, range(2))], [(0, 0, range(2, 4))]], TILE, 256, "bfloat16")
    assert parts.asked == (128 + 256) * 256 * 2 == parts.fetched


def test_orders_of_schedulers() -> None:
    """Groups of rows share more than rows; parts of stream-K ask for as much of K as whole tiles."""
    orders = [tw.schedulers.Linear().order(32, 16, 64), tw.schedulers.Grouped(8).order(32, 16, 64)]
    rows, groups = (tile_fill(order, TILE, 1024, "bfloat16", capacity=4 << 20, resident=64) for order in orders)
    assert rows.asked == groups.asked and groups.fetched < rows.fetched
    parts = tile_fill(tw.schedulers.StreamK().order(5, 3, 4, 16), TILE, 1024, "bfloat16")
    assert parts.asked == 5 * 3 * (128 + 256) * 1024 * 2


def test_schedules_that_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no second-level cache of Tesla T4"):
        tile_fill([], TILE, 64, "bfloat16", gpu="T4")
    with pytest.raises(ArgumentError, match=r"steps range\(0, 9\) of K, of 1"):
        tile_fill([[(0, 0, range(9))]], TILE, 64, "bfloat16")
    with pytest.raises(ArgumentError, match="at least 1"):
        tile_fill([], TILE, 0, "bfloat16")


# --- bounds ----------------------------------------------------------------------------------------------


def _launch(line: Line, touched: int) -> Launch:
    return Launch("k", (1, 1, 1), (128, 1, 1), "sm_90a", 1, 1, 0, lines=[line], touched_bytes=touched)


def test_each_resource_can_be_the_bound() -> None:
    gpu = find_gpu("H200")
    assert gpu.l2_bandwidth is not None
    for name, line, touched in (
        ("tensor bfloat16 arithmetic", Line(), 1),
        ("DRAM", Line(), 10**9),
        ("L2", Line(bulk_sectors=10**9), 1),
        ("shared memory", Line(operand_wavefronts=10**9), 1),
    ):
        line.operations["tensor bfloat16"] = 10**6
        found = bounds_of(_launch(line, touched), gpu).longest
        assert found is not None and found.name == name
    line = Line(bulk_sectors=10)
    (limit,) = (each for each in bounds_of(_launch(line, 0), gpu).limits if each.name == "L2")
    assert limit.seconds == pytest.approx(320 / (4500 * 1.98e9))


def test_achieved_of_the_roofline() -> None:
    gpu, line = find_gpu("H200"), Line()
    line.operations["tensor bfloat16"] = 989_400_000_000
    bounds = bounds_of(_launch(line, 4_800_000_000), gpu)  # both take a millisecond at least
    found = achieved_in(bounds, 2e-3)
    assert (found.of_peak, found.of_roofline, found.of_bandwidth, found.of_bound) == pytest.approx((0.5,) * 4)
    assert LaunchReport(_launch(line, 0), gpu).achieved is None
    with pytest.raises(ArgumentError, match=r"more than 0\.0 seconds"):
        achieved_in(bounds, 0.0)


# --- on a GPU --------------------------------------------------------------------------------------------


class Marks(FakeStopwatch):
    """A device on which the n-th launch takes n microseconds, as its marks have it."""

    def __init__(self) -> None:
        super().__init__()
        self.marked = 0

    def mark(self) -> float:
        self.log.append("mark")
        self.marked += 1
        return 1.0 + (self.marked // 2) * 1e-3 if self.marked % 2 == 0 else 1.0


SCRIPT = """
import sys
import numpy as np
import tilewright as tw

@tw.kernel
def add(x, y):
    x[tw.thread_idx.x] += y[tw.thread_idx.x]

x = np.zeros(64, np.float32)
for threads in (64, 32, int(sys.argv[1])):
    add[1, threads](x, x)
print("done")
sys.exit(3)
"""


def test_a_script_is_timed_launch_by_launch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A launch of the other run that has another block is not the same one."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    outcome = run_script(str(path), ["64"], profile=True, quiet=True)
    watch = Marks()
    timed = measure_script(str(path), ["32"], quiet=True, stopwatch=watch)
    assert [(each.kernel, each.block) for each in timed] == [("add", (n, 1, 1)) for n in (64, 32, 32)]
    assert watch.log == [*["flush"] * 4, "mark", "mark"] * 3
    assert capfd.readouterr().out == ""
    seconds = seconds_of(outcome.run, timed)
    assert seconds[:2] == pytest.approx([1e-6, 2e-6]) and seconds[2] is None
    report = outcome.run.profile.report(seconds=seconds)
    assert [each.times for each in report.launches] == [2, 1]
    first = report.launches[0].achieved
    assert first is not None and first.flops_per_second == pytest.approx(64 / 1e-6)
    assert "achieved  1 us on the GPU; 64 Mflop/s" in report
    assert report.data["launches"][1]["achieved"]["seconds"] == pytest.approx(2e-6)  # type: ignore[index]


def test_times_come_as_a_list() -> None:
    with tw.simulate(profile=True) as run:
        pass
    with pytest.raises(ArgumentError, match="seconds is a list of the time of each launch, or None, got int 1"):
        run.profile.report(seconds=1)  # type: ignore[arg-type]


def test_measuring_needs_a_gpu() -> None:
    with pytest.raises(DeviceError, match="timing needs a GPU"), time_launches():
        pass


@pytest.mark.gpu
def test_a_product_on_the_gpu_stays_below_its_bounds() -> None:
    """No launch is faster than the longest of its limits."""
    torch = pytest.importorskip("torch")
    example = load_example(FOLDER / "05_persistent.py")
    a, b, c = (torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for shape in ((M, K), (N, K), (M, N)))
    example.matmul(c, a, b, STAGES, BLOCKS)
    with time_launches() as timed:
        example.matmul(c, a, b, STAGES, BLOCKS)
    host = [np.zeros(shape, ml_dtypes.bfloat16) for shape in ((M, N), (M, K), (N, K))]
    with tw.simulate(profile=True, check=False) as run:
        example.matmul(*host, STAGES, BLOCKS)
    (launch,) = run.profile.report(seconds=[timed[0].seconds]).launches
    assert launch.achieved is not None and 0 < launch.achieved.of_bound < 1
