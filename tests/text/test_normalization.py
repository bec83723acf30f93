"""What is done to lines is done on the right side, in order, and undone where that is possible."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nmtkit.config.data_schema import DataConfig
from nmtkit.text.normalization import Normalization, normalize, without_moses

HOSTILE = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n")
    | st.sampled_from("\u2028\u2029\u0085\x0b\x0c\r\t\0\x1b\u200b\u200d\ufeff\u202e\u0301&<>|[]'\".,-@ …“„«’")
)
MOSES = ("moses-punctuation", "blanks", "moses-tokenize", "lowercase")


def test_characters_that_cannot_be_seen_are_removed_or_made_blanks() -> None:
    line = "soft\u00adhyphen\u200b, \u202bno\u00a0break\u202fspace\u2069 \u0645\u06cc\u200c\u062e\u0648"
    assert normalize(line, ("invisible",)) == "softhyphen, no break space \u0645\u06cc\u200c\u062e\u0648"


class TestMoses:
    def test_each_side_follows_the_rules_of_its_language(self) -> None:
        assert normalize("Don't l'eau", ("moses-tokenize",), "en") == "Don 't l 'eau"
        assert normalize("Don't l'eau", ("moses-tokenize",), "fr") == "Don' t l' eau"

    def test_punctuation_is_made_alike(self) -> None:
        assert normalize("Er sagte: „Nein“ – heute…", ("moses-punctuation",), "de") == 'Er sagte: "Nein" - heute...'

    def test_the_steps_are_done_in_the_order_in_which_they_stand(self) -> None:
        line = "Das  „HAUS“, z.B."
        assert normalize(line, MOSES, "de") == 'das " haus " , z.b.'
        assert normalize(line, ("lowercase", "moses-tokenize"), "de") != normalize(line, MOSES, "de")

    def test_tokenising_is_undone_and_nothing_else(self) -> None:
        german = Normalization(MOSES, "de")
        line = 'Ein Mann ruft "Halt!", dann (nach 3,5 Sekunden) geht er.'
        assert german.restore(german(line)) == line.lower() == german.expected(line)
        assert Normalization(("lowercase",), "de").restore("a , b") == "a , b"

    def test_entities_in_the_text_stay_entities(self) -> None:
        english = Normalization(("moses-tokenize",), "en")
        assert english.restore(english("AT&amp;T &lt;b&gt;")).replace(" ", "") == "AT&amp;T&lt;b&gt;"
        assert english.restore("a &amp; b") == "a &amp; b"

    @settings(max_examples=200)
    @given(line=HOSTILE, language=st.sampled_from(["en", "de", "fr", "cs", "xx"]))
    @example(line="", language="en")
    @example(line="\u2028 \u0085", language="de")
    def test_any_line_gives_one_line_both_ways(self, line: str, language: str) -> None:
        normalization = Normalization(MOSES, language)
        text = normalization(line)
        back = normalization.restore(text)
        for result in (text, back, normalization.expected(line)):
            assert "\n" not in result
            assert result == result.strip(" ")
        assert [character for character in back if character.isalnum() and character not in text] == []

    @settings(max_examples=100)
    @given(line=HOSTILE)
    def test_what_pairs_are_compared_by_needs_no_rules_of_a_language(self, line: str) -> None:
        assert without_moses(MOSES) == ("blanks", "lowercase")
        assert normalize(line, without_moses(MOSES)) == normalize(line, ("blanks", "lowercase"), "de")

    @pytest.mark.parametrize(("key", "value"), [("text", "tokenized"), ("subwords", "none")])
    def test_text_whose_words_are_parted_is_not_tokenised_again(self, key: str, value: str) -> None:
        data = {"source_language": "en", "target_language": "de", "train": ["mine/train"], key: value}
        assert DataConfig.model_validate({**data, "normalize": ["moses-punctuation"]})
        with pytest.raises(ValueError, match=f'moses-tokenize needs plain text, but {key} = "{value}"'):
            DataConfig.model_validate({**data, "normalize": ["moses-tokenize"]})
