"""Formats of parallel text: each reader turns the bytes of one file into lines, of which line n is the n-th text.

    plain       one sentence a line
    sgm         the <seg> elements of SGM and of IWSLT's XML, whatever stands around them
    tagged      IWSLT's training text: lines of metadata dropped, titles and descriptions kept without their tags
    tsv         a column of a table                                                     part: its number, from 1
    tmx         a language of a translation memory; a unit without it is an empty line  part: the language
    treebank    bracketed trees, stripped, one a line, or their words                   part: "tree" or "words"
    sacrebleu-* sacreBLEU's own test sets, exactly as sacreBLEU reads them

Lines are bytes with their ends, cut at ``\\n`` only; whether they are UTF-8 is seen by whoever decodes them.
"""

import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

from nmtkit.corpora.trees import read_trees, strip, words, write
from nmtkit.errors import DataError

MAX_LINE_BYTES = 1 << 26
MAX_DOCUMENT_BYTES = 1 << 28
"""Of formats that are read at once, which only test sets come in."""

Reader = Callable[[io.BufferedIOBase, str, str], Iterator[bytes]]
"""reader(stream, part, name): the lines; ``part`` is "" for formats without parts, ``name`` is for messages."""


def read_plain(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """The lines of a stream; DataError for one so long that it cannot be text."""
    for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES), b""), start=1):
        if len(line) == MAX_LINE_BYTES:
            raise DataError(f"{name}, line {number}: longer than {MAX_LINE_BYTES:,} bytes; this is no text, one a line")
        yield line


def _document(stream: io.BufferedIOBase, name: str) -> bytes:
    content = stream.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise DataError(f"{name}: more than {MAX_DOCUMENT_BYTES:,} bytes of a format that only test sets come in")
    return content


SEGMENT_TAG = re.compile(rb"<(/?)seg(?=[\s/>])[^<>]*>", re.IGNORECASE)  # up to a "<", so in linear time
ENTITY = re.compile(rb"&(?:(amp|lt|gt|quot|apos)|#([0-9]{1,7})|#[xX]([0-9a-fA-F]{1,6}));")
NAMED_ENTITIES = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}


def read_segments(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """The text of each ``<seg>`` as one line, in order of appearance; an empty segment keeps its place."""
    content = _document(stream, name)
    number = 0
    start = None
    for tag in SEGMENT_TAG.finditer(content):
        is_end = tag[1] == b"/"
        if is_end and start is not None:
            yield _one_line(ENTITY.sub(_unescape, content[start : tag.start()]))
            start = None
        elif is_end or start is not None:
            raise DataError(f"{name}: <seg> and </seg> do not match at segment {number}; correct the file")
        else:
            number += 1
            if tag[0].endswith(b"/>"):
                yield b"\n"
            else:
                start = tag.end()
    if start is not None:
        raise DataError(f"{name}: segment {number}, the last one, is not closed; the file is cut short: fetch it again")
    if number == 0:
        raise DataError(f"{name}: no <seg> in it; give plain text files another ending than .sgm or .xml")


def _one_line(text: bytes) -> bytes:
    # Bytes, as str.strip would also take U+0085 and no-break spaces; no pattern, which would be slow in long blanks.
    return b" ".join(line.strip(b" \t\r") for line in text.strip(b" \t\r\n").split(b"\n")) + b"\n"


def _unescape(entity: re.Match[bytes]) -> bytes:
    if entity[1]:
        return NAMED_ENTITIES[entity[1]]
    code = int(entity[2]) if entity[2] else int(entity[3], 16)
    is_character = 0 < code < 0xD800 or 0xE000 <= code <= 0x10FFFF
    return chr(code).encode("utf-8") if is_character else entity[0]


METADATA = re.compile(rb"\s*</?(url|keywords|speaker|talkid|translator|reviewer|doc|transcript|content|xml)\b", re.I)
KEPT_TAG = re.compile(rb"\s*<(title|description)>", re.IGNORECASE)


def read_tagged(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """The sentences, titles and descriptions of IWSLT's training text; a line of text stays as it is."""
    for line in read_plain(stream, part, name):
        if not line.lstrip().startswith(b"<"):
            yield line
        elif kept := KEPT_TAG.match(line):
            text, end = line[kept.end() :].rstrip(), b"</%b>" % kept[1].lower()
            yield _one_line(text[: -len(end)] if text.lower().endswith(end) else text)
        elif not METADATA.match(line):
            yield line


def read_column(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """One column of tab-separated lines, without any rule of quoting; a blank line is an empty text."""
    index = int(part) - 1
    for number, line in enumerate(read_plain(stream, part, name), start=1):
        cells = line.removesuffix(b"\n").split(b"\t")
        if index < len(cells):
            yield cells[index] + b"\n"
        elif line.strip(b"\r\n"):
            raise DataError(
                f"{name}, line {number}: has {len(cells)} column{'s' if len(cells) > 1 else ''}, not {part}; correct "
                "the line, or state other columns (source_column, target_column)"
            )
        else:
            yield b"\n"


_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_CODES = ("bpt", "ept", "it", "ph", "ut", "sub")
"""Elements inside a TMX segment that hold codes of a text processor, not text."""


def read_tmx(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """One line for each unit of a translation memory: its text in the language ``part``, the first if it has several.

    Raises:
        DataError: it is no XML, or no unit has that language.
    """
    languages: set[str] = set()
    found = False
    body = None
    try:
        for event, element in ElementTree.iterparse(_decoded(stream), ("start", "end")):
            tag = _local(element)
            if event == "start":
                body = element if tag == "body" else body
            elif tag in _CODES:
                element.text = None
                del element[:]
            elif tag == "tu":
                text = b""
                for variant in (child for child in element if _local(child) == "tuv"):
                    language = variant.get(_LANGUAGE) or variant.get("lang") or ""
                    languages.add(language)
                    segment = next((child for child in variant if _local(child) == "seg"), None)
                    if not text and segment is not None and _is_language(language, part):
                        found = True
                        text = "".join(segment.itertext()).encode("utf-8")
                yield _one_line(text)
                if body is not None:  # what was read is forgotten, so that memory does not grow
                    body.clear()
    except (ElementTree.ParseError, UnicodeDecodeError, LookupError) as error:
        raise DataError(f"{name}: not valid XML ({error}); correct the file or fetch it again") from None
    if not found:
        raise DataError(f"{name}: no unit in the language {part!r}; it has {', '.join(sorted(languages)) or 'none'}")


_ENCODING = re.compile(rb"<\?xml[^<>]*\sencoding\s*=\s*[\"']([A-Za-z0-9._-]+)")
_OF_EXPAT = ("utf-8", "utf-16", "us-ascii", "iso-8859-1")


def _decoded(stream: io.BufferedIOBase) -> io.BufferedIOBase | io.TextIOBase:
    """The stream, as text where it states an encoding that the parser of XML does not know, such as Shift_JIS."""
    buffered = io.BufferedReader(cast(io.RawIOBase, stream))
    stated = _ENCODING.match(buffered.peek())
    if stated is None or stated[1].decode().lower() in _OF_EXPAT:
        return buffered
    return io.TextIOWrapper(buffered, stated[1].decode(), newline="")


def _local(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _is_language(found: str, wanted: str) -> bool:
    found, wanted = found.lower().replace("_", "-"), wanted.lower().replace("_", "-")
    return found == wanted or found.split("-")[0] == wanted


def read_treebank(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Each bracketed tree as one line, stripped (see ``trees.strip``), or its words; a tree without words is none."""
    lines = (line.decode("utf-8", "surrogateescape") for line in read_plain(stream, part, name))
    for tree in read_trees(lines, name):
        stripped = strip(tree)
        if stripped is not None:
            line = write(stripped) if part == "tree" else " ".join(words(stripped))
            yield line.encode("utf-8", "surrogateescape") + b"\n"


def _as_sacrebleu_cleans(text: str) -> bytes:
    return re.sub(r"\s+", " ", text.strip()).encode("utf-8", "surrogateescape") + b"\n"


def read_sacrebleu_plain(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Lines without the white space at their ends."""
    for line in read_plain(stream, part, name):
        yield line.decode("utf-8", "surrogateescape").rstrip().encode("utf-8", "surrogateescape") + b"\n"


def read_sacrebleu_segments(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Lines that begin with ``<seg ``: white space made one blank, entities left as they are."""
    for line in read_plain(stream, part, name):
        text = line.decode("utf-8", "surrogateescape")
        if text.startswith("<seg "):
            yield _as_sacrebleu_cleans(re.sub(r"<seg.*?>(.*)</seg>.*?", "\\1", text))


def read_sacrebleu_xml(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """The source (``part`` "src") or a reference ("ref:A", of the translator A; "ref" of one without a name) of WMT's
    XML since 2021; a segment without any reference is left out of both, as are test suites."""
    try:
        tree = ElementTree.fromstring(_document(stream, name))
    except ElementTree.ParseError as error:
        raise DataError(f"{name}: not valid XML ({error}); fetch it again") from None
    translator = part.partition(":")[2] or None
    for document in tree.iter("doc"):
        if "testsuite" in document.attrib:
            continue
        sources = _numbered(segment for source in document.iter("src") for segment in source.iter("seg"))
        references = {element.get("translator"): _numbered(element.iter("seg")) for element in document.iter("ref")}
        for number in sorted(sources):
            if any(reference.get(number) for reference in references.values()):
                text = sources[number] if part == "src" else references.get(translator, {}).get(number, "")
                yield _as_sacrebleu_cleans(text)


def _numbered(segments: Iterator[ElementTree.Element]) -> dict[int, str]:
    return {int(segment.get("id", "0")): segment.text or "" for segment in segments}


READERS: dict[str, Reader] = {
    "plain": read_plain,
    "sgm": read_segments,
    "tagged": read_tagged,
    "tsv": read_column,
    "tmx": read_tmx,
    "treebank": read_treebank,
    "sacrebleu-plain": read_sacrebleu_plain,
    "sacrebleu-sgm": read_sacrebleu_segments,
    "sacrebleu-xml": read_sacrebleu_xml,
}


def format_of(name: str) -> str:
    """The format of a file of that name (without the end that says what compresses it)."""
    name = name.lower()
    if name.endswith((".sgm", ".sgml", ".xml")):
        return "sgm"
    if name.endswith((".tsv", ".tmx")):
        return name[-3:]
    return "tagged" if name.rpartition("/")[2].startswith("train.tags.") else "plain"
