"""The Evoformer of AlphaFold 2: a block over two streams, the alignment and the pairs of residues."""

from __future__ import annotations

from typing import Literal

from tfsim.models.spec.base import Size, Strict
from tfsim.models.spec.mixers import MixerSpec


class Evoformer(MixerSpec):
    """One Evoformer block (Jumper et al. 2021, supplement, Algorithm 6).

    The alignment has a row per sequence (``encoder_len``) and a column per residue (``seq_len``), each d_model wide
    (c_m); every pair of residues has ``d_pair`` values (c_z). ``d_outer``: width of the outer product mean;
    ``d_triangle``: of the triangle multiplications; ``transition``: widening of the transitions.
    """

    kind: Literal["evoformer"] = "evoformer"
    d_pair: Size
    n_msa_heads: Size
    d_msa_head: Size
    n_pair_heads: Size
    d_pair_head: Size
    d_outer: Size
    d_triangle: Size
    transition: Size = 4

    @property
    def n_parts(self) -> int:
        """One: tensor parallelism does not cut it."""
        return 1

    def describe(self) -> str:
        """Such as "Evoformer, pairs of 128, 8 / 4 heads"."""
        return f"Evoformer, pairs of {self.d_pair}, {self.n_msa_heads} / {self.n_pair_heads} heads"


class AlignmentFrontend(Strict):
    """The alignment's and the pairs' representations are given: their embedders are not part of the stack.

    Defaults: the crop of AlphaFold 2's initial training (Jumper et al. 2021, supplement, table 4).
    """

    kind: Literal["alignment"] = "alignment"
    n_residues: Size = 256
    n_sequences: Size = 128

    @property
    def seq_len(self) -> int:
        """Residues of the usual input."""
        return self.n_residues

    def describe(self) -> str:
        """Such as "alignment of 128 sequences, 256 residues"."""
        return f"alignment of {self.n_sequences} sequences, {self.n_residues} residues"


class SingleHead(Strict):
    """A linear map of the alignment's first row to the ``d_out`` values a residue that the structure module reads."""

    kind: Literal["single"] = "single"
    d_out: Size

    def describe(self) -> str:
        """Such as "single representation of 384"."""
        return f"single representation of {self.d_out}"
