import re

import pytest

from nmtkit.errors import NmtkitError
from nmtkit.evaluation.devices import device_named, device_of, known_devices


def test_every_device_states_its_rates_memory_and_source() -> None:
    devices = known_devices()
    assert len({kind.name for kind in devices}) == len(devices) >= 20
    for kind in devices:
        assert kind.rates, kind.name
        assert all(1e12 < rate < 1e16 for rate in kind.rates.values()), kind.name
        assert 10e9 <= kind.memory_bytes <= 300e9, kind.name
        assert re.search("NVIDIA|AMD|the paper", kind.source), kind.name


def test_rates_are_dense_so_that_16_bits_are_at_most_as_fast_as_twice_tf32() -> None:
    for kind in known_devices():
        if "tf32" in kind.rates and "bf16" in kind.rates:
            assert kind.rates["bf16"] <= 2.1 * kind.rates["tf32"], kind.name


def test_the_papers_four_rates_are_those_of_its_footnote() -> None:
    stated = {kind.name: kind.paper_sustained for kind in known_devices() if kind.paper_sustained}
    assert stated == {"k80": 2.8e12, "k40": 3.7e12, "m40": 6.0e12, "p100": 9.5e12, "p100-pcie": 9.5e12}


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("Tesla K80", "k80"),
        ("Tesla K40m", "k40"),
        ("Tesla M40 24GB", "m40"),
        ("Tesla P100-PCIE-16GB", "p100-pcie"),
        ("Tesla P100-SXM2-16GB", "p100"),
        ("Tesla V100-PCIE-16GB", "v100-pcie"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("Tesla V100-DGXS-32GB", "v100-32gb"),
        ("Tesla V100S-PCIE-32GB", None),
        ("Tesla V100-FHHL-16GB", None),
        ("Tesla T4", "t4"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", None),
        ("NVIDIA A40", "a40"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA A100-40C", None),
        ("GRID A100-10C", None),
        ("NVIDIA A40-48Q", None),
        ("cpu", None),
    ],
)
def test_a_device_is_known_by_the_name_that_its_driver_gives_it(driver: str, name: str | None) -> None:
    found = device_of(driver)
    assert (found.name if found else None) == name


def test_a_device_is_named_in_any_case_and_a_wrong_name_is_told_with_the_nearest() -> None:
    assert device_named("H200").rates["bf16"] == 989.5e12
    with pytest.raises(NmtkitError, match=r"--device-type h20: not in the table; did you mean h200\?.*--rate"):
        device_named("h20")
    with pytest.raises(NmtkitError, match="--device-type abacus: not in the table \\("):
        device_named("abacus")
