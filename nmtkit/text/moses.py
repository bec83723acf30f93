"""The Moses scripts for scores, `data.normalize`, detokenised output and sentence ends.

    plain text --normalize_punctuation--> plain text --tokenize--> tokens --detokenize--> plain text
    tokens --split_compounds--> tokens of the paper's BLEU

The only module that uses sacremoses, which is imported on first use, as this takes a third of a second.
"""

import re
from functools import cache
from typing import Any

# On bytes, as Perl reads them: the bytes of one character can be the end of a match and the beginning of the next.
_HYPHEN_IN_WORD = re.compile(rb"(\S)-(\S)")
_CODES = """
    as-asm bn-ben ca-cat cs-ces cs-cze de-deu de-ger el-ell el-gre en-eng es-spa et-est et-ekk fi-fin fr-fra
    fr-fre ga-gle gu-guj hi-hin hu-hun is-isl is-ice it-ita ja-jpn kn-kan ko-kor lt-lit lv-lav lv-lvs ml-mal
    mr-mar nl-nld nl-dut or-ori or-ory pa-pan pl-pol pt-por ro-ron ro-rum ru-rus sk-slk sk-slo sl-slv sv-swe
    ta-tam tdt-tet te-tel zh-zho zh-chi zh-cmn"""
_OF_ISO_639_3 = {longer: code for code, longer in (pair.split("-") for pair in _CODES.split())}
"""The codes that sacremoses has rules for by those of ISO 639-2 and 639-3."""


def language_code(language: str) -> str:
    """Return the code that selects the rules: ``de`` for ``DE``, ``de-AT``, ``de_CH``, ``deu`` and ``deu_Latn``."""
    code = re.split("[-_]", language.lower(), maxsplit=1)[0]
    return _OF_ISO_639_3.get(code, code)


def tokenize(lines: list[str], language: str) -> list[str]:
    """Split lines into tokens, joined by single spaces, as ``tokenizer.perl -l LANGUAGE -no-escape`` does.

    ``&``, ``|``, quotes and brackets are not escaped, and words are not split at hyphens. For a language that Moses
    does not support, English abbreviations are used, as in Moses. Unlike Moses, sacremoses makes each letter of Han and
    Hangul a token where the language is not written in it.
    """
    tokenizer = _tool("MosesTokenizer", language_code(language))
    return [tokenizer.tokenize(line, return_str=True, escape=False, aggressive_dash_splits=False) for line in lines]


def detokenize(lines: list[str], language: str, *, unescape: bool = True) -> list[str]:
    """Join tokens to plain text as ``detokenizer.perl`` does; ``@-@`` becomes a hyphen without blanks.

    Args:
        unescape: undo entities such as ``&quot;``, which `tokenize` does not write.
    """
    detokenizer = _tool("MosesDetokenizer", language_code(language))
    return [detokenizer.detokenize(line.split(), return_str=True, unescape=unescape) for line in lines]


def normalize_punctuation(line: str, language: str) -> str:
    """Unify quotes, dashes and blanks at punctuation, as ``normalize-punctuation.perl -l LANGUAGE`` does."""
    return _tool("MosesPunctNormalizer", language_code(language)).normalize(line)


def replace_unicode_punctuation(line: str) -> str:
    """Replace full-width digits and punctuation, curly quotes and the like by ASCII.

    Source: Moses, ``replace-unicode-punctuation.perl``; the low quote of German is not in its list.
    """
    return _tool("MosesPunctNormalizer", "en").replace_unicode_punct(line)


@cache
def nonbreaking_prefixes(language: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words after which a period ends no sentence: always, and only if a number follows.

    For a language that Moses does not support, they are those of English, as in Moses.
    """
    from sacremoses.corpus import NonbreakingPrefixes

    # Entries have the form "Dr" or "No #NUMERIC_ONLY#".
    words = [word.split() for word in NonbreakingPrefixes().words(language_code(language)) if word.strip()]
    always = frozenset(word for word, *mark in words if not mark)
    return always, frozenset(word for word, *mark in words if mark)


def split_compounds(line: str) -> str:
    """Split tokenised words at hyphens: ``rich-text format`` becomes ``rich ##AT##-##AT## text format``.

    Matches do not overlap, so ``a-b-c`` is split once, and they are matches of bytes, so ``a-ü-c`` is split twice.

    Source: tensor2tensor, ``utils/get_ende_bleu.sh``: ``perl -ple 's{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g'``. Text in
    which a hyphen is marked already, as by the tokeniser's option -a, would gain more tokens: the mark is undone first.
    """
    line = line.replace(" ##AT##-##AT## ", "-").replace(" @-@ ", "-")
    return _HYPHEN_IN_WORD.sub(rb"\1 ##AT##-##AT## \2", line.encode("utf-8")).decode("utf-8")


@cache
def _tool(name: str, language: str) -> Any:
    """Return an instance of a class of sacremoses."""
    import sacremoses

    return getattr(sacremoses, name)(language)
