"""Checks the tokenizer of an imported checkpoint on built-in texts.

A tokenizer that is read wrongly gives valid ids, and only the answers are wrong. Two signs tell it: its texts become
unknown tokens, and its ids differ from transformers', where transformers is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from swiftlet_models.encodings import Text
from swiftlet_models.tokenizer import Tokenizer

MAX_LOST: Final = 0.3  # share of the letters of a text that may become unknown tokens

# The first article of the Universal Declaration of Human Rights, by the language of its BCP 47 tag.
TEXTS: Final = {
    "en": "All human beings are born free and equal in dignity and rights.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "pt": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos.",
    "it": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti.",
    "nl": "Alle mensen worden vrij en gelijk in waardigheid en rechten geboren.",
    "sv": "Alla människor är födda fria och lika i värde och rättigheter.",
    "fi": "Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan.",
    "pl": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "cs": "Všichni lidé se rodí svobodní a sobě rovní co do důstojnosti a práv.",
    "hu": "Minden emberi lény szabadon születik és egyenlő méltósága és joga van.",
    "tr": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "id": "Semua orang dilahirkan merdeka dan mempunyai martabat dan hak-hak yang sama.",
    "vi": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "ru": "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "uk": "Всі люди народжуються вільними і рівними у своїй гідності та правах.",
    "el": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "he": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "ar": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق.",
    "fa": "تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند.",
    "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "bn": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "ta": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "th": "มนุษย์ทั้งปวงเกิดมามีอิสระและเสมอภาคกันในศักดิ์ศรีและสิทธิ",
    "ka": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
    "hy": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։",
    "am": "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።",
    "zh": "人人生而自由,在尊严和权利上一律平等。",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
}
LONG: Final = " ".join(list(TEXTS.values())[:8] * 3)
ODD: Final = (
    "👍🏽 and 👨‍👩‍👧, e\u0301 and ﬁ, Ünïcödé; \u1112\u1161\u11ab\u1100\u1173\u11af?",
    "(is) $3/4 -- don't; they'll… “quote” a_b@c.org #tag",
    "[cls] [ SEP ] < s > [MASK </ s> <|end of text|>",
    LONG,
    "",
)
# Texts that the SentencePiece tokenizers of transformers 5 read otherwise than earlier versions.
UNSETTLED: Final = ("   ", "  two  blanks ", "a\tb\n\nc ", "1,234.5")
CUT: Final = 16  # tokens


def lost_share(tokenizer: Tokenizer, languages: Sequence[str] = ()) -> float:
    """Returns the share of letters that no known token covers, from 0 to 1, in the language that suffers least.

    Args:
        tokenizer: the tokenizer.
        languages: BCP 47 tags of the model's languages. Without a known one, all built-in texts count.
    """
    own = [TEXTS[tag] for language in languages if (tag := language.partition("-")[0]) in TEXTS]
    return min(lost(tokenizer, text) for text in own or TEXTS.values())


def lost(tokenizer: Tokenizer, text: str) -> float:
    """Returns the share of a text's letters that no known token covers, from 0 to 1."""
    (tokens,) = tokenizer.tokenize([text])
    known: set[int] = set()
    for number, (start, end) in zip(tokens.ids.tolist(), tokens.offsets.tolist(), strict=True):
        if number != tokenizer.unknown_id:
            known.update(range(start, end))
    letters = {index for index, character in enumerate(text) if unicodedata.category(character).startswith("L")}
    return len(letters - known) / max(1, len(letters))


def difference(tokenizer: Tokenizer, directory: Path) -> str | None:
    """Compares ids with `AutoTokenizer`'s, offline and without code of the checkpoint.

    Returns what differs, or None. The texts hold no special tokens, which are text for `Tokenizer`.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        Exception: transformers cannot read the tokenizer.
    """
    transformers: Any = importlib.import_module("transformers")
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        return _difference(tokenizer, theirs, int(transformers.__version__.partition(".")[0]))
    finally:
        transformers.logging.set_verbosity(verbosity)


def _difference(tokenizer: Tokenizer, theirs: Any, version: int) -> str | None:
    for token, number in theirs.get_added_vocab().items():
        if tokenizer.token_to_id(token) not in (number, None):
            return f"the token {token!r} has the id {number} there and {tokenizer.token_to_id(token)} here"
    single = [*TEXTS.values(), *ODD, *UNSETTLED]
    if version >= 5 and "Metaspace" in str(theirs.backend_tokenizer.pre_tokenizer):
        # AlbertTokenizer of transformers 5 drops each blank before a user-defined symbol, as before a full stop.
        single = [] if type(theirs).__name__.startswith("Albert") else [*TEXTS.values(), *ODD]
        # DebertaV2Tokenizer of transformers 5 does not normalise as SentencePiece does.
        if type(theirs).__name__.startswith("DebertaV2") and "Precompiled" not in str(
            theirs.backend_tokenizer.normalizer
        ):
            single = [text for text in single if unicodedata.is_normalized("NFKC", text)]
    texts: list[Text] = [*single, *pairwise(filter(None, single))]
    whole, cut = tokenizer.encode(texts, 1 << 20), tokenizer.encode(texts, CUT)
    for text, full, short in zip(texts, whole, cut, strict=True):
        parts = (text,) if isinstance(text, str) else text
        for ours, options in ((full, {}), (short, {"truncation": True, "max_length": CUT})):
            expected = theirs(*parts, **options)["input_ids"]
            if ours.input_ids.tolist() != expected:
                kind = "pair" if len(parts) == 2 else "text"
                return f"the {kind} {text!r:.60} gives {len(ours.input_ids)} ids here and {len(expected)} others there"
    return None
