"""Cache hints in the text of kernels: each stands in the PTX, on the access that can carry it, or is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.helpers.slow import covering, rest_is_slow

import tilewright as tw
from tilewright.atoms import CpAsync, UniversalCopy
from tilewright.atoms.copy import LOADS, POLICIES, PREFETCHES, STORES, CacheHints

VECTOR = tw.static(tw.spec(tw.float32, (1024,)))
TARGETS = ("sm_80", "sm_90a")


@tw.kernel
def through_registers(y, x, load: tw.constexpr, store: tw.constexpr):
    fragment = tw.registers(x.dtype, (4,))
    tile = (tw.thread_idx.x,)
    tw.copy(load, tw.local_tile(x, (4,), tile), fragment)
    tw.copy(store, fragment, tw.local_tile(y, (4,), tile))


@tw.kernel
def to_shared(y, x, atom: tw.constexpr, valid):
    smem = tw.shared(x.dtype, (4 * tw.block_dim.x,))
    tile = (tw.thread_idx.x,)
    tw.copy(atom, tw.local_tile(x, (4,), tile), tw.local_tile(smem, (4,), tile), pred=tw.thread_idx.x < valid)
    tw.cp_async_wait()
    tw.copy(tw.local_tile(smem, (4,), tile), tw.local_tile(y, (4,), tile))


def accesses(ptx: str) -> tuple[str, str]:
    """Return the load and the store of global memory in a kernel that has one of each."""
    (load,), (store,) = re.findall(r"\b(ld\.global\S*)", ptx), re.findall(r"\b(st\.global\S*)", ptx)
    return load, store


def ptx_of(load: dict[str, Any], store: dict[str, Any], arch: str = "sm_80", kernel: Any = through_registers) -> str:
    text: str = kernel.ptx(VECTOR, VECTOR, UniversalCopy(128, **load), UniversalCopy(128, **store), block=64, arch=arch)
    return text


@pytest.mark.parametrize("cache", LOADS)
@pytest.mark.spread(3)
def test_operators_of_loads(cache: str) -> None:
    load, store = accesses(ptx_of({"cache": cache}, {}))
    wanted = {"lu": "ld.global.lu.v4.b32"}.get(
        cache, f"ld.global.nc.{cache}.v4.b32" if cache.startswith("L1") else f"ld.global.{cache}.nc.v4.b32"
    )
    assert load == wanted
    assert store.startswith("st.global.v4")


@pytest.mark.parametrize("cache", STORES)
@pytest.mark.spread(3)
def test_operators_of_stores(cache: str) -> None:
    assert accesses(ptx_of({}, {"cache": cache}))[1] == f"st.global.{cache}.v4.b32"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prefetch", [None, *PREFETCHES])
def test_policies_and_prefetch(policy: str, prefetch: int | None) -> None:
    ptx = ptx_of({"policy": policy, "prefetch": prefetch, "cache": "cg"}, {"policy": policy})
    load, store = accesses(ptx)
    fetched = f".L2::{prefetch}B" if prefetch else ""
    assert (load, store) == (
        f"ld.global.cg.nc.L2::cache_hint{fetched}.v4.b32",
        "st.global.L2::cache_hint.v4.b32",
    )
    assert f"createpolicy.fractional.L2::{policy}.b64" in ptx


@pytest.mark.parametrize("arch", rest_is_slow(TARGETS, "sm_90a"))
def test_machine_code_carries_them(arch: str) -> None:
    kernel = through_registers
    atoms = UniversalCopy(128, "cs", policy="evict_first", prefetch=128), UniversalCopy(128, "L1::no_allocate")
    sass = kernel.sass(VECTOR, VECTOR, *atoms, block=64, arch=arch)
    (load,), (store,) = re.findall(r"\b(LDG\S*)", sass), re.findall(r"\b(STG\S*)", sass)
    assert ".EF" in load and ".LTC128B" in load, load
    assert ".NA" in store, store
    plain = kernel.sass(VECTOR, VECTOR, UniversalCopy(128), UniversalCopy(128), block=64, arch=arch)
    assert ".EF" not in plain and ".LTC" not in plain and ".NA" not in plain


@pytest.mark.parametrize(("arch", "cache", "prefetch"), covering(TARGETS, ["always", "global"], PREFETCHES))
@pytest.mark.spread(4)
def test_asynchronous_copies(arch: str, cache: Any, prefetch: int) -> None:
    atom = CpAsync(128, cache, policy="evict_last", prefetch=prefetch)
    ptx = to_shared.ptx(VECTOR, VECTOR, atom, 7, block=64, arch=arch)
    operator = {"always": "ca", "global": "cg"}[cache]
    assert f"cp.async.{operator}.shared.global.L2::cache_hint.L2::{prefetch}B [" in ptx
    sass = to_shared.sass(VECTOR, VECTOR, atom, 7, block=64, arch=arch)
    assert re.search(rf"LDGSTS\S*\.LTC{prefetch}B", sass)


def test_arrays_that_the_kernel_writes_are_read_coherently() -> None:
    @tw.kernel
    def add(x, load: tw.constexpr):
        fragment = tw.registers(x.dtype, (4,))
        tile = tw.local_tile(x, (4,), (tw.thread_idx.x,))
        tw.copy(load, tile, fragment)
        tw.axpby(1, fragment, 1, tile)

    ptx = add.ptx(VECTOR, UniversalCopy(128, "cs"), block=64)
    assert "ld.global.cs.v4.b32" in ptx and ".nc" not in ptx


def test_arrays_that_may_overlap_are_read_coherently() -> None:
    from tilewright.backends.cuda import generate

    lowered = through_registers.lower(VECTOR, VECTOR, UniversalCopy(128, "cs"), UniversalCopy(128), block=64)
    assert "ld.global.cs.nc" in generate(lowered.kernel, lowered.arch).text
    text = generate(lowered.kernel, lowered.arch, restrict=False).text
    assert "ld.global.cs.v4" in text and ".nc" not in text


def test_a_guarded_load_keeps_its_hints() -> None:
    assert "ld.global.cs.nc" in to_shared.ptx(VECTOR, VECTOR, UniversalCopy(128, "cs"), 7, block=64)


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"cache": "cv"}, {"policy": "evict"}, {"prefetch": 32}])
def test_hints_that_ptx_has_not(given: dict[str, Any]) -> None:
    with pytest.raises(tw.LayoutError, match="and it is one of"):
        UniversalCopy(32, **given)


def test_hints_know_their_target() -> None:
    assert [CacheHints(*h).arch for h in [("cs",), (None, "evict_last"), (None, None, 128), (None, None, 256)]] == [
        *("", "sm_80", "sm_75", "sm_80")
    ]


@pytest.mark.parametrize(("given", "arch"), [({"policy": "evict_first"}, "sm_75"), ({"prefetch": 128}, "sm_70")])
def test_targets_that_lack_them(given: dict[str, Any], arch: str) -> None:
    with pytest.raises(tw.LanguageError, match=f"needs sm_.* or later, and the target is {arch}") as caught:
        through_registers.source(VECTOR, VECTOR, UniversalCopy(128, **given), UniversalCopy(128), block=64, arch=arch)
    assert "tw.copy(load, tw.local_tile" in str(caught.value)
    assert "cache= works everywhere" in str(caught.value)


@pytest.mark.parametrize(
    ("load", "store"), [({"cache": "wt"}, {}), ({}, {"cache": "ca"}), ({}, {"prefetch": 128})], ids=str
)
def test_hints_of_the_other_side(load: dict[str, Any], store: dict[str, Any]) -> None:
    with pytest.raises(tw.LanguageError, match="has cache hints that neither side can carry"):
        through_registers.source(VECTOR, VECTOR, UniversalCopy(128, **load), UniversalCopy(128, **store), block=64)


def test_hints_are_for_global_memory() -> None:
    @tw.kernel
    def inside():
        tw.copy(UniversalCopy(128, "cs"), tw.shared(tw.float32, (4,)), tw.registers(tw.float32, (4,)))

    with pytest.raises(tw.LanguageError, match="neither side can carry") as caught:
        inside.source(block=64)
    assert "help: hints are for global memory" in str(caught.value)
