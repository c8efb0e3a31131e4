"""The device that torch measures on: found or refused in one line, and described for the record."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfsim.errors import InputError, choice

DEVICES = ("cpu", "cuda", "mps")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def require_torch() -> Any:
    """The module torch. Raises InputError that says how to install it where it is missing."""
    try:
        import torch
    except ImportError:
        raise InputError(
            "measuring needs PyTorch, which is not installed: run pip install 'tfsim[measure]' (nothing else needs it)"
        ) from None
    return torch


@dataclass(frozen=True)
class Backend:
    """Where torch runs: ``device`` "cpu", "cuda" or "mps"; ``threads`` of torch's pool on a CPU, 1 elsewhere."""

    torch: Any
    device: str
    threads: int

    def synchronize(self) -> None:
        """Wait until the device has done what was queued; a CPU has by then."""
        if self.device != "cpu":
            getattr(self.torch, self.device).synchronize()

    def dtype(self, name: str) -> Any:
        """torch's dtype for "fp32", "bf16" or "fp16". Raises InputError for another name."""
        return getattr(self.torch, DTYPES[choice("dtype", name, DTYPES)])

    def random(self, *shape: int, dtype: str = "fp32") -> Any:
        """A tensor of normal numbers on the device."""
        return self.torch.randn(*shape, device=self.device).to(self.dtype(dtype))


def cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def backend(device: str | None = None, threads: int | None = None) -> Backend:
    """The device asked for, or the best there is, with torch's threads set.

    Raises InputError without torch, for an unknown device or one that this machine lacks, and for threads below 1 or
    above the CPUs there are.
    """
    torch = require_torch()
    present = {
        "cpu": lambda: True,
        "cuda": torch.cuda.is_available,
        "mps": lambda: hasattr(torch.backends, "mps") and torch.backends.mps.is_available(),
    }
    if device is None:
        device = next(name for name in ("cuda", "mps", "cpu") if present[name]())
    if not present[choice("torch device", device, DEVICES)]():
        have = ", ".join(name for name in DEVICES if present[name]())
        raise InputError(f"device: torch {torch.__version__} sees no '{device}' on this machine: it has {have}")
    if threads is not None:
        if not 1 <= threads <= cpus():
            raise InputError(f"threads: {threads} is not between 1 and the {cpus()} CPUs of this machine")
        torch.set_num_threads(threads)
    if device == "cpu":
        _keep_memory()
    return Backend(torch, device, torch.get_num_threads() if device == "cpu" else 1)


def _keep_memory() -> None:
    """Have glibc's allocator keep what is freed, as the allocators that PyTorch's tuning guide recommends and CUDA's
    own do. Left alone it hands large blocks back at rules that depend on all that was freed before, and each step then
    pays for zeroed pages anew: times of one operation would depend on what ran earlier. Other C libraries: nothing."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_max = -1, -4  # malloc.h
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, 2**31 - 1)


@dataclass(frozen=True)
class Facts:
    """What the operating system and the driver say of the device. None: they do not say."""

    model: str
    vendor: str
    cores: int
    clock_hz: float | None
    memory_bytes: int
    l1_bytes: float | None
    l2_bytes: float | None
    llc_bytes: float | None
    torch: str
    threads: int
    capability: tuple[int, int] | None = None  # CUDA's, of an NVIDIA GPU

    @property
    def last_cache(self) -> float:
        """Bytes of the last cache before memory; 8 MiB where nobody says."""
        return self.llc_bytes or self.l2_bytes or 2**23

    def words(self) -> str:
        """One line for the record."""
        cores, threads = (
            f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in ((self.cores, "core"), (self.threads, "thread"))
        )
        return f"{self.model}, {cores}, {threads}, torch {self.torch}"


# Compute capability -> architecture: NVIDIA, "CUDA GPU Compute Capability" (developer.nvidia.com/cuda-gpus). A whole
# number stands for its minor ones that are not named.
_ARCHITECTURES = {
    (3,): "kepler", (6,): "pascal", (7,): "volta", (7, 5): "turing", (8,): "ampere", (8, 9): "ada", (9,): "hopper",
    (10,): "blackwell", (10, 3): "blackwell-ultra", (12,): "blackwell",
}  # fmt: skip
# The dies with HBM beside them; their relatives of the same architecture have GDDR.
_HBM = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (10, 3))


def architecture(capability: tuple[int, int]) -> str | None:
    """NVIDIA's architecture of a compute capability, as device profiles name it; None for one that nobody listed."""
    return _ARCHITECTURES.get(capability) or _ARCHITECTURES.get(capability[:1])


def memory_type(capability: tuple[int, int]) -> str:
    """Kind of memory, "HBM" or "GDDR", by the die that a compute capability stands for."""
    return "HBM" if capability in _HBM else "GDDR"


def facts(where: Backend) -> Facts:
    """The facts of ``where``. Caches are those of all the cores used together, in bytes."""
    return _gpu_facts(where) if where.device == "cuda" else _cpu_facts(where)


def _gpu_facts(where: Backend) -> Facts:
    found = where.torch.cuda.get_device_properties(0)
    clock = getattr(found, "clock_rate", None)  # [kHz]
    l2 = getattr(found, "L2_cache_size", None)
    nvidia = where.torch.version.hip is None
    return Facts(
        found.name, "NVIDIA" if nvidia else "AMD", found.multi_processor_count,
        clock * 1e3 if clock else None, found.total_memory, None, l2, None, where.torch.__version__, 1,
        (found.major, found.minor) if nvidia else None,
    )  # fmt: skip


def _cpu_facts(where: Backend) -> Facts:
    info = _read(Path("/proc/cpuinfo"))
    model = _field(info, "model name") or platform.processor() or platform.machine() or "CPU"
    vendor = _field(info, "vendor_id") or platform.system()
    megahertz = [float(x) for x in re.findall(r"^cpu MHz\s*: ([\d.]+)", info, re.MULTILINE)]
    cores = min(where.threads, os.cpu_count() or 1)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    caches = {level: _cache(level, cores) for level in (1, 2, 3)}
    return Facts(
        model.strip(), {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}.get(vendor, vendor), cores,
        max(megahertz) * 1e6 if megahertz else None, memory, caches[1], caches[2], caches[3],
        where.torch.__version__, where.threads,
    )  # fmt: skip


def _field(text: str, name: str) -> str:
    found = re.search(rf"^{name}\s*: (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


def _cache(level: int, cores: int) -> float | None:
    """Bytes of the data caches of one level that ``cores`` cores use together."""
    for index in sorted(_CACHES.glob("index*")):
        if _read(index / "level").strip() != str(level) or _read(index / "type").strip() == "Instruction":
            continue
        size = re.match(r"(\d+)K", _read(index / "size"))
        sharers = _cpu_list(_read(index / "shared_cpu_list"))
        if size:
            return float(size[1]) * 1024 * -(-cores // max(1, sharers))
    return None


def _cpu_list(text: str) -> int:
    """Number of CPUs in a list such as "0-3,8"."""
    count = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            count += int(last or first) - int(first) + 1
    return count


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""  # another operating system: the fact is then unknown, and the profile says so


Progress = Callable[[int, int, str], None]
"""Called with what is done, of how many, and what comes next."""
