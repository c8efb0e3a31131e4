"""The lightning indexer of sparse attention: which cached keys a query attends to (DeepSeek-V3.2, 2025)."""

from __future__ import annotations

from tfsim.models.spec.base import Flag, Size, Strict
from tfsim.units import Number, minimum


class Indexer(Strict):
    """Scores every visible key with ``n_heads`` small query heads of ``d_head`` against one cached key, and selects
    (DeepSeek-V3.2-Exp, equation 1: I_ts = sum_j w_tj relu(q_tj k_s)).

    ``top_k``: keys a query then attends to. ``block``: keys are selected in blocks of that many (MiniMax-M3: the best
    key scores for its block), ``top_k`` counts keys, whole blocks. ``weighted``: a learned weight per head and query
    sums the heads, which all select together; otherwise each index head selects for its own group of KV heads.
    """

    n_heads: Size
    d_head: Size
    top_k: Size
    block: Size = 1
    weighted: Flag = True

    def keys(self, visible: Number) -> Number:
        """Keys attended to of ``visible`` ones."""
        return minimum(visible, self.top_k)

    def describe(self) -> str:
        """Such as "top 2,048 keys by 64 index heads of 128"."""
        blocks = f" in blocks of {self.block}" if self.block > 1 else ""
        return f"top {self.top_k:,} keys{blocks} by {self.n_heads} index heads of {self.d_head}"
