"""The vocabulary of a translation model of transformers: entries by id, models of sentencepiece, codes of languages.

Marian     vocab.json, source.spm, target.spm; entries such as >>fra<< are languages
M2M-100    vocab.json, sentencepiece.bpe.model; the languages __fr__ follow, in an order that transformers fixes
NLLB       sentencepiece.bpe.model, whose pieces follow the special entries; then the languages fra_Latn
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from nmtkit.config.corpus_entries import MANY_LANGUAGES
from nmtkit.config.section import LANGUAGE_CODE
from nmtkit.errors import ModelError
from nmtkit.json_toml import read_json
from nmtkit.text.sentencepieces import sentencepiece_entries
from nmtkit.text.vocabulary import BOS, EOS, PAD, SIDES, SPECIAL_PIECES, UNK

_M2M100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr "
    "ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa "
    "pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
LANGUAGES = {"m2m100": _M2M100.split(), "wmt21": ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"]}
"""Languages of M2M-100 in the order of their ids, by `language_codes` in tokenizer_config.json."""


_MOST_UNUSED = 1000
"""Maximum number of rows without an entry at the end of the embeddings: M2M-100 has 8, NLLB 2."""


class ForeignVocabulary(NamedTuple):
    """The vocabulary of both sides of a model.

    Attributes:
        entries: in the order of their ids.
        reserved: ids of the entries that no text is split into.
        models: files by sentencepiece: "joint", or "source" and "target".
        settings: languages and their entries, for tokenizer.json.
    """

    entries: list[str]
    reserved: set[int]
    models: dict[str, Path]
    settings: dict[str, Any]


def read_vocabulary(folder: Path, stated: dict[str, Any]) -> ForeignVocabulary:
    """Return the vocabulary of a folder, whose config.json has the content ``stated``.

    Raises:
        ModelError: files are missing or damaged, or do not fit the number of entries in config.json.
        DataError: a file cannot be read.
    """
    is_m2m100 = stated["model_type"] == "m2m_100"
    names = ("joint", "sentencepiece.bpe.model"), ("source", "source.spm"), ("target", "target.spm")
    models = {side: folder / name for side, name in (names[:1] if is_m2m100 else names[1:])}
    path = folder / "vocab.json"
    for file in [*models.values(), *([] if is_m2m100 else [path])]:
        if not file.is_file():
            raise ModelError(f"{file}: no such file; the text cannot be split into the model's subwords without it")
    settings = _settings(folder, "tokenizer_config.json", dict)
    path, by_id, codes = _entries(folder, settings, is_m2m100=is_m2m100)
    if is_m2m100 and (not codes or settings.get("legacy_behaviour")):
        fault = "the language of the source follows it (legacy_behaviour)" if codes else "its languages are not listed"
        raise ModelError(f"{folder}: {fault}; take the tokenizer files of the original model")
    size = stated.get("vocab_size")
    if type(size) is not int or not len(by_id) <= size <= len(by_id) + _MOST_UNUSED * is_m2m100 or max(by_id) >= size:
        raise ModelError(f"{path}: {max(by_id) + 1:,} entries, but config.json has vocab_size = {size!r}")
    needed = [SPECIAL_PIECES[index] for index in (PAD, UNK, EOS, *([BOS] if is_m2m100 else []))]
    if missing := next((entry for entry in needed if entry not in by_id.values()), None):
        raise ModelError(f"{path}: needs the entry {missing}")
    entries = [by_id.get(index, f"madeupword{index}") for index in range(size)]
    coded = {*codes.values(), "<mask>"}
    reserved = {index for index, entry in enumerate(entries) if entry in coded or index not in by_id}
    if is_m2m100:
        both = dict.fromkeys(("source_language", "target_language"), MANY_LANGUAGES)
        return ForeignVocabulary(entries, reserved, models, {**both, "source_tags": codes, "target_starts": codes})
    stated_codes = [str(settings.get(f"{side}_lang")) for side in SIDES]
    source, target = (code if re.fullmatch(LANGUAGE_CODE, code) else "und" for code in stated_codes)
    languages: dict[str, Any] = {"source_language": source, "target_language": target}
    if codes:
        languages |= {"target_language": MANY_LANGUAGES, "target_tags": codes}
    return ForeignVocabulary(entries, reserved, models, languages)


def _settings(folder: Path, name: str, shape: Any) -> dict[str, Any]:
    return read_json(folder / name, shape) if (folder / name).is_file() else {}


def _entries(folder: Path, settings: dict[str, Any], *, is_m2m100: bool) -> tuple[Path, dict[int, str], dict[str, str]]:
    """Return the file of the vocabulary, its entries by id, and the entry of each language."""
    path = folder / "vocab.json"
    if path.is_file():
        vocabulary = read_json(path, {str: int})
        by_id = {index: entry for entry, index in vocabulary.items()}
        if not by_id or sorted(by_id) != list(range(len(vocabulary))):
            raise ModelError(f"{path}: needs each of the ids from 0 on once")
        if not is_m2m100:
            tags = (re.fullmatch(r">>(.+)<<", entry) for entry in vocabulary)
            return path, by_id, {tag[1]: tag[0] for tag in tags if tag}
        known = LANGUAGES.get(str(settings.get("language_codes", "m2m100")), ())
        codes = {code: f"__{code}__" for code in known}
        return path, by_id | dict(enumerate(codes.values(), len(by_id))), codes
    path = folder / "sentencepiece.bpe.model"
    # sentencepiece begins with <unk>, <s> and </s>; fairseq has four entries in their place.
    by_id = dict(enumerate(["<s>", "<pad>", "</s>", "<unk>", *sentencepiece_entries(path)[3:]]))
    shape = {"added_tokens": [{"id": int, "content": str}]}
    if added := _settings(folder, "tokenizer.json", shape):
        # The list also has special entries from the beginning of the vocabulary.
        by_id |= {entry["id"]: entry["content"] for entry in added["added_tokens"] if entry["id"] >= len(by_id)}
    else:
        listed = _settings(folder, "special_tokens_map.json", {"additional_special_tokens?": [str | dict]})
        tokens = listed.get("additional_special_tokens") or []
        names = (str(token.get("content")) if isinstance(token, dict) else token for token in tokens)
        by_id |= dict(enumerate(names, len(by_id)))
    languages = (entry for entry in by_id.values() if re.fullmatch(r"[a-z]{3}_[A-Z][a-z]{3}", entry))
    return path, by_id, {entry: entry for entry in languages}
