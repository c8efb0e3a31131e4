"""Number formats: how many bytes a tensor of each format takes, scales included.

Bytes of a weight are exact integers: element bits plus the scales its quantisation stores. Block scales cover
``block`` consecutive elements of the last (input) dimension, or ``block x block`` tiles for fp8_block. Tensor types of
GGUF files carry llama.cpp's names; which tensor of a file has which is ``tfsim.models.gguf``'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfsim.units import Number, ceil_div


@dataclass(frozen=True)
class Format:
    """``bits`` per element; ``scale_bits`` more (scales, zero points, offsets) per ``rows`` x ``columns`` elements, 0
    columns meaning the whole row; ``tensor_bits`` once per matrix. ``weight_only``: activations are not quantised,
    matmuls run at their dtype's rate. ``ggml``: a tensor type of GGUF files, whose blocks fill rows."""

    name: str
    bits: int
    rows: int = 0
    columns: int = 0
    scale_bits: int = 0
    tensor_bits: int = 0
    weight_only: bool = False
    ggml: bool = False
    source: str = ""

    @property
    def bits_per_weight(self) -> float:
        """Bits of an element of a large matrix, its share of its block's scales included."""
        return self.bits + (self.scale_bits / (self.rows * self.columns) if self.columns else 0)


def _ggml(name: str, bits: int, elements: int, block_bytes: int, inside: str) -> Format:
    """A tensor type of ggml: ``elements`` of a row in a block of ``block_bytes``, as its struct in ggml-common.h."""
    over = 8 * block_bytes - bits * elements
    return Format(
        name, bits, 1, elements, over, weight_only=True, ggml=True, source=f"llama.cpp block of {elements}: {inside}"
    )


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("fp32", 32, source="IEEE 754"),
        Format("tf32", 32, source="stored as fp32; NVIDIA A100 whitepaper"),
        Format("bf16", 16, source="fp32 with 7 bits of fraction"),
        Format("fp16", 16, source="IEEE 754"),
        Format("fp8", 8, tensor_bits=32, source="E4M3, one fp32 scale per tensor (Micikevicius 2022)"),
        Format("fp8_e5m2", 8, tensor_bits=32, source="E5M2, one fp32 scale per tensor (Micikevicius 2022)"),
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
        _ggml("q4_0", 4, 32, 18, "fp16 scale"),
        _ggml("q4_1", 4, 32, 20, "fp16 scale and minimum"),
        _ggml("q5_0", 5, 32, 22, "fp16 scale"),
        _ggml("q5_1", 5, 32, 24, "fp16 scale and minimum"),
        _ggml("q8_0", 8, 32, 34, "fp16 scale"),
        _ggml("q2_k", 2, 256, 84, "16 4-bit scales and minima, 2 fp16"),
        _ggml("q3_k", 3, 256, 110, "16 6-bit scales, fp16"),
        _ggml("q4_k", 4, 256, 144, "8 6-bit scales and minima, 2 fp16"),
        _ggml("q5_k", 5, 256, 176, "8 6-bit scales and minima, 2 fp16"),
        _ggml("q6_k", 6, 256, 210, "16 8-bit scales, fp16"),
        _ggml("iq1_s", 1, 256, 50, "11-bit codes of 8 elements, 3-bit scales and shift per 32, fp16"),
        _ggml("iq1_m", 1, 256, 56, "11-bit codes of 8 elements, 3-bit scales per 16, shifts, fp16"),
        _ggml("iq2_xxs", 2, 256, 66, "8-bit codes and 7-bit signs of 8 elements, 4-bit scales per 32, fp16"),
        _ggml("iq2_xs", 2, 256, 74, "9-bit codes and 7-bit signs of 8 elements, 4-bit scales per 16, fp16"),
        _ggml("iq2_s", 2, 256, 82, "10-bit codes and 8 signs of 8 elements, 4-bit scales per 16, fp16"),
        _ggml("iq3_xxs", 3, 256, 98, "8-bit codes of 4 elements, 7-bit signs of 8, 4-bit scales per 32, fp16"),
        _ggml("iq3_s", 3, 256, 110, "9-bit codes of 4 elements, 8 signs of 8, 4-bit scales per 64, fp16"),
        _ggml("iq4_nl", 4, 32, 18, "table of 16 levels, fp16 scale"),
        _ggml("iq4_xs", 4, 256, 136, "table of 16 levels, 6-bit scales per 32, fp16"),
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
    """Bytes per activation or cache element in ``fmt`` (0.5 for 4-bit formats); of ggml's types, whose scales lie among
    the elements, with them, and of the others without."""
    f = FORMATS[fmt]
    bits = f.bits_per_weight if f.ggml else f.bits
    return int(bits) // 8 if bits % 8 == 0 else bits / 8
