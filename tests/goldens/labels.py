"""The cases of `labels.json`: checkpoints of GLiNER and GLiClass, and texts with labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.label_checkpoints import write_gliclass, write_gliner

LABELS: Final = (["person", "place", "date"], ["사람", "장소", "food & drink"], ["名前"])
TEXTS: Final = (
    "Clara moved from Bern to New York in March to work for the United Nations.",
    "서울의 봄은 짧지만 아름답다. 김영희는 2019년에 왔다.",
    "北京大学位于北京市海淀区。我爱你,中国!",
    "Cafe\u0301 tables 👍🏽 stand in 👨‍👩‍👧 the square,\n\n  a_b-c d--e @Zürich #1,234.5",
    "[SEP] <<ENT>> in a text stay text.",
    "x",
)
MODES: Final[tuple[dict[str, Any], ...]] = (
    {"threshold": 0.4},
    {"flat": False, "threshold": 0.3},
    {"multi_label": True, "threshold": 0.45},
    {"flat": False, "multi_label": True},
)

Write = Callable[[Path], Path]
GLINER: Final[Mapping[str, Write]] = {
    "spans": lambda path: write_gliner(path),
    "spans, as wide, two layers, next": lambda path: write_gliner(
        path, hidden_size=32, num_rnn_layers=2, embed_ent_token=False
    ),
    "spans, modernbert, no layer, mean": lambda path: write_gliner(
        path, "modernbert", num_rnn_layers=0, subtoken_pooling="mean"
    ),
    "words": lambda path: write_gliner(path, form="token"),
    "words, modernbert, last": lambda path: write_gliner(path, "modernbert", "token", subtoken_pooling="last"),
    "words, max": lambda path: write_gliner(path, form="token", subtoken_pooling="max"),
    "two encoders": lambda path: write_gliner(path, labels="bert"),
    "two encoders as wide, modernbert and deberta": lambda path: write_gliner(
        path, "modernbert", labels="deberta-v2", hidden_size=32, subtoken_pooling="last"
    ),
    "two encoders, words": lambda path: write_gliner(path, form="token", labels="modernbert", num_rnn_layers=0),
}
GLICLASS: Final[Mapping[str, Write]] = {
    "first": lambda path: write_gliclass(path),
    "weighted, averages": lambda path: write_gliclass(
        path, hidden_size=32, scorer_type="weighted-dot", pooling_strategy="avg", class_token_pooling="average"
    ),
    "modernbert, mlp, max, next": lambda path: write_gliclass(
        path, "modernbert", hidden_size=32, scorer_type="mlp", pooling_strategy="max", embed_class_token=False
    ),
    "modernbert, last, normalised, text first": lambda path: write_gliclass(
        path, "modernbert", pooling_strategy="last", normalize_features=True, prompt_first=False
    ),
    "text from the separator, average": lambda path: write_gliclass(
        path, extract_text_features=True, class_token_pooling="average"
    ),
}
