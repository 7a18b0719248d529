"""What transformers makes of built-in texts with the tokenizer of a checkpoint.

Importing transformers takes seconds, most of them for torch, which tokenizers do not need. A process of its own reads
the tokenizer without torch, so that no later import of this process finds transformers without it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

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


@dataclass(frozen=True)
class Tokens:
    """The ids of tokens that were added to a vocabulary, and those of texts and pairs: whole, and cut to CUT tokens."""

    added: Mapping[str, int]
    ids: Sequence[tuple[Sequence[str], Sequence[int], Sequence[int]]]


def read(directory: Path) -> Tokens:
    """Reads a tokenizer with `AutoTokenizer`, offline and without code of the checkpoint.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        Exception: transformers cannot read the tokenizer.
    """
    if "transformers" in sys.modules:
        return _read(directory)
    if importlib.util.find_spec("transformers") is None:
        raise ModuleNotFoundError("transformers")
    command = [sys.executable, "-P", "-m", "swiftlet_models.transformers_tokens", str(directory)]
    own = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    done = subprocess.run(command, env=own, stdin=subprocess.DEVNULL, capture_output=True, check=True)  # noqa: S603  # this Python
    return Tokens(**json.loads(done.stdout))


def _read(directory: Path) -> Tokens:
    transformers: Any = importlib.import_module("transformers")
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        single = _texts(theirs, int(transformers.__version__.partition(".")[0]))
        texts: list[Sequence[str]] = [*((text,) for text in single), *pairwise(filter(None, single))]
        return Tokens(
            theirs.get_added_vocab(),
            [
                (parts, theirs(*parts)["input_ids"], theirs(*parts, truncation=True, max_length=CUT)["input_ids"])
                for parts in texts
            ],
        )
    finally:
        transformers.logging.set_verbosity(verbosity)


def _texts(theirs: Any, version: int) -> list[str]:
    """Returns the texts that a tokenizer of this version of transformers reads as it should."""
    single = [*TEXTS.values(), *ODD, *UNSETTLED]
    if version >= 5 and "Metaspace" in str(theirs.backend_tokenizer.pre_tokenizer):
        # AlbertTokenizer of transformers 5 drops each blank before a user-defined symbol, as before a full stop.
        single = [] if type(theirs).__name__.startswith("Albert") else [*TEXTS.values(), *ODD]
        # DebertaV2Tokenizer of transformers 5 does not normalise as SentencePiece does.
        if type(theirs).__name__.startswith("DebertaV2") and "Precompiled" not in str(
            theirs.backend_tokenizer.normalizer
        ):
            single = [text for text in single if _is_plain(text)]
    return single


def _is_plain(text: str) -> bool:
    """Tells whether SentencePiece's rules leave a text as it is: they also make blanks of joiners, as in Persian."""
    return unicodedata.is_normalized("NFKC", text) and not any(unicodedata.category(one) == "Cf" for one in text)


def main() -> None:
    """Prints the tokens of the directory that the first argument names, as JSON."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # as if it were not installed
    print(json.dumps(asdict(_read(Path(sys.argv[1])))))


if __name__ == "__main__":
    main()
