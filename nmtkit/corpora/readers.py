"""Formats of parallel text: each reader turns the bytes of one file into lines, of which line n is the n-th text.

    plain       one sentence per line
    sgm         the <seg> elements of SGM and of IWSLT's XML
    tagged      IWSLT's training text, without metadata; titles and descriptions without their tags
    tsv         columns of a table, with tabs between them                              part: "2" or "2,3", from 1
    tmx         a language of a translation memory; a unit without it is an empty line  part: the language
    treebank    bracketed trees, stripped, one per line, or their words                 part: "tree" or "words"
    labelled    lines "LABEL TEXT"                                                      part: see read_labelled
    rte         pairs of texts of the challenges in textual entailment                  part: "pair" or "label"
    latin-1     a text in Latin-1
    characters  a range of the characters of a text                                     part: "FIRST-LAST", from 0
    sacrebleu-* sacreBLEU's own test sets, exactly as sacreBLEU reads them

Lines are bytes with their ends, cut at ``\\n`` only and not checked to be UTF-8.
"""

import codecs
import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from typing import cast

from nmtkit.corpora.trees import read_trees, strip, words, write
from nmtkit.errors import DataError
from nmtkit.lines import refuse_binary, refuse_carriage_returns

MAX_LINE_BYTES = 1 << 26
MAX_DOCUMENT_BYTES = 1 << 28
"""For formats that are read at once: SGML, XML, documents of characters."""

Reader = Callable[[io.BufferedIOBase, str, str], Iterator[bytes]]
"""reader(stream, part, name) yields lines; ``part`` is "" for formats without parts, ``name`` is for messages."""


def read_plain(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Yield the lines of a stream; raise DataError for one so long that it cannot be text."""
    # With a limit, as a file that is no text may have no line end for gigabytes.
    for number, line in enumerate(iter(partial(stream.readline, MAX_LINE_BYTES), b""), start=1):
        if len(line) == MAX_LINE_BYTES:
            raise DataError(f"{name}, line {number}: longer than {MAX_LINE_BYTES:,} bytes; this is no text, one a line")
        yield line


def _document(stream: io.BufferedIOBase, name: str) -> bytes:
    content = stream.read(MAX_DOCUMENT_BYTES + 1)
    if len(content) > MAX_DOCUMENT_BYTES:
        raise DataError(f"{name}: more than {MAX_DOCUMENT_BYTES:,} bytes of a format that is read at once")
    return content


_SEGMENT_TAG = re.compile(rb"<(/?)seg(?=[\s/>])[^<>]*>", re.IGNORECASE)  # up to a "<", so in linear time
_OPENING = re.compile(rb"<!--|<!\[CDATA\[")
_ENTITY = re.compile(rb"&(?:(?P<name>amp|lt|gt|quot|apos)|#(?P<number>[0-9]{1,7})|#[xX](?P<hex>[0-9a-fA-F]{1,6}));")
_NAMED_ENTITIES = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}


def read_segments(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Yield the text of each ``<seg>`` as one line; an empty segment gives an empty line. Comments are left out."""
    content = _document(stream, name)
    refuse_binary(content[:200], name)
    content = _without_sections(content)
    if re.search(rb"<src[\s>]", content) and re.search(rb"<(ref|hyp)[\s>]", content):
        raise DataError(
            f"{name}: holds sources and translations (WMT's XML since 2021); write the side you need to a plain file"
        )
    number = 0
    start = None
    for tag in _SEGMENT_TAG.finditer(content):
        is_end = tag[1] == b"/"
        if is_end and start is not None:
            yield _one_line(_ENTITY.sub(_unescape, content[start : tag.start()]))
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


def _without_sections(content: bytes) -> bytes:
    """Return a document without comments, and with the text of CDATA sections written with entities."""
    parts: list[bytes] = []
    done = 0
    last = {mark: content.rfind(mark) for mark in (b"-->", b"]]>")}  # so that the search takes linear time
    for opening in _OPENING.finditer(content):
        mark = b"-->" if opening[0] == b"<!--" else b"]]>"
        if opening.start() < done or last[mark] < opening.end():  # within another section, or never closed
            continue
        end = content.index(mark, opening.end())
        parts.append(content[done : opening.start()])
        if mark == b"]]>":
            parts.append(re.sub(rb"[&<>;]", lambda sign: b"&#%d;" % ord(sign[0]), content[opening.end() : end]))
        done = end + len(mark)
    return b"".join([*parts, content[done:]])


def _one_line(text: bytes) -> bytes:
    # Bytes, as str.strip would also take U+0085 and no-break spaces; no pattern, which would be slow in long blanks.
    return b" ".join(line.strip(b" \t\r") for line in text.strip(b" \t\r\n").split(b"\n")) + b"\n"


def _unescape(entity: re.Match[bytes]) -> bytes:
    if entity["name"]:
        return _NAMED_ENTITIES[entity["name"]]
    code = int(entity["number"]) if entity["number"] else int(entity["hex"], 16)
    is_character = 0 < code < 0xD800 or 0xE000 <= code <= 0x10FFFF
    return chr(code).encode("utf-8") if is_character else entity[0]


_METADATA = re.compile(rb"\s*</?(url|keywords|speaker|talkid|translator|reviewer|doc|transcript|content|xml)\b", re.I)
_KEPT_TAG = re.compile(rb"\s*<(title|description)>", re.IGNORECASE)


def read_tagged(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Yield the sentences, titles and descriptions of IWSLT's training text; a line of text is left unchanged."""
    for number, line in enumerate(read_plain(stream, part, name), start=1):
        tagged = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if kept := _KEPT_TAG.match(tagged):
            text, end = tagged[kept.end() :].rstrip(), b"</%b>" % kept[1].lower()
            yield _one_line(text[: -len(end)] if text.lower().endswith(end) else text)
        elif not _METADATA.match(tagged):
            yield line


def read_column(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Yield columns of tab-separated lines, without any quoting; a blank line is an empty text.

    Args:
        part: the number of a column, from 1, or several as "2,3", which are joined by tabs.
    """
    columns = [int(column) for column in part.split(",")]
    last = max(columns)
    for number, line in enumerate(read_plain(stream, part, name), start=1):
        if number == 1:
            # Whole, as `LineReader` sees the columns only.
            refuse_binary(line, name)
            refuse_carriage_returns(line, name)
        # Byte-order mark and carriage return stay only at the ends of the text, where `LineReader` removes them.
        mark = codecs.BOM_UTF8 if number == 1 and line.startswith(codecs.BOM_UTF8) else b""
        row = line.removeprefix(mark).removesuffix(b"\n")
        cells = row.removesuffix(b"\r").split(b"\t")
        if last <= len(cells):
            text = b"\t".join(cells[column - 1] for column in columns)
            end = b"\r\n" if row.endswith(b"\r") and columns[-1] == len(cells) else b"\n"
            yield (mark if columns[0] == 1 else b"") + text + end
        elif line.strip(b"\r\n"):
            raise DataError(
                f"{name}, line {number}: has {len(cells)} column{'s' if len(cells) > 1 else ''}, not {last}; correct "
                "the line (columns stand apart by tabs, not by commas, and cells have no quotes), or state other "
                "columns (source_column, target_column)"
            )
        else:
            yield b"\n"


_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_CODES = ("bpt", "ept", "it", "ph", "ut", "sub")  # elements of a TMX segment that hold formatting codes, not text
_BREAK = re.compile(r"<(br|p|div|li|td|tr)\b|[\t\n]", re.IGNORECASE)
"""In a code: what stands between two words."""


def read_tmx(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Yield for each unit of a translation memory its (first) text in the language ``part`` as one line.

    Raises:
        DataError: it is not XML, or no unit has that language.
    """
    languages: set[str] = set()
    is_found = False
    body = None
    try:
        # Unit by unit, as a translation memory may be larger than the memory of the machine.
        for event, element in ElementTree.iterparse(_decoded(stream), ("start", "end")):
            tag = _local(element)
            if event == "start":
                body = element if tag == "body" else body
            elif tag in _CODES:
                # clear() would also remove the text that follows the code, its tail.
                element.text = " " if _BREAK.search("".join(element.itertext())) else None
                del element[:]
            elif tag == "tu":
                text = b""
                for variant in (child for child in element if _local(child) == "tuv"):
                    language = variant.get(_LANGUAGE) or variant.get("lang") or ""
                    languages.add(language)
                    code, wanted = language.lower().replace("_", "-"), part.lower().replace("_", "-")
                    segment = next((child for child in variant if _local(child) == "seg"), None)
                    # "en" also selects en-US, but "en-US" no other English.
                    if not text and segment is not None and wanted in (code, code.split("-")[0]):
                        is_found = True
                        text = "".join(segment.itertext()).encode("utf-8")
                yield _one_line(text)
                if body is not None:  # frees the units that were read
                    body.clear()
    except (ElementTree.ParseError, UnicodeError, LookupError) as error:
        raise DataError(f"{name}: not valid XML ({error}); correct the file or fetch it again") from None
    if not is_found:
        raise DataError(f"{name}: no unit in the language {part!r}; it has {', '.join(sorted(languages)) or 'none'}")


_ENCODING = re.compile(rb"<\?xml[^<>]*\sencoding\s*=\s*[\"']([A-Za-z0-9._-]+)")
_EXPAT_ENCODINGS = ("utf-8", "utf-16", "us-ascii", "iso-8859-1")


def _decoded(stream: io.BufferedIOBase) -> io.BufferedIOBase | io.TextIOBase:
    """Return a stream of XML, as text if its encoding is one that the parser does not know, such as Shift_JIS."""
    buffered = io.BufferedReader(cast(io.RawIOBase, stream))
    stated = _ENCODING.match(buffered.peek())
    if stated is None or stated[1].decode().lower() in _EXPAT_ENCODINGS:
        return buffered
    return io.TextIOWrapper(buffered, stated[1].decode(), newline="")


def _local(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def read_treebank(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Yield each bracketed tree, stripped, or its words as one line; trees without words are dropped."""
    # Invalid bytes stay as they are, and are found where the lines of the corpus are decoded.
    lines = (line.decode("utf-8", "surrogateescape") for line in read_plain(stream, part, name))
    # Removed here, as a `LineReader` only sees the lines made from the trees.
    first = (line.removeprefix("\ufeff") for line in islice(lines, 1))
    for tree in read_trees(chain(first, lines), name):
        stripped = strip(tree)
        if stripped is not None:
            line = write(stripped) if part == "tree" else " ".join(words(stripped))
            yield line.encode("utf-8", "surrogateescape") + b"\n"


def read_labelled(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Yield the text or the label of lines ``LABEL TEXT``, each in UTF-8 or else in Windows-1252, as UTF-8.

    Blanks at the ends are removed; a byte that Windows-1252 does not define becomes U+FFFD.

    Args:
        part: "text" or "label". "label=A,B" gives names to the labels 0 and 1. ":0,5/10" after it selects the lines
            whose number, from 1, divided by 10 has the remainder 0 or 5.

    Raises:
        DataError: a line has no text, or a label without a name.
    """
    column, _, selected = part.partition(":")
    column, _, names = column.partition("=")
    remainders, _, divisor = (selected or "0/1").partition("/")
    wanted = {int(remainder) for remainder in remainders.split(",")}
    labels = {str(number): label for number, label in enumerate(names.split(","))} if names else None
    for number, raw in enumerate(read_plain(stream, part, name), start=1):
        if number % int(divisor) not in wanted:
            continue
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError:
            line = raw.decode("cp1252", "replace")
        label, _, text = line.strip().partition(" ")
        if not text or (labels and label not in labels):
            known = f" with a label from 0 to {len(labels) - 1}" if labels else ""
            raise DataError(f'{name}, line {number}: is no line "LABEL TEXT"{known}; fetch the file again')
        yield (text.strip() if column == "text" else labels[label] if labels else label).encode("utf-8") + b"\n"


# TRUE and FALSE are the values of the first challenge, in the attribute `value`; later ones have `entailment`.
_ENTAILMENT = {"TRUE": "entailment", "YES": "entailment", "FALSE": "not_entailment", "NO": "not_entailment"}


def read_entailment(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Yield per ``<pair>`` of the RTE challenges its text and hypothesis, with a tab between them, or its label.

    Runs of white space in them become single blanks.

    Args:
        part: "pair" or "label". Labels are "entailment" and "not_entailment", as in GLUE.

    Raises:
        DataError: it is not XML, or a pair lacks its text, hypothesis or label.
    """
    for number, pair in enumerate(_xml(stream, name).iter("pair"), start=1):
        label = _ENTAILMENT.get(pair.get("entailment") or pair.get("value") or "")
        # By tag and not by position, as <h> may come first.
        texts = [" ".join("".join(text.itertext()).split()) for tag in "th" for text in pair.iter(tag)]
        if label is None or len(texts) != 2 or not all(texts):
            raise DataError(f"{name}, pair {number}: needs a text <t>, a hypothesis <h> and a label; fetch it again")
        yield ("\t".join(texts) if part == "pair" else label).encode("utf-8", "surrogateescape") + b"\n"


def read_sacrebleu_plain(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Yield lines without the white space at their ends."""
    for line in read_plain(stream, part, name):
        yield line.decode("utf-8", "surrogateescape").rstrip().encode("utf-8", "surrogateescape") + b"\n"


def read_sacrebleu_segments(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Yield the text of lines that begin with ``<seg ``, with single blanks and entities left as they are."""
    for line in read_plain(stream, part, name):
        text = line.decode("utf-8", "surrogateescape")
        if text.startswith("<seg "):
            # The expression of sacreBLEU, so that lines are the same; XML parsers do not read these files.
            yield _with_single_blanks(re.sub(r"<seg.*?>(.*)</seg>.*?", "\\1", text))


def read_sacrebleu_xml(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Yield the source or a reference of WMT's XML since 2021, without segments that have no reference and test suites.

    Args:
        part: "src", "ref:A" for the translator A, or "ref" for a reference without a name.
    """
    translator = part.partition(":")[2] or None

    def by_number(element: ElementTree.Element) -> dict[int, str]:
        return {int(segment.get("id", "0")): segment.text or "" for segment in element.iter("seg")}

    for document in _xml(stream, name).iter("doc"):
        if "testsuite" in document.attrib:
            continue
        sources: dict[int, str] = {}
        for source in document.iter("src"):
            sources |= by_number(source)
        references = {element.get("translator"): by_number(element) for element in document.iter("ref")}
        for number in sorted(sources):
            if any(reference.get(number) for reference in references.values()):
                text = sources[number] if part == "src" else references.get(translator, {}).get(number, "")
                yield _with_single_blanks(text)


def _xml(stream: io.BufferedIOBase, name: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(_document(stream, name))
    except ElementTree.ParseError as error:
        raise DataError(f"{name}: not valid XML ({error}); fetch it again") from None


def _with_single_blanks(text: str) -> bytes:
    return re.sub(r"\s+", " ", text.strip()).encode("utf-8", "surrogateescape") + b"\n"


def read_characters(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Yield the lines of a range of a text's characters; ``part``: "FIRST-LAST", from 0, the last not included."""
    first, _, last = part.partition("-")
    text = _document(stream, name).decode("utf-8")[int(first) : int(last)]
    yield from io.BytesIO(text.encode("utf-8"))


def read_latin1(stream: io.BufferedIOBase, part: str, name: str) -> Iterator[bytes]:
    """Yield the lines of a text in Latin-1 as UTF-8."""
    for line in read_plain(stream, part, name):
        yield line.decode("latin-1").encode("utf-8")


READERS: dict[str, Reader] = {
    "plain": read_plain,
    "latin-1": read_latin1,
    "characters": read_characters,
    "sgm": read_segments,
    "tagged": read_tagged,
    "tsv": read_column,
    "tmx": read_tmx,
    "labelled": read_labelled,
    "rte": read_entailment,
    "treebank": read_treebank,
    "sacrebleu-plain": read_sacrebleu_plain,
    "sacrebleu-sgm": read_sacrebleu_segments,
    "sacrebleu-xml": read_sacrebleu_xml,
}


def format_of(name: str) -> str:
    """Return the format of a file by its name without a suffix of compression."""
    name = name.lower()
    if name.endswith((".sgm", ".sgml", ".xml")):
        return "sgm"
    if name.endswith((".tsv", ".tmx")):
        return name[-3:]
    return "tagged" if name.rpartition("/")[2].startswith("train.tags.") else "plain"
