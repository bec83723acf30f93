"""Corpora of OPUS (https://opus.nlpl.eu) by name, such as ``opus/News-Commentary-v16:en-de``, in Moses format.

A zip for each pair of languages, in alphabetical order, with a text for each side. OPUS publishes no checksums, so that
of the first download is recorded (download.py).

Source: Tiedemann 2012, "Parallel Data, Tools and Interfaces in OPUS".
"""

import difflib
import functools
import re

from nmtkit.console import log
from nmtkit.corpora.catalogue import CatalogueEntry, CatalogueText
from nmtkit.corpora.http_transfer import RemoteFile

PREFIX = "opus/"
FORM = "opus/CORPUS-VERSION:xx-yy"
KNOWN = {
    "Books-v1": "books, aligned by hand",
    "CCMatrix-v1": "web pages, mined by sentence embeddings; very large",
    "EUbookshop-v2": "publications of the European Union",
    "Europarl-v8": "proceedings of the European Parliament",
    "GlobalVoices-v2018q4": "news of Global Voices",
    "JRC-Acquis-v3.0": "law of the European Union",
    "KDE4-v2": "localisation files of KDE",
    "News-Commentary-v16": "commentaries on the news, as in WMT",
    "OpenSubtitles-v2018": "subtitles of films; very large",
    "QED-v2.0a": "subtitles of educational videos",
    "TED2020-v1": "subtitles of TED talks",
    "Tatoeba-v2023-04-12": "short sentences",
    "WikiMatrix-v1": "Wikipedia, mined by sentence embeddings",
    "bible-uedin-v1": "translations of the Bible",
}
"""Some corpora with descriptions; any other name of the same form works too."""
_CODE = "[a-z]{2,3}(?:_[A-Za-z]+)?"
_NAME = re.compile(rf"opus/([\w.-]+)-(v\d[\w.-]*):({_CODE})-({_CODE})", re.ASCII)


@functools.cache  # which also keeps the warning from being repeated
def opus_corpus(name: str) -> CatalogueEntry | None:
    """Return the corpus of a name, for both directions; None for a name of another form."""
    match = _NAME.fullmatch(name)
    if match is None or match[3] == match[4]:
        return None
    corpus, version, *codes = match.groups()
    names = {known.rpartition("-v")[0] for known in KNOWN}
    if corpus not in names and (near := difflib.get_close_matches(corpus, sorted(names), cutoff=0.8)):
        log.warning("%s: nmtkit does not know this corpus of OPUS; did you mean %s?", name, " or ".join(near))
    pair = "-".join(sorted(codes))
    file = RemoteFile(f"https://object.pouta.csc.fi/OPUS-{corpus}/{version}/moses/{pair}.txt.zip")
    sides = {code: CatalogueText(file, f"{corpus}.{pair}.{code}", "plain") for code in codes}
    texts = {(one, other): (sides[one], sides[other]) for one, other in (codes, codes[::-1])}
    description = KNOWN.get(f"{corpus}-{version}", "a corpus of OPUS")
    return CatalogueEntry(name, description, "see OPUS (https://opus.nlpl.eu)", "plain", texts)


def describe_malformed(name: str) -> str:
    """Return the message about a name of another form."""
    stem = name.removeprefix(PREFIX).partition(":")[0]
    near = difflib.get_close_matches(stem, list(KNOWN), n=3, cutoff=0.4) or ["News-Commentary-v16"]
    names = ", ".join(f"{PREFIX}{known}:xx-yy" for known in near)
    return f'"{name}": corpora of OPUS are written {FORM}, with codes of two languages for xx-yy; near names: {names}'
