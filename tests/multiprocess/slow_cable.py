"""A cable with a delay between two network namespaces, without netem: two TUN devices, and we carry the packets."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import threading
import time
from queue import SimpleQueue

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TUN, _NO_PACKET_INFO = 1, 0x1000


class SlowCable:
    """Devices of one name in both namespaces. Their addresses are the caller's business. Raises OSError.

    delay: seconds for each packet, either way; may be changed at any time.
    """

    def __init__(self, namespaces: tuple[str, str], device: str) -> None:
        self.delay = 0.0
        self._ends = [_device_in(namespace, device) for namespace in namespaces]
        for this, other in (self._ends, self._ends[::-1]):
            packets: SimpleQueue[tuple[float, bytes] | None] = SimpleQueue()
            threading.Thread(target=self._take, args=(this, packets), daemon=True).start()
            threading.Thread(target=self._give, args=(other, packets), daemon=True).start()

    def close(self) -> None:
        """Once the namespaces are gone: only that wakes a thread that reads."""
        for end in self._ends:
            os.close(end)

    def _take(self, end: int, packets: SimpleQueue[tuple[float, bytes] | None]) -> None:
        try:
            while True:
                packet = os.read(end, 65536)
                packets.put((time.monotonic() + self.delay, packet))
        except OSError:
            packets.put(None)

    def _give(self, end: int, packets: SimpleQueue[tuple[float, bytes] | None]) -> None:
        while (entry := packets.get()) is not None:
            due, packet = entry
            time.sleep(max(due - time.monotonic(), 0))
            try:
                os.write(end, packet)
            except OSError:  # the other end is not up (any more)
                continue


def _device_in(namespace: str, device: str) -> int:
    """A TUN device there, by its file descriptor. Namespaces are a thread's own: this one's stays what it is."""
    made: list[int | OSError] = []

    def make() -> None:
        try:
            with open(f"/var/run/netns/{namespace}") as handle:
                if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            end = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _TUN | _NO_PACKET_INFO))
            made.append(end)
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]
