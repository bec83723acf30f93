"""The section [cleaning] of a recipe."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from nmtkit.config.section import MANY, Section


class CleaningConfig(Section):
    """Limits on training pairs, and an action (error, drop, fix or keep) for each kind of problem; see data.md."""

    max_tokens: int = Field(default=256, ge=0, le=1_000_000)
    """Maximum number of subword tokens on each side, without the end symbol; 0: no limit (default for summaries, labels
    and language models)."""
    max_characters: int = Field(default=5000, ge=0, le=MANY)
    """Maximum number of characters on each side, checked before subwords are learned; 0: no limit (default as for
    max_tokens)."""
    max_ratio: float = Field(default=0.0, ge=0, le=1_000_000)
    """Maximum ratio of the longer to the shorter side, in tokens; 0: no limit. Not for labels and language models."""
    line_count: Literal["error", "drop"] = "error"
    """The sides of a corpus have different numbers of lines. drop: leave out the extra lines at the end."""
    invalid_utf8: Literal["error", "drop", "fix"] = "error"
    """Bytes that are not UTF-8. fix: read them as Windows-1252."""
    line_separator: Literal["error", "drop", "fix", "keep"] = "keep"
    """U+2028, U+2029, U+0085, VT, FF or CR inside a line. fix: replace by a blank."""
    bom: Literal["error", "drop", "fix", "keep"] = "fix"
    """Byte-order marks (U+FEFF), also one at the beginning of a file, which keep removes, too. fix: remove."""
    control_character: Literal["error", "drop", "fix", "keep"] = "keep"
    """Other control characters, except tabs. fix: remove."""
    invisible_character: Literal["error", "drop", "fix", "keep"] = "keep"
    """Soft hyphens, zero-width spaces, word joiners and direction marks (U+00AD, U+200B, U+200E, U+200F, U+202A to
    U+202E, U+2060, U+2066 to U+2069). fix: remove; data.normalize = ["invisible", ...] also does so in what is
    translated."""
    not_nfc: Literal["error", "drop", "fix", "keep"] = "keep"
    """Not in Unicode's form NFC, such as a letter with a separate accent. fix: convert; data.normalize = ["nfc", ...]
    also does so in what is translated."""
    one_sided_blank: Literal["error", "drop"] = "drop"
    """Exactly one side is blank."""
    both_blank: Literal["error", "drop"] = "drop"
    """Both sides are blank."""
    html_entity: Literal["error", "drop", "fix", "keep"] = "keep"
    """HTML entities such as `&amp;`. fix: replace by the character."""
    markup: Literal["error", "drop", "fix", "keep"] = "keep"
    """Tags such as `<b>`. fix: remove; a tag that separates words, such as `<br>`, becomes a blank."""
    too_long: Literal["error", "drop"] = "drop"
    """One side is longer than max_tokens or max_characters."""
    length_ratio: Literal["error", "drop", "keep"] = "drop"
    """The ratio of the lengths of the sides is above max_ratio. With max_ratio = 0, ratios above 9 (in characters) are
    only counted, not dropped."""
    source_equals_target: Literal["error", "drop", "keep"] = "keep"
    """Both sides are the same text. If more than half of the pairs of a corpus or test set, of at least 100, are
    such pairs, it is refused unless the recipe states this key."""
    duplicate_pair: Literal["error", "drop", "keep"] = "keep"
    """Both sides equal those of an earlier pair. drop: keep only the first that is not left out for a reason other than
    its number of tokens."""
    duplicate_source: Literal["error", "drop", "keep"] = "keep"
    """The source equals that of an earlier pair. drop: keep only the first that is not left out for a reason other than
    its number of tokens."""
    wrong_script: Literal["error", "drop", "keep"] = "keep"
    """Most letters of one side are not in the writing system of its language."""
    swapped_sides: Literal["error", "drop", "fix", "keep"] = "keep"
    """Each side is in the writing system of the other side's language. fix: exchange the sides."""
    wrong_language: Literal["off", "error", "drop", "keep"] = "off"
    """One side is in another language than stated, as py3langid identifies it (pip install 'nmtkit[langid]'). off: not
    checked, as it takes 0.3 ms per pair."""
    overlap_valid: Literal["error", "drop", "keep"] = "keep"
    """Both sides equal those of a pair in a validation set."""
    overlap_test: Literal["error", "drop", "keep"] = "keep"
    """Both sides equal those of a pair in a test set."""

    OF_TRANSLATIONS: ClassVar = (
        "max_ratio", "length_ratio", "source_equals_target", "wrong_script", "swapped_sides", "wrong_language",
    )  # fmt: skip
    """Keys about the relation of both sides and their languages, without effect for labels and language models."""
    OF_PAIRS: ClassVar = ("duplicate_pair", "duplicate_source")
    """Keys without effect for language models, as running text has many equal lines."""

    @model_validator(mode="after")
    def _check(self) -> "CleaningConfig":
        if 0 < self.max_ratio < 1:
            raise ValueError("max_ratio is that of the longer to the shorter side: 0, or at least 1")
        if self.length_ratio == "error" and not self.max_ratio:
            raise ValueError('length_ratio = "error" needs a max_ratio above 0')
        return self

    def action(self, rule: str) -> str:
        """Return the action for a rule; without max_ratio, length_ratio only counts."""
        if rule == "length_ratio" and not self.max_ratio:
            return "keep"
        return str(getattr(self, rule))
