"""Hardware: devices by their data sheets. What they reach of these figures is a matter of the cost model's factors."""

from __future__ import annotations

from dataclasses import dataclass

from orcaserve.core import ConfigError


@dataclass(frozen=True, slots=True)
class Hardware:
    """One kind of device, and how devices of its kind are connected.

    memory_bytes: of one device. bandwidth: of its memory, bytes/s. peak: operations/s in 16-bit floats, dense.
    link: bytes/s that a device can send to those of its machine; network: that machines can send to one another.
    """

    name: str
    memory_bytes: int
    bandwidth: float
    peak: float
    link: float
    network: float = 200e9  # 8 x 200 Gb/s
    devices_per_machine: int = 8


_MIB, _GIB = 2**20, 2**30
A100_40GB = Hardware("a100-40gb", 40_536 * _MIB, 1555e9, 312e12, 300e9)
HARDWARE = {
    hardware.name: hardware
    for hardware in (
        A100_40GB,
        Hardware("a100-80gb", 80 * _GIB, 2039e9, 312e12, 300e9),
        Hardware("h100", 80 * _GIB, 3350e9, 989e12, 450e9, network=400e9),
        Hardware("h200", 141 * 10**9, 4800e9, 989e12, 450e9, network=400e9),
        Hardware("b200", 180 * 10**9, 7700e9, 2250e12, 900e9, network=400e9),
        Hardware("l40s", 48 * _GIB, 864e9, 362e12, 32e9, network=25e9),
    )
}


def find_hardware(name: str) -> Hardware:
    """Raises ConfigError, with those there are."""
    try:
        return HARDWARE[name.lower()]
    except KeyError:
        known = ", ".join(HARDWARE)
        raise ConfigError("--hardware", f"{name!r} is none of {known}, and no profile of that name exists") from None
