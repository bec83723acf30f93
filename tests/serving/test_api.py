"""What the server answers: the translations of `nmtkit translate`, whatever requests stand beside each other."""

import json
import random
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.decoding.request import Translation, TranslationRequest
from nmtkit.decoding.translator import Translator
from nmtkit.errors import ModelError, NmtkitError
from nmtkit.serving.server import load_directions
from nmtkit.serving.texts import RequestText, spans
from nmtkit.text.terms import Glossary
from tests.conftest import run_with_streams
from tests.decoding.models import model_for
from tests.export.tiny_models import LINES, make_run, sentences, tokenizer_of
from tests.serving.conftest import Server, gated, request, serving, translated_together, translation_request

TEXT = sentences(30, seed=5)


def test_a_text_has_the_translations_that_the_command_gives_its_lines(
    server: Server, model: Path, restored_process: None
) -> None:
    lines = [line for line in LINES if "\u2028" not in line] + TEXT
    done = run_with_streams("translate", model, "--threads", "1", stdin="".join(f"{line}\n" for line in lines).encode())
    assert server.translated("\n".join(lines)) == "\n".join(done.lines)
    assert server.translated(lines) == done.lines
    assert len(set(done.lines)) > 15


def test_odd_lines_and_all_line_ends_are_kept(server: Server, translator: Translator) -> None:
    odd = [*LINES[20:], "\x00", "\u2028", "\ufeff", "a" * 300, " ".join(TEXT[:12])]
    assert server.translated(odd) == translator.translate(odd)
    one, other = translator.translate(TEXT[:2])
    assert server.translated(f"{TEXT[0]}\r\n\r\n{TEXT[1]}\n") == f"{one}\r\n\r\n{other}\n"


def test_a_text_longer_than_a_round_is_split_and_joined(server: Server, translator: Translator) -> None:
    text = " ".join(sentences(170, seed=6))
    assert 3500 < len(text) < 5000
    assert server.translated(text) == translator.translate([text])[0]


@pytest.mark.parametrize(
    ("beam", "n_best", "prefix"),
    [(1, 1, ""), (2, 2, ""), (5, 1, ""), (4, 3, ""), (None, 1, "die"), (3, 2, "eine alte")],
)
def test_options_are_those_of_the_command(
    server: Server, model: Path, tmp_path: Path, restored_process: None, beam: int | None, n_best: int, prefix: str
) -> None:
    options = ["--beam", str(beam)] * (beam is not None) + ["--n-best", str(n_best), "--json"]
    if prefix:
        (tmp_path / "prefix").write_text(f"{prefix}\n" * len(TEXT), encoding="utf-8")
        options += ["--prefix", str(tmp_path / "prefix")]
    stdin = "".join(f"{line}\n" for line in TEXT).encode()
    done = run_with_streams("translate", model, "--threads", "1", *options, stdin=stdin)
    expected = [[one["text"] for one in json.loads(line)["hypotheses"]] for line in done.lines]
    fields = {"n_best": n_best, "prefix": [prefix] * len(TEXT) if prefix else ""} | ({"beam": beam} if beam else {})
    answer = server.post(TEXT, **fields).json
    assert answer["translatedText"] == [ranked[0] for ranked in expected]
    if n_best > 1:
        others = [list(dict.fromkeys(ranked))[1:] for ranked in expected]
        assert answer["alternatives"] == others
        assert server.post(TEXT, **fields | {"n_best": 1, "alternatives": n_best - 1}).json == answer
    else:
        assert set(answer) == {"translatedText"}


def test_the_answer_has_the_shape_of_the_question(server: Server) -> None:
    text = server.post("the dog", n_best=2, alignment=True).json
    listed = server.post(["the dog"], n_best=2, alignment=True).json
    assert {name: [value] for name, value in text.items()} == listed
    assert set(text) == {"translatedText", "alternatives", "alignment"}
    assert server.post([], n_best=2, alignment=True).json == {"translatedText": [], "alternatives": [], "alignment": []}
    assert server.translated("") == ""
    assert server.translated(["", "\n"]) == ["", "\n"]


def test_requests_with_all_kinds_of_options_at_once_do_not_change_each_others_translations(server: Server) -> None:
    rng = random.Random(1)
    kinds: list[dict[str, Any]] = [
        {}, {"beam": 1}, {"beam": 5, "n_best": 3}, {"prefix": "die"}, {"glossary": {"dog": "Katze"}},
        {"alignment": True},
        {"q": ["the dog sees", " ".join(TEXT)]}, {"source": "de", "target": "en"},
    ]  # fmt: skip
    questions = [{"q": line, **rng.choice(kinds)} for line in TEXT]
    alone = [server.post(**fields).json for fields in questions]
    before = server.metric("nmtkit_round_lines_count")
    together = server.together([lambda fields=fields: server.post(**fields).json for fields in questions])
    assert together == alone
    rounds = server.metric("nmtkit_round_lines_count") - before
    assert rounds < len(questions)  # some were translated together


def test_waiting_requests_with_equal_options_share_a_search() -> None:
    with gated() as (server, engine):
        calls: list[Callable[[], Any]] = [lambda line=line: server.translated(line) for line in TEXT[:10]]
        calls += [lambda line=line: server.translated(line, beam=1) for line in TEXT[10:15]]
        translated_together(server, engine, calls)
        assert [sorted(lines) for lines in sorted(engine.calls[1:], key=len)] == [
            sorted(TEXT[10:15]),
            sorted(TEXT[:10]),
        ]


def test_a_round_has_a_limited_number_of_tokens() -> None:
    with gated(batch_tokens=30) as (server, engine):
        translated_together(server, engine, [lambda line=line: server.translated(line) for line in TEXT])
        assert max(sum(map(len, lines)) for lines in engine.calls) <= 4 * 30
        assert 5 < len(engine.calls) < len(TEXT)


def test_a_model_with_context_reads_the_lines_of_a_text_as_a_document_of_its_own(tmp_path: Path) -> None:
    model = make_run(tmp_path / "run", context=2)
    translator = Translator.load(model)
    assert translator.tokenizer.context == 2
    texts = ["\n".join(TEXT[start : start + 4]) for start in range(0, 28, 4)]
    expected = ["\n".join(translator.translate(text.split("\n"))) for text in texts]
    assert expected != ["\n".join(translator.translate([line])[0] for line in text.split("\n")) for text in texts]
    with serving(lambda: load_directions([model], "auto", "float32", "cpu", 1)) as server:
        assert server.together([lambda text=text: server.translated(text) for text in texts]) == expected
        assert server.translated(texts) == expected


def test_a_model_that_cannot_be_served_is_named(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=f"^{tmp_path / 'nothing'}: no such folder"):  # named once
        load_directions([model, tmp_path / "nothing"], "auto", "float32", "cpu", 1)

    def refuse(*arguments: object) -> None:
        raise ModelError("this model continues text; use `nmtkit generate`")

    monkeypatch.setattr(Translator, "load", refuse)
    with pytest.raises(ModelError, match=f"^{model}: this model continues text"):
        load_directions([model], "torch", "float32", "cpu", 1)


def test_with_context_subwords_are_aligned_with_those_of_their_own_line(tmp_path: Path) -> None:
    model = make_run(tmp_path / "run", context=1)
    translator, expected = Translator.load(model), set()
    found = translator.translations(TEXT, TranslationRequest(attention=True))
    for number, (line, [best]) in enumerate(zip(TEXT, found, strict=True)):
        num_before = len(best.source_pieces or ()) - len(translator.tokenizer.encode([line], "source")[0])
        for index, piece in zip(best.alignment or (), best.pieces, strict=True):
            names = [each.replace("\u2581", "") for each in ((best.source_pieces or ())[index], piece)]
            expected |= {(number, *names)} if index >= num_before and all(names) else set()
    with serving(lambda: load_directions([model], "auto", "float32", "cpu", 1)) as server:
        answer = server.post("\n".join(TEXT), alignment=True).json
    text, translation = "\n".join(TEXT), answer["translatedText"]
    numbered = {(text[:a].count("\n"), text[a:b], translation[c:d]) for a, b, c, d in answer["alignment"]}
    assert numbered == expected
    assert len(expected) > 20


def test_the_engine_is_as_named_and_both_give_the_same_greedy_translations(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    from nmtkit.export.export import export

    model = make_run(tmp_path / "run", decoding={"beam": 1})
    expected = Translator.load(model).translate(TEXT)
    exported, _ = export(model, "ctranslate2")
    engines: dict[str, Any] = {
        "auto": load_directions([model], "auto", "float32", "cpu", 1),
        "ctranslate2": load_directions([model], "ctranslate2", "float32", "cpu", 1),
        "export": load_directions([exported], "auto", "float32", "cpu", 1),
    }
    kinds = {name: type(directions["en", "de"][0]).__name__ for name, directions in engines.items()}
    assert kinds == {**dict.fromkeys(engines, "CTranslate2Translator"), "auto": "Translator"}
    with serving(lambda: engines["auto"]) as server:
        assert server.translated(TEXT) == expected
        assert '["en","de",1,true]' in server.get("/").body.decode()
    with serving(lambda: engines["ctranslate2"]) as server:
        assert server.together([lambda line=line: server.translated(line) for line in TEXT]) == expected
        assert "use the torch engine" in server.post(TEXT, alignment=True).error
        assert '["en","de",0,false]' in server.get("/").body.decode()  # nothing that it lacks is offered on the page


@pytest.mark.parametrize(("window", "has_alignments"), [(None, "true"), (4, "false")])
def test_the_page_asks_for_no_alignment_where_no_layer_sees_the_whole_source(
    window: int | None, has_alignments: str
) -> None:
    tokenizer = tokenizer_of()
    model = model_for(tokenizer, torch.float32, architecture="decoder", attention_window=window)
    engine = Translator([model], tokenizer, DecodingConfig(), "float32")
    with serving(lambda: {("en", "de"): (engine, TranslationRequest())}) as server:
        assert f'["en","de",4,{has_alignments}]' in server.get("/").body.decode()


def test_precision_device_and_threads_are_those_of_translate(model: Path, restored_process: None) -> None:
    engine, _ = load_directions([model], "torch", "bf16", "cpu", 1)["en", "de"]
    assert (engine.precision, engine.device, engine.num_threads) == ("bf16", "cpu", 1)


def test_a_model_of_several_languages_serves_each_of_its_directions(tmp_path: Path) -> None:
    corpora = [{"source": "x.en", "target": f"x.{code}", "target_language": code} for code in ("de", "fr")]
    model = make_run(tmp_path / "run", train=corpora)
    translator = Translator.load(model)
    with serving(lambda: load_directions([model], "torch", "float32", "cpu", 1)) as server:
        assert server.get("/languages").json == [{"code": "en", "name": "en", "targets": ["de", "fr"]}]
        for target in ("de", "fr"):
            assert server.translated(TEXT, target=target) == translator.translate(TEXT, target_language=target)
        assert server.translated(TEXT, target="de") != server.translated(TEXT, target="fr")


def test_the_models_serve_their_directions(server: Server, reverse_model: Path) -> None:
    german = ["die alte Katze sieht eine Hündin", "rote Häuser"]
    expected = Translator.load(reverse_model).translate(german)
    assert server.translated(german, source="de", target="en") == expected
    assert server.translated(german, source="auto", target="en") == expected
    assert server.get("/languages").json == [
        {"code": "en", "name": "en", "targets": ["de"]}, {"code": "de", "name": "de", "targets": ["en"]}
    ]  # fmt: skip
    known = "choose one of en-de, de-en (/languages lists all)"
    for source in ("en", "auto"):
        fault = f"source '{source}', target 'fr': no model translates this; {known}"
        assert server.post("x", source=source, target="fr").error == fault


def test_two_models_of_one_direction_are_refused(model: Path) -> None:
    with pytest.raises(NmtkitError, match="another model translates en-de"):
        load_directions([model, model], "torch", "float32", "cpu", 1)


def test_a_form_has_the_same_fields_as_json(server: Server) -> None:
    def of_form(body: str, kind: str = "application/x-www-form-urlencoded") -> Any:
        return server.answer(request("POST", "/translate", body.encode(), Content_Type=kind)).json

    body = urlencode({"q": "the dog & a=cat ü", "source": "en", "target": "de", "n_best": "2", "alignment": "true"})
    expected = server.post("the dog & a=cat ü", n_best=2, alignment=True).json
    assert of_form(body, "application/x-www-form-urlencoded; charset=utf-8") == expected
    body = json.dumps({"q": ["the dog"], "source": "en", "target": "de"})  # curl -d says that it is a form
    assert of_form(f" {body}") == server.post(["the dog"]).json
    body = urlencode([("q", "the dog"), ("q", "a cat"), ("source", "en"), ("target", "de")])
    assert of_form(body) == server.post(["the dog", "a cat"]).json


def test_html_keeps_its_tags_and_translates_the_text_between_them(server: Server) -> None:
    one, other, third = server.translated(["the dog sees", "a red cat", "x < y & z"])
    document = (
        "\n<p class=\"a > b\" title='the'>the dog\n   sees</p><!-- the cat --> <B>a red cat</B>  <br/>\n"
        "<script>the < cat</script>x &lt; y &amp; z \n"
    )
    one, other, third = (escape(line, quote=False) for line in (one, other, third))
    assert server.translated(document, format="html") == (
        f"\n<p class=\"a > b\" title='the'>{one}</p><!-- the cat --> <B>{other}</B>  <br/>\n"
        f"<script>the < cat</script>{third} \n"
    )
    less, more = server.translated(["x < y and", "z > x"])
    less, more = (escape(line, quote=False) for line in (less, more))
    text = "x < y and <b>z > x</b><td>&nbsp;</td>"  # no tag begins with a blank
    assert server.translated(text, format="html") == f"{less} <b>{more}</b><td>&nbsp;</td>"
    for blank in ("<b></b>", "<td> &ensp;</td>", "&nbsp;<br>&#xA0; "):
        assert server.translated(blank, format="html") == blank
    assert server.translated(["", " \n "], format="html") == ["", " \n "]
    mark = "<!-- <pre> --><b title='<pre>'/>"
    text = f"&nbsp;the dog&nbsp;sees&#160;<i> &nbsp; </i><pre>\nthe dog sees\n  a red cat\n</pre>{mark}a\nred cat"
    assert server.translated(text, format="html") == (
        f"&nbsp;{one}&#160;<i> &nbsp; </i><pre>\n{one}\n  {other}\n</pre>{mark}{other}"
    )
    for odd in (
        "<" * 3000, "<!--" * 1000, '<a"' * 1500, " " * 4000 + "x", "<script>" * 600, "< a" * 1500, "&nbsp;" * 700,
        "<pre>" * 900, "<pre>" + "\n" * 4000,
    ):  # fmt: skip
        begun = time.monotonic()
        assert server.post(odd, format="html").status == 200
        assert time.monotonic() - begun < 30


@pytest.mark.parametrize("blank", ["&#32;", "&ensp;", "&emsp;", "&#8239;", "&#x2003;", "&nbsp"])
def test_blanks_of_any_spelling_around_a_text_stay(blank: str) -> None:
    text = RequestText(f"{blank}<i>one{blank}</i>two", "", is_html=True)
    answer = text.answer([[Translation(line.upper())] for line, _ in text.lines])
    assert answer["translatedText"] == f"{blank}<i>ONE{blank}</i>TWO"


def test_an_alignment_names_the_characters_of_source_and_translation(server: Server, translator: Translator) -> None:
    lines = ["the dog sees the cat", "", "😀 the  old house"]
    text = "\r\n".join(lines)
    answer = server.post(text, alignment=True).json
    translation = answer["translatedText"]
    found = {(text[a:b], translation[c:d]) for a, b, c, d in answer["alignment"]}
    expected = set()
    for [best] in translator.translations(lines, TranslationRequest(attention=True)):
        assert best.alignment is not None and best.source_pieces is not None
        names = [piece.replace("\u2581", "") for piece in (*best.source_pieces, "")]
        expected |= {
            (names[source], piece.replace("\u2581", ""))
            for source, piece in zip(best.alignment, best.pieces, strict=True)
        }
    assert found == {pair for pair in expected if all(pair) and "😀" not in pair[0]}
    assert len(found) > 5
    starts = [pair[2] for pair in answer["alignment"]]
    assert starts == sorted(starts)
    second_line = translation.index("\r\n")
    assert all((pair[0] < text.index("\r\n")) == (pair[2] < second_line) for pair in answer["alignment"])


def test_subwords_are_found_in_their_text() -> None:
    assert spans("The dog, here", ["\u2581the", "\u2581do", "g", ",", "</s>", "\u2581here", "\u2581"]) == [
        (0, 3), (4, 6), (6, 7), (7, 8), None, (9, 13), None
    ]  # fmt: skip
    assert spans("ade b@@", ["a@@", "de", "b@@"], 1, "@@") == [(1, 2), (2, 4), (5, 6)]
    assert spans("", ["a"]) == [None]
    assert spans("\u0130x", ["x"]) == [None]  # its lower case has another length
    assert spans("x" + " " * 100 + "y", ["x", "\u2581y"]) == [(0, 1), None]


def test_a_glossary_requires_the_translations_of_its_terms(server: Server, translator: Translator) -> None:
    glossary = {"dog": "Katze", "red house": "rote Häuser", "new": "neue neue"}
    lines = TEXT[:8]
    request_ = TranslationRequest(glossary=Glossary(glossary.items()))
    expected = [best.text for best, *_ in translator.translations(lines, request_)]
    answer = server.translated("\n".join(lines), glossary=glossary).split("\n")
    assert answer == expected
    assert answer != translator.translate(lines)
    assert all("Katze" in found for line, found in zip(lines, answer, strict=True) if "dog" in line.split())
    assert "the term is empty" in server.post("dog", glossary={" ": "x"}).error
    assert "the translation is empty" in server.post("dog", glossary={"dog": ""}).error
    fault = "glossary, term 'dog': the translation '漢' has characters that are not in the model's vocabulary (漢)"
    assert server.post("dog", glossary={"dog": "漢"}).error == fault
    assert server.post("cat", glossary={"dog": "漢"}).error == fault  # whether the term occurs or not


def test_a_prefix_belongs_to_the_lines_of_its_text(server: Server, translator: Translator) -> None:
    expected = translator.translations(["the dog", "a cat", "red"], TranslationRequest(prefixes=["die", "", ""]))
    assert server.translated("the dog\na cat\nred", prefix="die\n") == "\n".join(best.text for best, *_ in expected)
    assert "prefix" in server.post("the dog", prefix="die\nalte").error
    assert "prefix" in server.post("the dog", prefix=["die"]).error
    assert "prefix" in server.post(["the dog", "cat"], prefix=["die"]).error
    assert "vocabulary" in server.post("the dog", prefix="漢字").error


def test_a_faulty_request_does_not_harm_those_that_are_translated_with_it() -> None:
    with gated() as (server, engine):
        calls: list[Callable[[], Any]] = [lambda line=line: server.translated(line) for line in TEXT[:11]]
        *found, fault = translated_together(server, engine, [*calls, lambda: server.post("damaged").error])
        assert found == [line.upper() for line in TEXT[:11]]
        assert fault == "the weights are damaged"
        assert sorted(engine.calls[1]) == sorted([*TEXT[:11], "damaged"])
        assert sorted(engine.calls[2:]) == sorted([[line] for line in engine.calls[1]])  # each again by itself


def test_the_description_of_the_api_names_every_path_and_field(server: Server) -> None:
    schema = server.get("/openapi.json").json
    assert schema["openapi"].startswith("3.")
    kinds = ["application/json", "application/x-www-form-urlencoded"]
    assert list(schema["paths"]["/translate"]["post"]["requestBody"]["content"]) == kinds
    for kind in ("multipart/form-data; boundary=x", "text/plain"):
        answer = server.answer(request("POST", "/translate", b"{}", Content_Type=kind))
        fault = f"Content-Type is {kind.partition(';')[0]!r}; send {' or '.join(kinds)}"
        assert (answer.status, answer.error) == (415, fault)
    answer = server.answer(translation_request(b"\x1f\x8b", Content_Encoding="gzip"))
    fault = "Content-Encoding is 'gzip'; send the body without a content coding"
    assert (answer.status, answer.error) == (415, fault)
    assert server.answer(translation_request(b"{}", Content_Encoding="Identity")).status == 400
    for path, operations in schema["paths"].items():
        for method in operations:
            assert server.answer(request(method.upper(), path, b"" if method == "post" else None)).status in (200, 400)
    fields = schema["components"]["schemas"]["Request"]["properties"]
    assert {"q", "source", "target", "format", "beam", "n_best", "alignment", "prefix", "glossary"} <= set(fields)
    page = server.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name in (*schema["paths"], *fields):
        assert f"{name}</code>" in page.body.decode()
    assert "http" not in page.body.decode().replace("</html>", "")


def test_metrics_are_text_for_prometheus_and_count(server: Server) -> None:
    before = server.metric("nmtkit_request_seconds_count"), server.metric("nmtkit_round_lines_sum")
    server.translated(TEXT[:3])
    assert server.metric("nmtkit_round_lines_sum") == before[1] + 3
    assert server.metric("nmtkit_request_seconds_count") > before[0]
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    names = {family.name for family in text_string_to_metric_families(answer.body.decode())}
    assert {"nmtkit_request_seconds", "nmtkit_waiting_requests", "nmtkit_connections", "nmtkit_round_lines"} <= names
    assert server.metric("process_resident_memory_bytes") > 10**7
    assert server.metric("nmtkit_connections") == 1
