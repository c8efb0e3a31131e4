"""What follows the last layer: a language model's output matrix, or something else."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tfsim.models.spec.base import LAYER_NORM, Count, Flag, Norm, Size, Strict
from tfsim.models.spec.dit import DenoiseHead
from tfsim.models.spec.evoformer import SingleHead
from tfsim.models.spec.ffn import ActivationName


class LMHead(Strict):
    """The output matrix over the vocabulary (``tied_embeddings`` and ``head_bias`` say how).

    ``loss_fp32``: a model with an encoder takes its loss in fp32 too, as decoders alone always do. ``own_labels``: the
    loss of a decoder alone keeps a shifted copy of its input as labels, as transformers makes one.

    ``action_tokens``: tokens that one control step of a robot decodes, each standing for one of ``action_bins`` values
    of one degree of freedom (Brohan et al. 2023, RT-2, section 3.2: 8 of 256); 0: the model writes text. They are
    tokens of the vocabulary, so the output matrix is the language model's own.
    """

    kind: Literal["lm"] = "lm"
    loss_fp32: Flag = False
    own_labels: Flag = True
    action_tokens: Count = 0
    action_bins: Size = 256

    def describe(self) -> str:
        """Such as "language model; actions: 8 tokens of 256 bins per control step"."""
        actions = f"; actions: {self.action_tokens} tokens of {self.action_bins:,} bins per control step"
        return "language model" + (actions if self.action_tokens else "")


class MaskedLMHead(Strict):
    """A transform (linear, activation, norm) before the output matrix (Devlin et al. 2019)."""

    kind: Literal["masked_lm"] = "masked_lm"
    activation: ActivationName = "gelu"
    bias: Flag = True
    norm: Norm = LAYER_NORM

    def describe(self) -> str:
        """In words."""
        return "masked language model"


class Pooler(Strict):
    """A linear layer and tanh on the first position (Devlin et al. 2019)."""

    kind: Literal["pooler"] = "pooler"

    def describe(self) -> str:
        """In words."""
        return "pooler on the first position"


class Classifier(Strict):
    """A linear layer to ``n_classes`` on the ``first`` position or on ``all``; ``hidden``: a linear layer of d_model
    and an activation (tanh: BERT's pooler; gelu: ELECTRA's) before it."""

    kind: Literal["classifier"] = "classifier"
    n_classes: Size
    position: Literal["first", "all"] = "first"
    hidden: Flag = False

    def describe(self) -> str:
        """Such as "1,000 classes"."""
        return f"{self.n_classes:,} classes" + (" for every position" if self.position == "all" else "")


class Projection(Strict):
    """A linear map of one position into a space shared by two towers (Radford et al. 2021, CLIP).

    ``contrast``: the similarities with the encoder's projections are taken here, scaled by one learned number.
    """

    kind: Literal["projection"] = "projection"
    d_out: Size
    contrast: Flag = False

    def describe(self) -> str:
        """Such as "projection to 512"."""
        return f"projection to {self.d_out:,}"


class Merger(Strict):
    """From the patches of an image to tokens of a text model: ``patches`` neighbours become one token.

    A patch's vector is what ``features`` layers say of it, joined. A layer of each width of ``each`` on every patch;
    then the neighbours joined into one vector (or their ``mean``), and a layer of each width of ``joined``. ``norm``:
    before all, on each patch or, with ``norm_joined``, on the joined vector. ``merged``: one more layer on the joined
    vector, of that width and with no activation after it (a strided convolution: GLM-4V, which has a bias there alone,
    ``merged_bias``; Mistral 3); ``inner_norm``: after the first layer of ``joined`` (GLM-4V). ``gated``: the last
    hidden layer is twice as wide, and half of it gates the other half (Shazeer 2020). ``taps``: further mergers of the
    same widths that read earlier layers (Qwen3-VL's deepstack), whose norm is over the joined vector. ``newline``: a
    learned token that ends the rows of larger images (LLaVA-NeXT). ``beside``: published as a projector beside the
    tower, not as a part of it. ``joins_encoder``: a patch is its vector here joined with the one of an encoder, a
    second tower that looks at the same patches (Karamcheti et al. 2024, Prismatic; OpenVLA).
    """

    kind: Literal["merger"] = "merger"
    patches: Size
    features: Size = 1
    each: tuple[Size, ...] = ()
    joined: Annotated[tuple[Size, ...], Field(min_length=1)]
    mean: Flag = False
    norm: Norm | None = None
    norm_joined: Flag = False
    merged: Size | None = None
    merged_bias: Flag = False
    inner_norm: Norm | None = None
    gated: Flag = False
    bias: Flag = True
    taps: Count = 0
    newline: Flag = False
    beside: Flag = False
    joins_encoder: Flag = False

    @model_validator(mode="after")
    def _consistent(self) -> Merger:
        if self.gated and len(self.joined) < 2:
            raise ValueError("joined: a gated merger needs a hidden width and an output width")
        if self.mean and (self.merged or self.norm_joined):
            raise ValueError("mean: neighbours that are averaged are not joined: leave out merged and norm_joined")
        if self.merged_bias and not self.merged:
            raise ValueError("merged_bias: there is no layer for it: give merged")
        return self

    def describe(self) -> str:
        """Such as "4 patches to a token of 2,048"."""
        from_each = "each patch" if self.patches == 1 else f"{self.patches} patches"
        return f"{from_each} to a token of {self.joined[-1]:,}"


class NoHead(Strict):
    """Nothing: the last layer's output (and its norm) is what another stack reads."""

    kind: Literal["none"] = "none"

    def describe(self) -> str:
        """In words."""
        return "none"


Head = LMHead | MaskedLMHead | Pooler | Classifier | Projection | SingleHead | DenoiseHead | NoHead | Merger
