"""The configurations of small networks of every family. They need no torch."""

from __future__ import annotations

from typing import Any, Final

VOCABULARY: Final = 83
POSITIONS: Final = 40
SIZES: Final = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "num_attention_heads": 2,
    "hidden_dropout_prob": 0.0,
}
# The widths are not multiples of a tile, but for BERT. ALBERT has both shared layers and layers of its own.
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "albert": SIZES
    | {
        "embedding_size": 48,
        "hidden_size": 96,
        "intermediate_size": 112,
        "num_hidden_layers": 4,
        "num_hidden_groups": 2,
    },
    "mobilebert": SIZES
    | {
        "embedding_size": 48,
        "hidden_size": 80,
        "intra_bottleneck_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_feedforward_networks": 3,
    },
    # All widths are multiples of an AMX tile.
    "bert": SIZES | {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2},
    "mpnet": SIZES
    | {"max_position_embeddings": POSITIONS + 2, "hidden_size": 96, "intermediate_size": 112, "num_hidden_layers": 2},
    "gpt2": {"vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": 96, "n_inner": 112, "n_layer": 2}
    | {"n_head": 2, "resid_pdrop": 0.0},
    # Distances beyond 4 share rows.
    "deberta_v2": SIZES
    | {"hidden_size": 96, "intermediate_size": 112, "num_hidden_layers": 2, "position_buckets": 8}
    | {"position_biased_input": False, "norm_rel_ebd": "layer_norm", "share_att_key": True}
    | {"relative_attention": True, "c2p": True, "p2c": True},
    # Layers 0 and 3 attend to all tokens; the last one does not.
    "modernbert": {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "num_attention_heads": 2,
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 5,
        "local_attention": 8,
        "local_rope_theta": 100.0,
        "classifier_pooling": "mean",
    },
    "roberta": SIZES
    | {"hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "max_position_embeddings": POSITIONS + 2},
    "electra": SIZES
    | {"embedding_size": 48, "hidden_size": 96, "intermediate_size": 112, "num_hidden_layers": 2, "hidden_act": "relu"},
    "distilbert": {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "n_heads": 2,
        "dim": 96,
        "hidden_dim": 112,
        "n_layers": 2,
        "dropout": 0.0,
    },
}
_STANDARD: Final = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 32,
}
# Those of `architectures/standard.py`, each with the steps that others lack.
STANDARD: Final[dict[str, dict[str, Any]]] = {
    "eurobert": _STANDARD | {"num_key_value_heads": 4, "rms_norm_eps": 0.1},
    "gemma3_text": _STANDARD
    | {"num_key_value_heads": 1, "sliding_window": 8, "rope_local_base_freq": 100.0, "query_pre_attn_scalar": 9.0}
    | {"num_hidden_layers": 3, "full_attention_layers": "010", "rms_norm_eps": 0.1},
    "gte": {key: size for key, size in _STANDARD.items() if key != "head_dim"} | {"num_attention_heads": 3},
    "qwen3": _STANDARD | {"num_key_value_heads": 2, "rms_norm_eps": 0.1},
    "t5": _STANDARD | {"is_gated": True, "hidden_act": "gelu_new", "relative_attention_num_buckets": 8},
    "qwen2": {key: size for key, size in _STANDARD.items() if key != "head_dim"}
    | {"num_attention_heads": 3, "num_key_value_heads": 1, "rms_norm_eps": 0.1},
}
