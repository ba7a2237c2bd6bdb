"""The devices that torch has on this machine."""

from __future__ import annotations

from vinoreward.errors import UnknownDeviceError


def check_device(name: str) -> None:
    """Refuse a device that is not there: Stable-Baselines3 would take the CPU and say nothing.

    Args:
        name: as torch names devices, ``cpu``, ``cuda`` or ``cuda:1``; ``auto`` is always there.

    Raises:
        UnknownDeviceError: torch has no such device; the message names those it has.
    """
    import torch

    present = ["cpu"]
    if torch.accelerator.is_available() and (found := torch.accelerator.current_accelerator()):
        present += [f"{found.type}:{index}" for index in range(torch.accelerator.device_count())]
    # Without a number it is the current one of its kind.
    if name not in {"auto", *present, *(device.split(":")[0] for device in present)}:
        raise UnknownDeviceError(
            f"found the torch device {name!r}. Expected one of those present, "
            f"{', '.join(present)}, or auto; change --device."
        )
