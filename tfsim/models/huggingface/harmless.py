"""Fields of config.json that every model type shares and that change no count."""

from __future__ import annotations

from typing import Any


def words(*texts: str) -> frozenset[str]:
    """The words of some texts."""
    return frozenset(word for text in texts for word in text.split())


_TOKENS = (
    "bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id mask_token_id "
    "decoder_start_token_id forced_bos_token_id forced_eos_token_id image_token_index image_token_id "
    "boi_token_index boi_token_id eoi_token_index eoi_token_id video_token_id vision_start_token_id "
    "vision_end_token_id vision_token_id image_start_token_id image_end_token_id video_start_token_id "
    "video_end_token_id bos_token eos_token "
    "suppress_tokens begin_suppress_tokens bad_words_ids"
)
_FILE = (
    "architectures auto_map transformers_version _name_or_path name_or_path tokenizer_class model_max_length "
    "torchscript _commit_hash _attn_implementation _attn_implementation_autoset attn_implementation "
    "task_specific_params finetuning_task problem_type id2label label2id num_labels prefix return_dict "
    "return_dict_in_generate output_attentions output_hidden_states output_scores use_bfloat16 tf_legacy_loss "
    "tie_encoder_decoder is_decoder use_cache remove_invalid_values use_return_dict cache_implementation "
    "gradient_checkpointing unsloth_fixed unsloth_version"
)
_GENERATION = (
    "do_sample early_stopping max_length min_length num_beams num_beam_groups diversity_penalty temperature top_k "
    "top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
    "num_return_sequences exponential_decay_length_penalty"
)
_TRAINING = (
    "initializer_range init_std embedding_fraction attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_pdrop "
    "emb_pdrop dropout activation_dropout residual_dropout embedding_dropout classifier_dropout layerdrop "
    "router_aux_loss_coef output_router_logits router_jitter_noise router_z_loss_coef aux_loss_alpha seq_aux "
    "layer_norm_eps layer_norm_epsilon rms_norm_eps norm_epsilon norm_eps norm_type init_device ep_size"
)

COMMON_HARMLESS = words(
    "model_type torch_dtype dtype quantization_config compression_config", _TOKENS, _FILE, _GENERATION, _TRAINING
)
"""Token ids, file facts, generation settings, dropout probabilities, epsilons, initialisation. (``dtype`` and
``quantization_config`` are read elsewhere: they set bytes, not the architecture.)"""

WRAPPER_FIELDS = words(
    "text_config vision_config audio_config mm_tokens_per_image multi_modal_projector_bias multimodal_projector_bias "
    "projector_hidden_act projector_hidden_size "
    "vision_feature_layer vision_feature_select_strategy ignore_index media_placeholder_token_id video_placeholder "
    "use_unified_vision_chunk img_token_compression_config image_grid_pinpoints image_seq_length video_token_index "
    "language_model_only understand_projector_stride "
    "image_token_len vision_soft_tokens_per_image projector_bias audio_token_id boa_token_id "
    "eoa_token_id eoa_token_index audio_token_index boa_token_index vision_tower_config patch_token_len im_end_token "
    "num_reward_heads process_image_mode use_image_newline_parameter vision_aspect_ratio image_seq_len "
    "adapter_layer_norm_eps"
)
"""Fields beside ``text_config`` of a multimodal model: they describe the parts that are left out."""

COMMON_REFUSED: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "cross_attention_hidden_size": (None,),
    "chunk_size_feed_forward": (0, None),
    "pruned_heads": ({}, None),
    "use_bidirectional_attention": (False, None),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
}
"""Fields that would change counts, with the values that do not; a type that models one lists it as used."""
