from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.arch import ARCHES, Arch, default_arch


@pytest.mark.parametrize("spec", ["sm_90a", "90a", ARCHES["sm_90a"]])
def test_names_of_one_arch(spec: object) -> None:
    assert Arch.parse(spec) is ARCHES["sm_90a"]  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["sm_80", "80", 80, (8, 0)])
def test_numbers_name_an_arch(spec: object) -> None:
    assert Arch.parse(spec) is ARCHES["sm_80"]  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["sm_60", "ampere", 0, "", "sm_80a"])
def test_no_such_arch(spec: object) -> None:
    with pytest.raises(ValueError, match=r"no architecture is called .* there are sm_70"):
        Arch.parse(spec)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("capability", "name"),
    [((7, 0), "sm_70"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 3), "sm_100"), ((12, 1), "sm_120")],
)
def test_target_of_a_device(capability: tuple[int, int], name: str) -> None:
    assert Arch.of_device(capability).name == name


@pytest.mark.parametrize("capability", [(6, 1), (99, 0)])
def test_devices_without_a_target(capability: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not supported"):
        Arch.of_device(capability)


def test_what_the_architectures_have() -> None:
    optin = {name: arch.shared_bytes_optin // 1024 for name, arch in ARCHES.items()}
    assert [optin[f"sm_{n}"] for n in ("70", "75", "80", "86", "89", "90a")] == [96, 64, 163, 99, 99, 227]
    assert [n for n, a in ARCHES.items() if not a.has_ldmatrix] == ["sm_70", "gfx908", "gfx90a", "gfx942"]
    assert [n for n, a in ARCHES.items() if not a.has_cp_async] == ["sm_70", "sm_75", "gfx908", "gfx90a", "gfx942"]
    assert [n for n, a in ARCHES.items() if a.has_clusters] == ["sm_90", "sm_90a", "sm_100", "sm_120"]
    assert [n for n, a in ARCHES.items() if a.warp_size == 64] == ["gfx908", "gfx90a", "gfx942"]
    assert default_arch().name == "sm_90a"
    assert str(default_arch()) == "sm_90a"


@pytest.mark.parametrize("option", ["clusters", "smem"])
def test_what_nothing_reads_is_not_offered(option: str) -> None:
    @tw.kernel
    def nothing(x):
        pass

    with pytest.raises(
        tw.ArgumentError,
        match=f"configure takes stream, min_blocks, arch, fastmath, cooperative, cluster and dependent_launch, got {option}",
    ):
        nothing.configure(**{option: 1})
    assert tw.Config(BM=1).options == {} and tw.Config(**{option: 1}).options == {}
