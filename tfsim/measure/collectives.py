"""All-reduce between processes of this machine, over gloo (CPU) or NCCL (CUDA devices)."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tfsim.errors import InputError
from tfsim.measure.backend import Backend, cpus

_SIZES = (2**10, 2**14, 2**18, 2**22, 2**25)  # bytes
_REPEATS, _WARM_UP = 20, 3
# Small ones one after the other, up to so many or so many bytes: processes leave a barrier at different times, which
# one alone would be charged with.
_CALLS, _SAMPLE = 32, 2**20
_PATIENCE = 120  # seconds that the processes may take together


def check_ranks(where: Backend, ranks: int) -> None:
    """Raises InputError unless ``ranks`` processes can reduce together: at least two, a CUDA device or
    ``where.threads`` CPUs for each, and collectives in torch."""
    if ranks < 2:
        raise InputError(f"ranks: {ranks}: an all-reduce takes two processes or more")
    torch = where.torch
    if where.device == "cuda" and ranks > torch.cuda.device_count():
        raise InputError(f"ranks: {ranks} is more than the {torch.cuda.device_count()} CUDA devices of this machine")
    if where.device == "cpu" and ranks * where.threads > cpus():
        raise InputError(f"ranks: {ranks} of {where.threads} threads each are more than the {cpus()} CPUs here")
    if where.device == "mps" or not torch.distributed.is_available():
        raise InputError(f"ranks: torch {torch.__version__} has no collectives for {where.device}")


def measure_all_reduce(where: Backend, ranks: int, *, quick: bool = False) -> list[dict[str, Any]]:
    """Rows of kind "all_reduce": ``bytes`` summed by ``ranks`` processes, a device each on CUDA, ``where.threads`` CPUs
    each on a CPU.

    Raises InputError for a number of ranks that cannot be (``check_ranks``), or processes that fail or hang.
    """
    check_ranks(where, ranks)
    torch = where.torch
    sizes = _SIZES[::2] if quick else _SIZES
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("meeting", "seconds")]
        context = torch.multiprocessing.get_context("spawn")
        running = [
            context.Process(target=_rank, args=(rank, ranks, where.device, where.threads, *files, sizes))
            for rank in range(ranks)
        ]
        for process in running:
            process.start()
        deadline = time.monotonic() + _PATIENCE
        for process in running:
            process.join(max(0.1, deadline - time.monotonic()))
        if any(process.exitcode != 0 for process in running):
            for process in running:
                process.kill()
            raise InputError(f"ranks: {ranks} processes could not reduce together within {_PATIENCE} s")
        times = [[float(x) for x in line.split()] for line in Path(files[1]).read_text(encoding="utf-8").splitlines()]
    return [
        {"kind": "all_reduce", "name": "all_reduce", "phase": "inference", "dtype": "fp32", "ranks": ranks,
         "bytes": size, "elements": size // 4, "flops": 0, "held_bytes": 0, "copies_timed": 1, "time_s": middle,
         "spread": spread, "samples": _REPEATS, "threads": where.threads}
        for size, (middle, spread) in zip(sizes, times, strict=True)
    ]  # fmt: skip


def _rank(rank: int, ranks: int, device: str, threads: int, meeting: str, results: str, sizes: tuple[int, ...]) -> None:
    """One process; the first writes the median seconds and the quartiles' distance per size."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(threads)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    place = f"cuda:{rank}" if device == "cuda" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    lines = []
    for size in sizes:
        x = torch.zeros(size // 4, device=place)
        calls = max(1, min(_CALLS, _SAMPLE // size))
        times = []
        for _ in range(_WARM_UP + _REPEATS):
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(calls):
                dist.all_reduce(x)
            if device == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter() - begun) / calls)
        low, middle, high = statistics.quantiles(times[_WARM_UP:], n=4)
        lines.append(f"{middle} {(high - low) / middle}")
    if rank == 0:
        Path(results).write_text("\n".join(lines), encoding="utf-8")
    dist.destroy_process_group()
