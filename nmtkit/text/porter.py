"""Porter's stemmer of English words with nltk's extensions, which rouge-score strips suffixes with.

Source: Porter (1980), "An algorithm for suffix stripping"; nltk's PorterStemmer in its default mode.
"""

from functools import cache

_IRREGULAR = {
    "sky": "sky", "skies": "sky", "dying": "die", "lying": "lie", "tying": "tie", "news": "news",
    "innings": "inning", "inning": "inning", "outings": "outing", "outing": "outing",
    "cannings": "canning", "canning": "canning", "howe": "howe", "proceed": "proceed", "exceed": "exceed",
    "succeed": "succeed",
}  # fmt: skip
_PLURALS = {"sses": "ss", "ies": "i", "ss": "ss", "s": ""}  # "ss" keeps the last rule from words such as "caress"
_DOUBLE_SUFFIXES = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble",
    "fulli": "ful",
}  # fmt: skip
_ADJECTIVES = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_LAST_SUFFIXES = {
    "al": "", "ance": "", "ence": "", "er": "", "ic": "", "able": "", "ible": "", "ant": "", "ement": "", "ment": "",
    "ent": "", "ou": "", "ism": "", "ate": "", "iti": "", "ous": "", "ive": "", "ize": "",
}  # fmt: skip


@cache
def stem(word: str) -> str:
    """Return the stem of a word in lower case."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) <= 2:  # not in the paper, but in Porter's own program
        return word
    # nltk: "dies" becomes "die", not "di"; longer words follow the paper ("flies", "fli").
    word = word[:-1] if word.endswith("ies") and len(word) == 4 else _replaced(word, _PLURALS)
    word = _without_participle(word)
    # nltk: y becomes i behind a consonant, unless that is the first letter: "fly" is "fli", and "enjoy" stays.
    if word.endswith("y") and len(word) > 2 and _form(word[:-1]).endswith("c"):
        word = word[:-1] + "i"
    # nltk: -alli becomes -al before the other rules of step 2, which are applied to the result.
    if word.endswith("alli") and _measure(word[:-4]) > 0:
        word = word[:-2]
    if word.endswith("logi"):  # nltk: the l counts as part of the stem, so that "geo" and "theo" are long enough
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    else:
        word = _replaced(word, _DOUBLE_SUFFIXES, 1)
    word = _replaced(word, _ADJECTIVES, 1)
    if word.endswith(("sion", "tion")):  # step 4 removes -ion only behind s or t, which stay
        word = word[:-3] if _measure(word[:-3]) > 1 else word
    else:
        word = _replaced(word, _LAST_SUFFIXES, 2)
    if word.endswith("e") and (_measure(word[:-1]) > 1 or (_measure(word[:-1]) == 1 and not _is_short(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


def _without_participle(word: str) -> str:
    """Remove -ed and -ing, and mend what is left of the verb: hopping becomes hop, filing file."""
    if word.endswith("ied"):  # nltk: "died" becomes "die", and "spied" "spi"
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    verb = word.removesuffix("ed") if word.endswith("ed") else word.removesuffix("ing")
    form = _form(verb)
    if verb == word or "v" not in form:
        return word
    if verb.endswith(("at", "bl", "iz")):
        return verb + "e"
    if len(verb) > 1 and verb[-1] == verb[-2] and form[-1] == "c":
        return verb if verb[-1] in "lsz" else verb[:-1]
    return verb + "e" if _measure(verb) == 1 and _is_short(verb) else verb


def _replaced(word: str, suffixes: dict[str, str], least_measure: int = 0) -> str:
    """Replace the first suffix that the word has, if the measure of what stands before it is large enough."""
    # No other suffix is tried if the measure is too small: -ement in "supplement" prevents the removal of -ent.
    suffix = next((suffix for suffix in suffixes if word.endswith(suffix)), "")
    before = word.removesuffix(suffix)
    return before + suffixes[suffix] if suffix and _measure(before) >= least_measure else word


def _form(letters: str) -> str:
    """Return v for each vowel and c for each consonant; y is a vowel behind a consonant."""
    form = ""
    for letter in letters:
        form += "v" if letter in "aeiou" or (letter == "y" and form.endswith("c")) else "c"
    return form


def _measure(letters: str) -> int:
    """Return how often a consonant follows a vowel."""
    return _form(letters).count("vc")


def _is_short(letters: str) -> bool:
    """Return True for an ending such as -wil and -hop, after which a final e is heard."""
    form = _form(letters)
    return form == "vc" or (form.endswith("cvc") and letters[-1] not in "wxy")
