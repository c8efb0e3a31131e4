"""Number formats: how many bytes a tensor of each format takes, scales included.

Bytes of a weight are exact integers: element bits plus the scales its quantisation stores. Block scales cover
``block`` consecutive elements of the last (input) dimension, or ``block x block`` tiles for fp8_block.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfsim.units import Number, ceil_div


@dataclass(frozen=True)
class Format:
    """``bits`` per element; a scale of ``scale_bits`` per ``rows`` x ``columns`` elements; ``tensor_bits`` once per
    matrix. ``weight_only``: activations are not quantised, matmuls run at their dtype's rate."""

    name: str
    bits: int
    rows: int = 0
    columns: int = 0
    scale_bits: int = 0
    tensor_bits: int = 0
    weight_only: bool = False
    source: str = ""


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("fp32", 32, source="IEEE 754"),
        Format("tf32", 32, source="stored as fp32; NVIDIA A100 whitepaper"),
        Format("bf16", 16),
        Format("fp16", 16, source="IEEE 754"),
        Format("fp8", 8, tensor_bits=32, source="Micikevicius 2022 (E4M3/E5M2), one fp32 scale per tensor"),
        Format("fp8_block", 8, 128, 128, 32, source="DeepSeek-V3 2024, section 3.3: fp32 scale per 128x128 tile"),
        Format("fp8_channel", 8, 1, 0, 32, source="one fp32 scale per output channel"),
        Format("mxfp8", 8, 1, 32, 8, source="OCP MX 1.0: E8M0 scale per 32 elements"),
        Format("int8", 8, 1, 0, 32, source="one fp32 scale per output channel (LLM.int8, SmoothQuant)"),
        Format("mxfp4", 4, 1, 32, 8, source="OCP MX 1.0: E8M0 scale per 32 elements"),
        Format("nvfp4", 4, 1, 16, 8, 64, source="NVIDIA NVFP4: E4M3 scale per 16 elements, fp32 scales per tensor"),
        Format("int4_g32", 4, 1, 32, 16, weight_only=True, source="compressed-tensors, group 32, bf16 scale"),
        Format("int4_g64", 4, 1, 64, 16, weight_only=True, source="AWQ/GPTQ, group 64, fp16 scale, symmetric"),
        Format("int4_g128", 4, 1, 128, 16, weight_only=True, source="AWQ/GPTQ, group 128, fp16 scale, symmetric"),
        Format(
            "int4_zp_g32", 4, 1, 32, 20, weight_only=True, source="AWQ/GPTQ, group 32, fp16 scale, 4-bit zero point"
        ),
        Format(
            "int4_zp_g64", 4, 1, 64, 20, weight_only=True, source="AWQ/GPTQ, group 64, fp16 scale, 4-bit zero point"
        ),
        Format(
            "int4_zp_g128", 4, 1, 128, 20, weight_only=True, source="AWQ/GPTQ, group 128, fp16 scale, 4-bit zero point"
        ),
    )
}
FORMAT_NAMES = tuple(FORMATS)


def weight_bytes(fmt: str, rows: Number, columns: Number) -> Number:
    """Bytes of a [rows, columns] matrix (output x input dimension) in ``fmt``, scales included."""
    f = FORMATS[fmt]
    total = ceil_div(rows * columns * f.bits, 8)
    if f.scale_bits:
        down = ceil_div(rows, f.rows)
        across = ceil_div(columns, f.columns) if f.columns else 1
        total = total + ceil_div(down * across * f.scale_bits, 8)
    return total + f.tensor_bits // 8


def element_bytes(fmt: str) -> float | int:
    """Bytes per activation or cache element in ``fmt`` (0.5 for 4-bit formats), scales left out."""
    bits = FORMATS[fmt].bits
    return bits // 8 if bits % 8 == 0 else bits / 8
