"""What torch itself says of a pass: parameters, FLOPs, bytes kept for the backward pass, bytes of a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count


def n_parameters(model: nn.Module) -> int:
    """Distinct parameters, learned or not."""
    return sum(p.numel() for p in model.parameters())


def flops(run: Callable[[], Any]) -> int:
    """FLOPs of ``run`` by torch's counter, with two rules of ours.

    It knows fused attention on GPUs only: the CPU's kernel is counted alike, two products forward and five backward.
    Of a convolution in groups it counts the gradient of the weights as if there were no groups: each gradient takes as
    many products as the forward pass.
    """
    ops = torch.ops.aten
    rules = {
        ops._scaled_dot_product_flash_attention_for_cpu: _attention,
        ops._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
        ops.convolution_backward: _convolution_backward,
    }
    with FlopCounterMode(display=False, custom_mapping=rules) as counter:
        run()
    return int(counter.get_total_flops())


def _attention(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], *_: Any, **__: Any) -> int:
    batch, heads, queries, d = q
    return 2 * batch * heads * queries * k[2] * (d + v[3])


def _attention_backward(gradient: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return _attention(q, k, v) * 5 // 2


def _convolution_backward(gradient: Any, x: Any, weight: Any, *rest: Any, **__: Any) -> int:
    wanted = rest[-1]  # of the input, the weight, the bias
    return int(conv_flop_count(x, weight, gradient) * (wanted[0] + wanted[1]))


def saved_bytes(forward: Callable[[], Any], given: Iterable[Tensor]) -> int:
    """Bytes of the storages that autograd keeps for the backward pass, each once, without those ``given`` (parameters,
    inputs, targets)."""
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # held, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = forward()
    outside = {tensor.untyped_storage().data_ptr() for tensor in given}
    del result
    return sum(storage.nbytes() for address, storage in kept.items() if address not in outside)


def tensors_of(nested: Any) -> list[Tensor]:
    """All tensors in nested lists."""
    return [nested] if isinstance(nested, Tensor) else [tensor for part in nested for tensor in tensors_of(part)]


def bytes_of(nested: Any) -> int:
    """Bytes of all tensors in nested lists."""
    return sum(tensor.nbytes for tensor in tensors_of(nested))
