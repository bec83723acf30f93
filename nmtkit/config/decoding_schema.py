"""The section [decoding] of a recipe, and the lengths of training pairs, which decoding goes by."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, model_serializer

from nmtkit.config.section import Section


class DecodingConfig(Section):
    """Search settings for validation and `translate`."""

    # Beam 4, alpha 0.6 and at most 50 tokens more than the source: section 6.1 of the paper.
    beam: int = Field(default=4, ge=1, le=10_000)
    """Beam size; 1 is greedy search."""
    length_penalty: Literal["wu", "length", "none"] = "wu"
    """Divisor of a hypothesis' log-probability; n is its length with the end symbol. wu: ((5 + n) / 6)^alpha, as in the
    paper. length: n^alpha, as in fairseq, CTranslate2 and Hugging Face. none: 1."""
    alpha: float = Field(default=0.6, ge=0, le=20)
    """Exponent of the length penalty."""
    finished: Literal["within", "beside"] = "within"
    """within: finished hypotheses take places in the beam. beside: they do not, and the search ends when as many as the
    beam size are finished, as in CTranslate2."""
    max_length_offset: int = Field(default=50, ge=0, le=1_000_000)
    """The maximum length of a translation is max_length_ratio x source length + max_length_offset, in tokens."""
    max_length_ratio: float = Field(default=1.0, ge=0, le=1000)
    """See max_length_offset; 1 in the paper."""
    max_length: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum length of any translation in tokens."""
    min_length: int = Field(default=0, ge=0, le=1_000_000)
    """Minimum length of a translation in tokens."""
    no_repeat_ngram: int = Field(default=0, ge=0, le=1_000_000)
    """Never generate an n-gram of this size twice; 0: no restriction."""
    coverage_penalty: float = Field(default=0.0, ge=0, le=1000)
    """Weight (beta) of the coverage penalty (Wu et al. 2016, equation 14) for parts of the source with little
    attention."""
    whole_trees: bool = False
    """For trees: generate only complete trees over the words of the source. The paper has no such constraint."""
    # The last 5 checkpoints of the base model: section 6.1 of the paper.
    average_last: int = Field(default=5, ge=1, le=1_000_000)
    """Number of checkpoints that `average` and `run` average."""

    WELL_FORMED: ClassVar = "whole_trees"
    """Name of the key by which only well-formed outputs of the task are generated."""

    @property
    def well_formed(self) -> bool:
        """True if only well-formed outputs of the task are generated."""
        return self.whole_trees

    @property
    def impossible_lengths(self) -> str | None:
        """The message that no translation has the stated lengths; None if some have."""
        if self.max_length is None or self.min_length <= self.max_length:
            return None
        return f"min_length = {self.min_length} is more than max_length = {self.max_length}; change one of them"

    @property
    def not_for_both_sides(self) -> list[str]:
        """The stated settings that are refused with data.context_sides = "both"."""
        stated = [key for key in ("min_length", "no_repeat_ngram", "coverage_penalty") if getattr(self, key)]
        return stated if self.finished == "within" else [*stated, 'finished = "beside"']

    @property
    def is_that_of_ctranslate2(self) -> bool:
        """True if CTranslate2 searches in the same way: greedily, or with finished hypotheses beside the beam.

        There, it ranks by n^alpha, and distributes the probability of what min_length and no_repeat_ngram exclude over
        the other tokens. It knows no well-formed outputs.
        """
        has_its_penalty = self.length_penalty != "wu" or self.alpha == 0
        excludes = self.min_length or self.no_repeat_ngram or self.coverage_penalty
        is_its_beam_search = self.finished == "beside" and has_its_penalty and not excludes
        return not self.well_formed and (self.beam == 1 or is_its_beam_search)


class TrainingLengths(Section):
    """Lengths of a model's training pairs, by which long lines are split and too short translations detected."""

    longest_source: int = Field(ge=1, le=1_000_000_000)
    """Tokens of the longest source."""
    target_ratio: float = Field(gt=0, le=1e9)
    """Target tokens per source token, over all pairs."""
    multi_sentence_share: float = Field(ge=0, le=1)
    """Share of the sources that hold more than one sentence."""
    longest_sequence: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """Tokens of the longest source with its context; None for models without `data.context`."""

    max_source_tokens: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """`data.max_source_tokens`, to which the sources were cut."""

    @model_serializer(mode="wrap")
    def _without_none(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}


read_lengths = TypeAdapter(TrainingLengths | None).validate_python
"""Validator of the lengths in model.json or a manifest; None for older files without them."""
