"""How many slots the K/V region gets."""

from __future__ import annotations

from orcaserve.config import KVConfig
from orcaserve.core import ConfigError

DEFAULT_SHARE = 4  # one part in so many of the memory that is free once the weights are loaded


def choose_n_slots(config: KVConfig, slot_bytes: int, available: int, most_useful: int, n_replicas: int = 1) -> int:
    """The size of the K/V region in slots: a whole number of pages, at least one.

    slot_bytes: keys and values of one token over all layers; available: bytes of memory that are free;
    most_useful: slots that requests could fill at most (max_bs requests of the longest kind), a bound on the default.
    n_replicas: engines that share the default.
    Raises ConfigError, with the numbers, if the region does not fit.
    """
    page, page_bytes = config.page_size, config.page_size * slot_bytes
    if config.n_slots is not None:
        setting, pages = "--n-slots", config.n_slots // page
    elif config.memory_bytes is not None:
        setting, pages = "--kv-cache-memory-bytes", config.memory_bytes // page_bytes
        if pages == 0:
            raise ConfigError(setting, f"must be at least {page_bytes} bytes, for one page of {page} tokens")
    else:
        share = available // DEFAULT_SHARE // n_replicas
        setting, pages = "--n-slots", max(min(share // page_bytes, -(-most_useful // page)), 1)
    if pages * page_bytes > available:
        raise ConfigError(
            setting,
            f"{pages * page} slots of {slot_bytes} bytes need {_mib(pages * page_bytes)} for keys and values, "
            f"but {_mib(available)} of memory are free",
        )
    return pages * page


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.1f} MiB"
