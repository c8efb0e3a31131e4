"""AlphaFold 2's Evoformer stack; field names are those of OpenFold, defaults those of AlphaFold's configuration.

No transformers class stands behind the ``evoformer`` type: it is tfsim's own, equal to OpenFold's EvoformerStack.
"""

from __future__ import annotations

from tfsim.models.huggingface.common import Decoder
from tfsim.models.huggingface.fields import Fields, FieldTable
from tfsim.models.spec import LAYER_NORM, Block
from tfsim.models.spec.evoformer import AlignmentFrontend, Evoformer, SingleHead

EVOFORMER = FieldTable(
    used={
        "num_layers": 48,
        "c_m": 256,
        "c_z": 128,
        "c_s": 384,
        "c_hidden_msa_att": 32,
        "heads_msa": 8,
        "c_hidden_opm": 32,
        "c_hidden_mul": 128,
        "c_hidden_pair_att": 32,
        "heads_pair": 4,
        "transition_n": 4,
    },
    aliases={"no_blocks": "num_layers", "no_heads_msa": "heads_msa", "no_heads_pair": "heads_pair"},
    harmless=frozenset({"p", "msa_dropout", "pair_dropout"}),
)


def evoformer(f: Fields) -> Decoder:
    """Jumper et al. 2021, supplement 1.6: blocks, and the linear map to the single representation."""
    mixer = Evoformer(
        d_pair=f.size("c_z"),
        n_msa_heads=f.size("heads_msa"),
        d_msa_head=f.size("c_hidden_msa_att"),
        n_pair_heads=f.size("heads_pair"),
        d_pair_head=f.size("c_hidden_pair_att"),
        d_outer=f.size("c_hidden_opm"),
        d_triangle=f.size("c_hidden_mul"),
        transition=f.size("transition_n"),
    )
    block = Block(mixer=mixer, ffn=None, residual="none")
    return Decoder(
        layers=[block] * f.layers("num_layers"),
        d_model=f.size("c_m"),
        vocab_size=0,
        tied=False,
        norm=LAYER_NORM,
        dropout=(),
        extra={"frontend": AlignmentFrontend(), "head": SingleHead(d_out=f.size("c_s")), "final_norm": False},
    )
