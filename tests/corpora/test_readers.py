"""Formats: each gives one line a text, in order, whatever stands around it, or an error that names the place."""

import codecs
import io
import os
import resource
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmtkit.corpora import readers
from nmtkit.corpora.corpus import local_corpus
from nmtkit.corpora.readers import READERS, format_of
from nmtkit.errors import DataError
from tests.conftest import message_of


def read(text_format: str, content: str | bytes, part: str = "") -> list[str]:
    """The texts of a file of that format, without their line ends."""
    stream = io.BytesIO(content.encode() if isinstance(content, str) else content)
    lines = list(READERS[text_format](stream, part, "FILE"))
    assert all(line.endswith(b"\n") for line in lines[:-1])
    return [line.removesuffix(b"\n").decode() for line in lines]


def fault(text_format: str, content: str | bytes, part: str = "") -> str:
    return message_of(lambda: read(text_format, content, part))


hostile_text = st.text(st.characters(exclude_characters="\n", exclude_categories=("Cs",)), max_size=40)


@given(st.lists(hostile_text, min_size=1, max_size=5))
def test_plain_text_is_cut_at_line_feeds_only(lines: list[str]) -> None:
    lines[0] = lines[0].replace("\0", "")  # else it may look like UTF-16
    assert read("plain", "".join(f"{line}\n" for line in lines)) == lines


def test_a_text_in_latin_1_and_a_range_of_characters_are_read_as_utf_8() -> None:
    assert read("latin-1", "Cæsar\n\x1aÿ\n".encode("latin-1")) == ["Cæsar", "\x1aÿ"]
    assert read("characters", "äbc\ndüf\nghi", "1-6") == ["bc", "dü"]
    assert read("characters", "äbc\ndüf\nghi", "6-99") == ["f", "ghi"]


def test_a_line_without_end_is_an_error_and_no_gigabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 100)
    assert read("plain", "a\n" + "b" * 98 + "\n")[0] == "a"
    assert fault("plain", "a\n" + "b" * 1000).startswith("FILE, line 2: longer than 100 bytes")


def test_a_document_that_is_too_large_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_DOCUMENT_BYTES", 100)
    assert "more than 100 bytes" in fault("sgm", "<seg>a</seg>" * 20)


IWSLT_XML = """<?xml version="1.0" encoding="UTF-8"?>
<mteval><srcset setid="x" srclang="de"><doc docid="1" genre="lectures">
<url>http://example.org/talk</url>
<description>about</description>
<keywords>a, b</keywords>
<talkid>1</talkid>
<title>A title</title>
<seg id="1"> The first &amp; best. </seg>
<seg id="2"> Two\u0085lines </seg>
</doc></srcset></mteval>
"""


def test_iwslt_xml_gives_its_segments_and_no_metadata() -> None:
    assert read("sgm", IWSLT_XML) == ["The first & best.", "Two\u0085lines"]


def test_what_is_commented_out_is_no_segment_and_literal_text_has_no_entities() -> None:
    text = (
        "<!-- <seg>an older\nversion</seg> --><seg>one<!-- a remark --></seg>"
        "<seg><![CDATA[a < b & c &amp; ]]>&lt; &#101;</seg><seg>x <!-- y</seg>"
    )
    assert read("sgm", text) == ["one", "a < b & c &amp; < e", "x <!-- y"]
    text = (
        "<seg><![CDATA[one <!-- </seg> two]]></seg><seg><![CDATA[three]]></seg><!-- <seg><![CDATA[a]]></seg> -->"
        "<seg>four <![CDATA[--> ]]>five</seg><seg>A <<![CDATA[seg>]]> &<![CDATA[lt;]]></seg><seg>six <![CDATA[ 7</seg>"
    )
    assert read("sgm", text) == ["one <!-- </seg> two", "three", "four --> five", "A <seg> &lt;", "six <![CDATA[ 7"]


@pytest.mark.parametrize("form", ["sgm", "tsv"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_text_in_utf_16_is_refused_with_the_way_out(form: str, encoding: str) -> None:
    text = IWSLT_XML if form == "sgm" else "id\ten\tde\n1\tone\teins\n"
    with pytest.raises(DataError, match="FILE: looks like UTF-16; convert it with `iconv"):
        list(READERS[form](io.BytesIO(text.encode(encoding)), "2", "FILE"))


IWSLT_TAGGED = """<doc docid="1" genre="lectures">
<url>http://example.org/talk</url>
<keywords>a, b</keywords>
<speaker>Ann Example</speaker>
<talkid>1</talkid>
<title>A title</title>
<description>TED Talk: what it is about</description>
<translator href="http://example.org">Someone</translator>
 The first sentence.
< 5 is less than, and <b> is text.

<url>http://example.org/other</url>
<title> Another title</title>
The last.
</doc>
"""


def test_a_byte_order_mark_hides_no_tag() -> None:
    for first, expected in (("<url>x</url>", []), ("<title>a</title>", ["a"]), ("a", ["\ufeffa"])):
        assert read("tagged", f"\ufeff{first}\nb\n") == [*expected, "b"]


def test_tagged_text_keeps_titles_and_sentences_and_drops_metadata() -> None:
    assert read("tagged", IWSLT_TAGGED) == [
        "A title",
        "TED Talk: what it is about",
        " The first sentence.",
        "< 5 is less than, and <b> is text.",
        "",
        "Another title",
        "The last.",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("<title>no end\r", "no end"),
        (" <Title> both \t</TITLE> \n", "both"),
        ("<title></title>", ""),
        ("<title>a</description>", "a</description>"),
        ("<title>a</title></title>", "a</title>"),
        ("<title>a</title> b", "a</title> b"),
    ],
)
def test_the_tags_of_a_title_go_whatever_stands_in_it(line: str, expected: str) -> None:
    assert read("tagged", line) == [expected]


@pytest.mark.parametrize("tag", ["<seg ", "<seg a='", "</seg ", "<seg/"])
def test_ten_megabytes_of_tags_that_do_not_end_are_an_error_at_once(tag: str) -> None:
    content = f"{tag * (10_000_000 // len(tag))}"
    assert "no <seg> in it" in fault("sgm", content)


def test_a_file_of_sources_and_references_is_refused() -> None:
    source, reference = (f"<{tag} lang='x'><p><seg id='1'>a</seg></p></{tag}>" for tag in ("src", "ref"))
    assert "holds sources and translations" in fault("sgm", f"<doc>{source}{reference}</doc>")
    assert read("sgm", f"<doc>{source}</doc>") == ["a"]


def test_long_blanks_in_a_segment_are_read_at_once() -> None:
    blanks = " " * 10_000_000
    assert read("sgm", f"<seg>a{blanks}b \n\t\n c</seg>") == [f"a{blanks}b  c"]
    assert read("tagged", f"<title>a{blanks}b</title>") == [f"a{blanks}b"]


def test_columns_of_a_table_are_its_sides() -> None:
    table = 'one\teins\tsource 1\n"two\tzwei\n\nthree\u0085\tdrei\r\n'
    assert read("tsv", table, "1") == ["one", '"two', "", "three\u0085"]
    assert read("tsv", table, "2") == ["eins", "zwei", "", "drei\r"]


def test_a_line_without_the_column_is_named() -> None:
    assert fault("tsv", "one\teins\ntwo\n", "2").startswith("FILE, line 2: has 1 column, not 2")
    assert "has 2 columns, not 3" in fault("tsv", "one\teins\n", "3")
    assert fault("tsv", "one\teins\rtwo\tzwei\r", "2").startswith("FILE: only carriage returns end its lines; convert")


@given(st.lists(st.tuples(hostile_text, hostile_text), min_size=1, max_size=5))
def test_both_columns_always_have_as_many_lines(rows: list[tuple[str, str]]) -> None:
    rows = [(one.replace("\t", " "), other.replace("\t", " ").rstrip("\r")) for one, other in rows]
    rows[0] = (rows[0][0].replace("\0", ""), rows[0][1].replace("\0", ""))  # else it may look like UTF-16
    table = "".join(f"{one}\t{other}\n" for one, other in rows)
    assert list(zip(read("tsv", table, "1"), read("tsv", table, "2"), strict=True)) == rows


TMX = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header creationtool="x" srclang="en"><note>not text</note></header><body>
<tu tuid="1"><prop type="x">not text</prop>
  <tuv xml:lang="en-GB">
  <seg>The <bpt i="1">&lt;b&gt;</bpt>red<ept i="1">&lt;/b&gt;</ept> <hi>dog</hi> &amp; cat</seg></tuv>
  <tuv xml:lang="DE"><seg>Der rote
     Hund</seg></tuv></tu>
<tu><tuv lang="en"><seg>only English</seg></tuv></tu>
<tu><tuv xml:lang="de"><seg>nur\u2028Deutsch</seg></tuv><tuv xml:lang="fr"><seg>x</seg></tuv></tu>
</body></tmx>
"""


def test_a_translation_memory_gives_a_line_a_unit_on_both_sides() -> None:
    assert read("tmx", TMX, "en") == ["The red dog & cat", "only English", ""]
    assert read("tmx", TMX, "de") == ["Der rote Hund", "", "nur\u2028Deutsch"]


def test_a_code_that_breaks_the_line_is_a_blank() -> None:
    codes = "a<ph>&lt;br/&gt;</ph>b<it pos='begin'>{\\tab}</it>c<ph>\t</ph>d <ph>&lt;P class='x'&gt;</ph> e"
    assert read("tmx", TMX.replace("only English", codes), "en")[1] == "a bc d   e"


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("Shift_JIS", "赤い犬"),
        ("EUC-JP", "赤い犬"),
        ("GB2312", "红狗"),
        ("Big5", "紅狗"),
        ("EUC-KR", "빨간 개"),
        ("windows-1251", "рыжая собака"),
        ("ISO-8859-1", "Müller"),
        ("UTF-8", "Müller 赤"),
        ("utf-16", "Müller 赤"),
    ],
)
def test_a_translation_memory_is_read_in_the_encoding_that_it_states(encoding: str, text: str) -> None:
    memory = TMX.replace('"1.0"?', f'"1.0" encoding="{encoding}"?').replace("Der rote\n     Hund", text)
    content = memory.replace("\u2028", " ").encode(encoding)
    assert read("tmx", content, "de") == [text, "", "nur Deutsch"]


def test_a_translation_memory_of_another_encoding_than_stated_is_an_error() -> None:
    memory = TMX.replace('"1.0"?', '"1.0" encoding="shift_jis"?').replace("\u2028", "").encode()
    assert "not valid XML ('shift_jis' codec" in fault("tmx", memory.replace(b"red", b"\x87\xff"), "en")
    for unknown in (b"klingon", b"zlib", b"bz2_codec", b"undefined", b"punycode"):
        assert "not valid XML" in fault("tmx", memory.replace(b"shift_jis", unknown), "en")


def test_elements_in_elements_are_read_to_any_depth() -> None:
    depth = 100_000
    nested = "<hi>" * depth + "deep" + "</hi>" * depth + " tail <bpt>code<sub>of a code</sub> more</bpt>!"
    assert read("tmx", TMX.replace("only English", nested), "en")[1] == "deep tail !"


def test_a_translation_memory_is_closed_with_its_archive(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.tmx", TMX)
    place = Path(f"{archive}:a.tmx")
    assert sides(place, place, languages=("en", "de"))[1] == ["Der rote Hund", "", "nur\u2028Deutsch"]


def test_a_translation_memory_without_the_language_says_what_it_has() -> None:
    assert "no unit in the language 'it'; it has DE, de, en, en-GB, fr" in fault("tmx", TMX, "it")


def test_xml_that_is_cut_short_or_explodes_is_an_error() -> None:
    assert "not valid XML" in fault("tmx", TMX[:-40], "en")
    levels = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    bomb = f'<!DOCTYPE tmx [<!ENTITY e0 "{"ha" * 10}">{levels}]>' + TMX.split("\n", 2)[2].replace("only", "&e11;")
    assert "not valid XML" in fault("tmx", bomb, "en")


TREES = b"""( (S (NP-SBJ (NP (NNP Ann) )
     (, ,) )
   (VP (VBD was) (VP (VBN seen) (NP (-NONE- *-1) ))) (. .) ))

( (NP (-NONE- *) ))
( (FRAG (-LRB- -LRB-) (NN dog) ))
"""


def test_trees_over_several_lines_are_one_line_each_beside_their_words() -> None:
    for content in (TREES, codecs.BOM_UTF8 + TREES):
        assert read("treebank", content, "words") == ["Ann , was seen .", "-LRB- dog"]
    assert read("treebank", TREES, "tree") == [
        "(S (NP (NP (NNP Ann)) (, ,)) (VP (VBD was) (VP (VBN seen))) (. .))",
        "(FRAG (-LRB- -LRB-) (NN dog))",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.en", "plain"),
        ("a.SGM", "sgm"),
        ("IWSLT14.TED.dev2010.de-en.de.xml", "sgm"),
        ("x/train.tags.de-en.de", "tagged"),
        ("a.tsv", "tsv"),
        ("a.TMX", "tmx"),
    ],
)
def test_the_name_says_the_format(name: str, expected: str) -> None:
    assert format_of(name) == expected


def test_a_local_translation_memory_is_both_sides_by_their_languages(tmp_path: Path) -> None:
    memory = tmp_path / "a.tmx"
    memory.write_text(TMX, encoding="utf-8")
    corpus = local_corpus(memory, memory, languages=("de", "en"))
    firsts = [next(iter(side.open())) for side in (corpus.source, corpus.target)]
    assert firsts == ["Der rote Hund", "The red dog & cat"]
    swapped = local_corpus(memory, memory, languages=("en", "de"))
    assert swapped.fingerprint != corpus.fingerprint


def sides(source: Path, target: Path, **options: Any) -> list[list[str]]:
    corpus = local_corpus(source, target, **options)
    return [list(side.open()) for side in (corpus.source, corpus.target)]


@pytest.mark.parametrize("name", ["table.txt", "table.de", "table.tsv", "table.sgm", "train.tags.de"])
def test_stated_columns_make_a_file_a_table_whatever_its_name(tmp_path: Path, name: str) -> None:
    table, other = tmp_path / name, tmp_path / "other.de"
    table.write_text("x\teins\tone\n", encoding="utf-8")
    other.write_text("ein\tTabulator\n", encoding="utf-8")
    assert sides(table, table, columns=(3, 2)) == [["one"], ["eins"]]
    assert sides(table, table, columns=(3, None)) == [["one"], ["eins"]]
    assert sides(table, other, columns=(3, None)) == [["one"], ["ein\tTabulator"]]
    assert sides(other, table, columns=(None, 2)) == [["ein\tTabulator"], ["eins"]]


def test_a_table_in_an_archive_is_read_by_its_columns(tmp_path: Path) -> None:
    archive = tmp_path / "deu-eng.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("deu.txt", "Hi.\tHallo!\tCC-BY\n")
    place = Path(f"{archive}:deu.txt")
    assert sides(place, place, columns=(1, 2)) == [["Hi."], ["Hallo!"]]
    assert sides(place, place, columns=(2, 1)) == [["Hallo!"], ["Hi."]]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.en", {}),
        ("a.sgm", {}),
        ("a.zip:a.en", {}),
        ("a.tsv", {"columns": (2, 2)}),
        ("a.tmx", {"languages": ("en", "en")}),
    ],
)
def test_one_text_on_both_sides_is_an_error_with_the_way_out(
    tmp_path: Path, name: str, options: dict[str, Any]
) -> None:
    file = tmp_path / name.partition(":")[0]
    file.write_bytes(b"a\tb\n")
    message = message_of(lambda: local_corpus(tmp_path / name, tmp_path / name, **options))
    assert message.startswith(f"{tmp_path / name}: source and target are the same text of one file")
    assert "(source_column, target_column)" in message


def test_what_is_no_regular_file_is_refused_in_one_line(tmp_path: Path) -> None:
    plain, pipe = tmp_path / "a.en", tmp_path / "pipe.de"
    plain.write_text("one\n")
    os.mkfifo(pipe)
    begin, end = os.pipe()
    try:
        for special in (pipe, Path(f"/dev/fd/{begin}"), Path("/dev/zero"), Path("/dev/null")):
            with pytest.raises(DataError, match=f"^{special}: is a pipe or a device, .*write the text to a file first"):
                local_corpus(plain, special)
    finally:
        os.close(begin)
        os.close(end)


def test_a_name_that_cannot_be_opened_is_named_with_its_reason(tmp_path: Path) -> None:
    plain, loop = tmp_path / "a.en", tmp_path / "loop.de"
    plain.write_text("one\n")
    loop.symlink_to(loop)
    with pytest.raises(DataError, match=f"^{loop}: cannot be read .*symbolic links"):
        local_corpus(plain, loop)
    with pytest.raises(DataError, match=r"cannot be read .*null byte"):
        local_corpus(plain, tmp_path / "a\0.de")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(DataError) as caught:
            local_corpus(plain, plain.with_suffix(".de"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert str(caught.value) == f"{plain}: cannot be read (Too many open files)"
