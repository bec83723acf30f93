"""What a recipe says, and how it is read.

A recipe is TOML with five sections, each a frozen model below, whose defaults are the paper's base model and training:

    recipe file -> its `base`, and that one's -> --set overrides      (layers; the one stated last wins)
                -> unknown keys and rules across fields checked      -> Recipe
"""

import difflib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Strict,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from nmtkit.compression import without_suffix
from nmtkit.errors import RecipeError
from nmtkit.files import open_plain

_LANGUAGE_CODE = r"^[a-z]{2,3}(_[A-Za-z]+)?$"
_ONE_WORD = r"^\S*$"
_FILE_NAME = r"^[^/\\.][^/\\]*$"
_IN_WORDS = {
    _LANGUAGE_CODE: 'must be a language code, such as "en" or "zh_Hans"',
    _ONE_WORD: "must be one word, without blanks",
    _FILE_NAME: "must be a name without slashes that begins with no full stop",
}
"""What is said of a value that does not match."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: Any) -> Any:
        """pydantic would take true for 1."""
        kind = cls.model_fields[str(info.field_name)].annotation
        is_number = not {int, float}.isdisjoint((kind, *get_args(kind)))
        given = value if isinstance(value, (list, tuple)) else [value]
        if is_number and any(isinstance(entry, bool) for entry in given):
            raise ValueError("must be a number, not true or false")
        return value


class _InMixture(_Section):
    """What can be said of each corpus of data.train."""

    weight: float = Field(default=1.0, gt=0, le=1000)
    """How often an epoch sees each of its pairs. 2: twice. 0.5: another half of them in each epoch."""
    source_prefix: str = Field(default="", pattern=_ONE_WORD, max_length=40)
    """A tag such as "<bt>", put before each source as a token of its own."""


class NamedCorpus(_InMixture):
    """A corpus of the catalogue with a weight or a tag."""

    corpus: str
    """Its catalogue name."""


class LocalPair(_InMixture):
    """A parallel corpus in files of your own, line by line each other's translation; docs/data.md has the formats."""

    source: Path
    """File with the source side, or ARCHIVE:MEMBER; both sides may be in one file (.tmx, .tsv)."""
    target: Path
    """File with the target side."""
    source_column: int | None = Field(default=None, ge=1)
    """Column of the source side, from 1, which makes its file a tab-separated table whatever its name; 1 in a .tsv."""
    target_column: int | None = Field(default=None, ge=1)
    """Column of the target side likewise; 2 in a .tsv."""
    name: str | None = Field(default=None, pattern=_FILE_NAME)
    """How messages and score tables call it, without slashes; by default the source file's name."""


TREES = ("trees", "tagged-trees")
"""The values of [data] text for which the target is a tree over the source's words."""


def _kind_of_entry(value: Any) -> str:
    if isinstance(value, dict):
        return "NamedCorpus" if "corpus" in value else "LocalPair"
    return type(value).__name__ if isinstance(value, _InMixture) else "name"


TrainingCorpus = Annotated[
    Annotated[str, Tag("name")] | Annotated[NamedCorpus, Tag("NamedCorpus")] | Annotated[LocalPair, Tag("LocalPair")],
    Discriminator(_kind_of_entry),
]


class DataConfig(_Section):
    """Which text, and how it is cut into subwords."""

    source_language: str = Field(pattern=_LANGUAGE_CODE)
    """Language code of the source, such as "en"."""
    target_language: str = Field(pattern=_LANGUAGE_CODE)
    """Language code of the target, such as "de"."""
    train: tuple[TrainingCorpus, ...] = Field(min_length=1)
    """Training corpora: catalogue names, { corpus = "NAME", weight = 2 }, or { source = "a.en.gz", target = "a.de.gz",
    name = "mine", weight = 0.5, source_prefix = "<bt>" }."""
    valid: Annotated[int, Strict()] | tuple[str | LocalPair, ...] = ()
    """Validation corpora; or a number: that many pairs are held out of train, and no copy of them is left in it."""
    test: tuple[str | LocalPair, ...] = ()
    """Test sets, each named by what follows the last slash of its name."""
    text: Literal["plain", "tokenized", "trees", "tagged-trees"] = "plain"
    """plain: text as people write it. tokenized: already split into words at blanks. trees: words and, as their
    translation, bracketed trees over them; tagged-trees: the model says parts of speech, too; see parsing.md."""
    normalize: tuple[Literal["nfc", "nfkc", "blanks", "lowercase", "moses-punctuation", "moses-tokenize"], ...] = (
        "blanks",
    )
    """What is done to every line, in this order, before subwords are cut, in training and translation alike. blanks:
    runs of blanks and tabs become one blank, those at the ends go. moses-tokenize: words and punctuation are parted by
    Moses' rules, and joined again in translations. Nothing else is ever rewritten."""
    subwords: Literal["bpe", "unigram", "wordpiece", "none"] = "bpe"
    """bpe, unigram: by sentencepiece. wordpiece: those of Wu et al. 2016. none: the text is segmented already, one
    piece between blanks."""
    vocab_size: int = Field(default=37000, ge=5)
    """Entries of the vocabulary (of each of the two without share_vocab), the four special ones included."""
    share_vocab: bool = True
    """One vocabulary for both sides."""
    byte_fallback: bool = False
    """Characters unseen in training become bytes instead of <unk>; costs 256 entries."""
    subword_sample_pairs: int = Field(default=1_000_000, ge=1)
    """Subwords are learned from at most that many pairs, taken at even steps through the corpora."""
    wordpiece_characters: int = Field(default=500, ge=1)
    """With subwords = "wordpiece": characters that get an entry, the most frequent ones. Wu et al. take 500 for Western
    languages, more for Asian ones."""
    segment_mark: str = "@@"
    """With subwords = "none": what ends a piece that the next one continues; translations are joined there."""
    tokenizer: Path | None = None
    """A model (model folder, run or checkpoint) whose subwords are taken instead of learning new ones, to fine-tune it;
    vocab_size, byte_fallback, wordpiece_characters and subword_sample_pairs then say nothing."""
    treebank: Path | None = None
    """Folder of the Penn Treebank's Wall Street Journal, of which the corpora "wsj/22" and "wsj/02-21" are sections; it
    is licensed, so nothing can download it."""
    silver_trees: tuple[Path, ...] = ()
    """Files of trees that other parsers made: the corpus "wsj/silver"."""

    @model_validator(mode="after")
    def _check(self) -> "DataConfig":
        if self.source_language == self.target_language:
            raise ValueError(f"source_language and target_language are both {self.source_language!r}")
        if isinstance(self.valid, int) and self.valid < 1:
            raise ValueError("valid as a number is the pairs to hold out, at least 1; leave it out for no validation")
        if "moses-tokenize" in self.normalize and (self.text != "plain" or self.subwords == "none"):
            stated = f'text = "{self.text}"' if self.text != "plain" else 'subwords = "none"'
            raise ValueError(f"moses-tokenize is for plain text, but {stated} says that words are parted already")
        if self.has_trees and "lowercase" in self.normalize:
            raise ValueError('normalize: "lowercase" would change the labels of trees')
        if isinstance(self.valid, int) and self.has_trees:
            raise ValueError(f'text = "{self.text}" needs validation corpora, whose trees keep their tags')
        if self.has_trees and self.source_prefixes:
            raise ValueError(
                f'source_prefix: with text = "{self.text}" each word of the source is one of the tree; leave it'
            )
        names = [corpus_name(entry) for entry in self.test]
        if len(set(names)) < len(names):
            raise ValueError(f"two test sets have the same name ({', '.join(names)}); give local ones a name = ...")
        for entry in (*self.test, *(() if isinstance(self.valid, int) else self.valid)):
            if in_mixture(entry):
                raise ValueError(f"{corpus_name(entry)}: weight and source_prefix are for corpora of data.train only")
        for prefix in self.source_prefixes:
            if prefix in ("<pad>", "<unk>", "<s>", "</s>"):
                raise ValueError(f"source_prefix = {prefix!r} is a symbol of every vocabulary; take another tag")
            if "lowercase" in self.normalize and prefix != prefix.lower():
                raise ValueError(f"source_prefix = {prefix!r} has capitals, which normalize = lowercase takes away")
        return self

    @property
    def source_prefixes(self) -> tuple[str, ...]:
        """The different tags of data.train, in the order of the corpora."""
        tags = (entry.source_prefix for entry in self.train if not isinstance(entry, str))
        return tuple(dict.fromkeys(tag for tag in tags if tag))

    @property
    def has_trees(self) -> bool:
        """Whether the target is a tree over the source's words."""
        return self.text in TREES


class CleaningConfig(_Section):
    """What is done about faulty training pairs: limits, and an action for each rule of the data report. error: nothing
    is prepared. drop: the pair is left out. fix: its text is corrected. keep: it is only counted. See data.md."""

    max_tokens: int = Field(default=256, ge=0)
    """Most subword tokens on either side, the end symbol not counted; 0: no limit."""
    max_characters: int = Field(default=5000, ge=0)
    """Most characters on either side, checked before subwords are learned and cut; 0: no limit."""
    max_ratio: float = Field(default=0.0, ge=0)
    """Most tokens of the longer side for each token of the shorter; 0: no limit."""
    line_count: Literal["error", "drop"] = "error"
    """The sides of a corpus have unequally many lines. drop: the surplus at the end of the longer one, which is right
    only where the other was cut short."""
    invalid_utf8: Literal["error", "drop", "fix"] = "error"
    """Bytes that are not UTF-8. fix: they are read as Windows-1252."""
    line_separator: Literal["error", "drop", "fix", "keep"] = "keep"
    """U+2028, U+2029, U+0085, VT, FF or CR inside a line. fix: a blank takes their place."""
    bom: Literal["error", "drop", "fix", "keep"] = "fix"
    """Byte-order marks (U+FEFF). fix: removed; at the beginning of a file they always are."""
    control_character: Literal["error", "drop", "fix", "keep"] = "keep"
    """Other control characters, tabs excepted. fix: removed."""
    one_sided_blank: Literal["error", "drop"] = "drop"
    """One side is blank."""
    both_blank: Literal["error", "drop"] = "drop"
    """Both sides are blank."""
    html_entity: Literal["error", "drop", "fix", "keep"] = "keep"
    """HTML entities such as `&amp;`. fix: the characters they stand for take their place."""
    markup: Literal["error", "drop", "fix", "keep"] = "keep"
    """Tags such as `<b>`. fix: removed, those between words (`<br>`) become a blank."""
    too_long: Literal["error", "drop"] = "drop"
    """A side is over max_tokens or max_characters."""
    length_ratio: Literal["error", "drop", "keep"] = "drop"
    """The sides are further apart than max_ratio. With max_ratio = 0 none is left out, and the report counts those of
    which one side has over 9 times the characters of the other."""
    source_equals_target: Literal["error", "drop", "keep"] = "keep"
    """Both sides are the same text. Unless this key is stated, a corpus of which most pairs are so is refused."""
    duplicate_pair: Literal["error", "drop", "keep"] = "keep"
    """Both sides equal those of a pair before. drop: the first stays."""
    duplicate_source: Literal["error", "drop", "keep"] = "keep"
    """The source equals that of a pair before. drop: the first that is not left out stays."""
    wrong_script: Literal["error", "drop", "keep"] = "keep"
    """Most letters of a side are of another writing system than its language's."""
    swapped_sides: Literal["error", "drop", "fix", "keep"] = "keep"
    """Each side is in the writing system of the other's language. fix: they are exchanged."""
    overlap_valid: Literal["error", "drop", "keep"] = "keep"
    """Both sides equal those of a pair of a validation set."""
    overlap_test: Literal["error", "drop", "keep"] = "keep"
    """Both sides equal those of a pair of a test set."""

    @model_validator(mode="after")
    def _check(self) -> "CleaningConfig":
        if self.length_ratio == "error" and not self.max_ratio:
            raise ValueError('length_ratio = "error" needs a max_ratio above 0')
        return self

    def action(self, rule: str) -> str:
        """What is done about a rule's pairs; a limit of 0 leaves none out."""
        if rule == "length_ratio" and not self.max_ratio:
            return "keep"
        return str(getattr(self, rule))


class ModelConfig(_Section):
    """Sizes and shape of the Transformer: all that the paper's Table 3 varies."""

    encoder_layers: int = Field(default=6, ge=1)
    """Layers of the encoder stack."""
    decoder_layers: int = Field(default=6, ge=1)
    """Layers of the decoder stack."""
    d_model: int = Field(default=512, ge=2)
    """Width of embeddings and of every sub-layer's output."""
    d_ff: int = Field(default=2048, ge=1)
    """Inner width of the feed-forward sub-layers."""
    num_heads: int = Field(default=8, ge=1)
    """Attention heads."""
    d_k: int | None = Field(default=None, ge=1)
    """Width of a head's queries and keys; by default d_model / num_heads."""
    d_v: int | None = Field(default=None, ge=1)
    """Width of a head's values; by default d_model / num_heads."""
    attention_window: int | None = Field(default=None, ge=1)
    """Size r of the neighbourhood that self-attention sees, for long texts: from floor(r / 2) positions before a
    position to floor((r - 1) / 2) after it, in the decoder to itself. By default it sees all positions."""
    norm: Literal["post", "pre"] = "post"
    """post: LayerNorm(x + Sublayer(x)), the paper's. pre: x + Sublayer(LayerNorm(x)), and a norm after each stack."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Position encodings; learned ones are Table 3, row E."""
    max_positions: int = Field(default=1024, ge=1)
    """Positions of a learned table; sinusoidal ones have no end."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """On each sub-layer's output and on embedding + position."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """On attention weights; none in the paper."""
    ffn_dropout: float = Field(default=0.0, ge=0, lt=1)
    """After the ReLU; none in the paper."""
    share_embeddings: Literal["all", "decoder", "none"] = "all"
    """all: source, target and output are one matrix. decoder: target and output are. none: three matrices."""

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        if self.d_model % self.num_heads and (self.d_k is None or self.d_v is None):
            raise ValueError(
                f"d_model = {self.d_model} is not a multiple of num_heads = {self.num_heads}; state d_k and d_v, "
                "or choose another number of heads"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        return self

    @property
    def key_width(self) -> int:
        """d_k, by default d_model / num_heads."""
        return self.d_k if self.d_k is not None else self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """d_v, by default d_model / num_heads."""
        return self.d_v if self.d_v is not None else self.d_model // self.num_heads


EXCLUSIVE_KEYS = (
    ("validate_every_steps", "validate_every_epochs", "validate_every_minutes"),
    ("checkpoint_every_steps", "checkpoint_every_epochs", "checkpoint_every_minutes"),
    ("patience_epochs", "patience_validations"),
)
"""Keys of [training] of which one holds; the one stated last replaces the others."""


class TrainingConfig(_Section):
    """Optimiser, schedule, batches, limits, and what is kept."""

    seed: int = Field(default=1, ge=0, lt=2**63)
    """Decides initial weights, order of the batches and dropout."""
    tokens_per_update: int = Field(default=25000, ge=1)
    """Most target tokens in an update, over all devices and passes; end symbols counted, padding not."""
    lengths_per_update: int = Field(default=1, ge=1)
    """Groups of pairs of similar length in an update. 1: an update's pairs are all of about one length, for the least
    padding. More: as on that many devices which each take a length of their own, so that updates are more alike."""
    tokens_per_pass: int = Field(default=0, ge=0)
    """Most target (or source) tokens, padding counted, that one device takes at once; an update is split into as many
    passes as that needs. 0: as many as fit into the memory of a CUDA device; 4,096 on a CPU and 16,384 elsewhere."""
    optimizer: Literal["adam"] = "adam"
    """The optimiser."""
    adam_betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the first and second moment."""
    adam_epsilon: float = Field(default=1e-9, gt=0)
    """Added to the root of the second moment."""
    gradient_clip_norm: float = Field(default=0.0, ge=0)
    """Gradients longer than that are scaled down to it; 0: never."""
    schedule: Literal["noam", "inverse-sqrt", "cosine", "constant"] = "noam"
    """Learning rate over the updates; each rises linearly over warmup_steps to its peak. noam: the paper's equation 3.
    inverse-sqrt: the same with a peak of your choice. cosine: down to 0 at max_steps. constant: stays at the peak."""
    peak_learning_rate: float = Field(default=0.0, ge=0)
    """Highest learning rate; noam has its own, d_model^-0.5 * warmup_steps^-0.5, and takes none."""
    warmup_steps: int = Field(default=4000, ge=0)
    """Updates until the peak."""
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Share of the target distribution that is uniform over the vocabulary."""
    max_steps: int | None = Field(default=None, ge=1)
    """Updates after which training ends."""
    max_epochs: int | None = Field(default=None, ge=1)
    """Passes over the training pairs after which training ends."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Minutes, over all sessions, after which training ends; validation and saving are counted."""
    patience_epochs: int | None = Field(default=None, ge=1)
    """Ends training when best_metric has not improved for that many epochs."""
    patience_validations: int | None = Field(default=None, ge=1)
    """Ends training when best_metric has not improved for that many validations."""
    best_metric: Literal["nll", "bleu"] = "nll"
    """What patience, keep_best and `average --best` go by."""
    validate_every_steps: int | None = Field(default=None, ge=1)
    """Updates between validations; 1,500 where no validate_every_* is stated."""
    validate_every_epochs: int | None = Field(default=None, ge=1)
    """Epochs between validations."""
    validate_every_minutes: float | None = Field(default=None, gt=0)
    """Minutes of training between validations."""
    validate_bleu: bool = True
    """Whether a validation translates and takes BLEU besides nll."""
    checkpoint_every_steps: int | None = Field(default=None, ge=1)
    """Updates between checkpoints; 1,500 (the paper's ten minutes) where no checkpoint_every_* is stated."""
    checkpoint_every_epochs: int | None = Field(default=None, ge=1)
    """Epochs between checkpoints."""
    checkpoint_every_minutes: float | None = Field(default=None, gt=0)
    """Minutes of training between checkpoints."""
    keep_last: int = Field(default=5, ge=1)
    """Checkpoints kept, counted from the newest; at least average_last."""
    keep_best: int = Field(default=1, ge=0)
    """Checkpoints kept besides, counted from the best by best_metric."""
    report_every_steps: int = Field(default=100, ge=1)
    """Updates between lines of metrics.jsonl; a validation always has one."""
    compile: bool = False
    """Whether forward pass and loss go through torch.compile. Results differ by rounding and in the dropout drawn. It
    takes minutes at the beginning, which the log tells; for GPUs and long runs. On a CPU it needs a C++ compiler."""
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    """Of the matrix products; weights and sums stay float32. auto: bf16 on CUDA devices of capability 8 and up. fp16:
    with a loss scale that follows the gradients, for older GPUs."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW: each update takes learning rate x weight_decay of every matrix and embedding off it; not of biases and
    norms. 0: off."""
    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    """Keeps an exponential moving average of the weights, such as 0.999 of it and 0.001 of the new ones at each update
    (at first less of it); validation and checkpoints use it. 0: off."""
    subword_sampling: float = Field(default=0.0, ge=0, le=1)
    """Draws other subwords for each epoch. bpe: the share of merges left out (BPE-dropout), such as 0.1. unigram: alpha
    of its sampling, such as 0.2; smaller is more varied. 0: off. Validation and translation are not sampled."""
    r_drop: float = Field(default=0.0, ge=0)
    """R-Drop: two passes with different dropout, and that much (alpha, such as 5) of their divergence in the loss, for
    twice the cost. 0: off."""
    freeze: tuple[str, ...] = ()
    """Parts of the model that stay as they are, by the beginnings of their weights' names: "encoder", "decoder.0",
    "embeddings"."""
    init: Path | None = None
    """A model (model folder, run or checkpoint) of the same sizes and tokenizer, whose weights training starts from."""

    @model_validator(mode="before")
    @classmethod
    def _one_of_each_group(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        values = dict(values)
        for group in EXCLUSIVE_KEYS:
            stated = [key for key in group if values.get(key) is not None]
            if len(stated) > 1:
                raise ValueError(f"{' and '.join(stated)} exclude each other; state one")
            if not stated and not group[0].startswith("patience"):
                values[group[0]] = 1500
        if not any(values.get(key) is not None for key in ("max_steps", "max_epochs", "max_minutes")):
            values["max_steps"] = 100_000
        return values

    @model_validator(mode="after")
    def _check(self) -> "TrainingConfig":
        if self.schedule == "noam" and self.peak_learning_rate:
            raise ValueError("schedule noam has its own peak; leave peak_learning_rate out or choose inverse-sqrt")
        if self.schedule == "noam" and not self.warmup_steps:
            raise ValueError("schedule noam needs warmup_steps of at least 1")
        if self.schedule != "noam" and not self.peak_learning_rate:
            raise ValueError(f"schedule {self.schedule} needs a peak_learning_rate")
        if self.best_metric == "bleu" and not self.validate_bleu:
            raise ValueError('best_metric = "bleu" needs validate_bleu = true')
        if self.schedule == "cosine" and self.max_steps is None:
            raise ValueError("schedule cosine needs max_steps, where it reaches 0")
        return self


class DecodingConfig(_Section):
    """How text is translated, in validation and by `translate`."""

    beam: int = Field(default=4, ge=1, le=10_000)
    """Hypotheses kept at each step; 1 is greedy."""
    length_penalty: Literal["wu", "length", "none"] = "wu"
    """What a hypothesis' log-probability is divided by, n counting the end symbol. wu: ((5 + n) / 6)^alpha, the
    paper's. length: n^alpha, as fairseq, CTranslate2 and Hugging Face use it. none: 1."""
    alpha: float = Field(default=0.6, ge=0, le=20)
    """Exponent of the length penalty."""
    max_length_offset: int = Field(default=50, ge=0, le=1_000_000)
    """A translation has at most max_length_ratio times the tokens of its source, and that many more."""
    max_length_ratio: float = Field(default=1.0, ge=0, le=1000)
    """See max_length_offset; the paper's is 1."""
    max_length: int | None = Field(default=None, ge=1)
    """Most tokens of any translation, whatever its source."""
    min_length: int = Field(default=0, ge=0)
    """Tokens before which no translation ends."""
    no_repeat_ngram: int = Field(default=0, ge=0)
    """No translation says that many tokens in a row twice; 0: it may."""
    coverage_penalty: float = Field(default=0.0, ge=0, le=1000)
    """Beta of Wu et al. 2016, equation 14: costs translations that look at parts of the source too little. 0: off."""
    whole_trees: bool = False
    """Of trees: the search says only what is a tree over the words of the source. The paper's says anything."""
    average_last: int = Field(default=5, ge=1)
    """Checkpoints that `average` and `run` average."""


class Recipe(_Section):
    """Everything that decides the result of a run."""

    name: str
    data: DataConfig
    cleaning: CleaningConfig = CleaningConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()

    @model_validator(mode="after")
    def _check(self) -> "Recipe":
        if self.model.share_embeddings == "all" and not self.data.share_vocab:
            raise ValueError('[model] share_embeddings = "all" needs [data] share_vocab = true; choose decoder or none')
        if self.training.keep_last < self.decoding.average_last:
            raise ValueError(
                f"[training] keep_last = {self.training.keep_last} is less than [decoding] average_last = "
                f"{self.decoding.average_last}; they would be gone before they are averaged"
            )
        longest = self.model.max_positions - 1
        if self.model.positions == "learned" and not 0 < self.cleaning.max_tokens <= longest:
            raise ValueError(
                f"[model] max_positions = {self.model.max_positions} holds {longest} tokens and the end symbol; set "
                f"[cleaning] max_tokens to at most {longest}"
            )
        if self.training.subword_sampling and self.data.subwords not in ("bpe", "unigram"):
            raise ValueError(
                f'[training] subword_sampling is for [data] subwords = "bpe" or "unigram", not "{self.data.subwords}"'
            )
        if self.data.has_trees and self.training.validate_bleu:
            raise ValueError("[training] validate_bleu: BLEU is not taken of trees; set it to false")
        if self.decoding.whole_trees and not self.data.has_trees:
            raise ValueError('[decoding] whole_trees is for [data] text = "trees" or "tagged-trees"')
        if not self.data.valid and (self.training.patience_epochs or self.training.patience_validations):
            raise ValueError("[training] patience needs [data] valid")
        return self


SECTIONS: dict[str, type[_Section]] = {
    "data": DataConfig,
    "cleaning": CleaningConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "decoding": DecodingConfig,
}


def corpus_name(entry: str | NamedCorpus | LocalPair) -> str:
    """The short name of a corpus: what follows the last slash, or a local pair's name or source file without ending."""
    if isinstance(entry, LocalPair):
        return entry.name or without_suffix(entry.source.name).rsplit(":", 1)[-1].rsplit(".", 1)[0]
    name = entry if isinstance(entry, str) else entry.corpus
    return name.removeprefix("sacrebleu:").rsplit("/", 1)[-1]


def in_mixture(entry: str | NamedCorpus | LocalPair) -> str:
    """The weight and tag of a corpus in words, "" where it has none of its own."""
    if isinstance(entry, str):
        return ""
    in_short = f"{entry.weight:g}"
    stated = in_short if float(in_short) == entry.weight else repr(entry.weight)
    weight = f", weight {stated}" if entry.weight != 1 else ""
    return weight + (f", tag {entry.source_prefix}" if entry.source_prefix else "")


@dataclass(frozen=True)
class _Layer:
    """One source of settings: a recipe file or the --set options."""

    name: str
    text: str
    values: dict[str, dict[str, Any]]

    def place(self, section: str, key: str | None = None) -> str:
        """`file, line N` of a section or a key in it, for messages."""
        current = ""
        for number, line in enumerate(self.text.split("\n"), start=1):
            if header := re.match(r"\s*\[\s*(\w+)\s*\]", line):
                current = header[1]
                if current == section and key is None:
                    return f"{self.name}, line {number}"
            elif key is not None and current == section and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return f"{self.name}, line {number}"
        return self.name


_SET = "--set"
"""What the layer of the options is called."""


def recipes_folder() -> Path:
    """Where the built-in recipes lie: in the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent / "recipes"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "recipes"


def builtin_recipes() -> dict[str, Path]:
    """The built-in recipes by name."""
    return {path.stem: path for path in sorted(recipes_folder().glob("*.toml"))}


def find_recipe(name_or_file: str, *, folder: Path | None = None) -> Path:
    """The file of a recipe given as a TOML file (relative to ``folder``) or as a built-in name.

    Raises:
        RecipeError: there is none.
    """
    path = (folder or Path()) / Path(name_or_file).expanduser()
    if path.is_file():
        return path
    builtin = builtin_recipes()
    if name_or_file in builtin:
        return builtin[name_or_file]
    if path.is_dir():
        stored = path / "recipe.toml"
        told = f"the recipe of this run is {stored}" if stored.is_file() else "and no run (no recipe.toml in it)"
        raise RecipeError(f"{path}: a folder, not a recipe; {told}")
    if name_or_file.endswith(".toml"):
        raise RecipeError(f"{path}: no such recipe file")
    raise RecipeError(f"no recipe {name_or_file!r}{_nearest(name_or_file, list(builtin))}; `nmtkit recipes` lists them")


def load_recipe(name_or_file: str, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a recipe with its bases and ``section.key=value`` overrides.

    Raises:
        RecipeError: it cannot be read, or something in it is wrong; the message names file, line and key.
    """
    path = find_recipe(name_or_file)
    layers = _read_layers(path, seen=())
    if overrides:
        layers.append(_parse_overrides(overrides))
    return build_recipe(path.stem, layers)


def build_recipe(name: str, layers: list[_Layer]) -> Recipe:
    """Merges layers, the last one winning, and checks the result."""
    for layer in layers:
        _check_keys(layer)
    if not any("data" in layer.values for layer in layers):
        file = next((layer.name for layer in reversed(layers) if layer.name != _SET), _SET)
        raise RecipeError(f"{file}: no [data] section; state the languages and the train corpora there")
    try:
        return _merged(name, layers)
    except ValidationError as error:
        raise RecipeError(_explain(error, layers)) from None


def _merged(name: str, layers: Sequence[_Layer]) -> Recipe:
    """Raises ValidationError where the layers together are wrong."""
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        _merge(merged, layer.values)
    return Recipe.model_validate({"name": name, **merged})


def stored_recipe(path: Path, name: str) -> Recipe:
    """Reads the resolved recipe of a run (RUN/recipe.toml)."""
    return build_recipe(name, _read_layers(path, seen=()))


def changed_recipe(recipe: Recipe, changes: dict[str, dict[str, Any]], *, place: str) -> Recipe:
    """A recipe with other values, checked as if they stood in a file.

    Args:
        changes: values by section and key.
        place: where they stand, for messages.

    Raises:
        RecipeError: something in the result is wrong.
    """
    stated = _Layer(place, "", tomllib.loads(to_toml(recipe)))
    return build_recipe(recipe.name, [stated, _Layer(place, "", changes)])


def to_toml(recipe: Recipe) -> str:
    """The resolved recipe as TOML."""
    values = recipe.model_dump(mode="json", exclude_none=True, exclude={"name"})
    if "source_equals_target" not in recipe.cleaning.model_fields_set:  # written, it would be stated
        del values["cleaning"]["source_equals_target"]
    return tomli_w.dumps(values)


def _read_layers(path: Path, seen: tuple[Path, ...]) -> list[_Layer]:
    if path.resolve() in seen:
        raise RecipeError(f"{path}: its base leads back to itself")
    with open_plain(path) as file:
        try:
            text = file.read().decode("utf-8")
        except UnicodeDecodeError:
            raise RecipeError(f"{path}: not UTF-8 text") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from None
    base = values.pop("base", None)
    if base is not None and not isinstance(base, str):
        raise RecipeError(f"{path}: base is the name of a recipe or a file, in quotes")
    for section, content in values.items():
        if not isinstance(content, dict):
            raise RecipeError(
                f"{path}: {section} stands outside the sections {', '.join(f'[{name}]' for name in SECTIONS)}"
            )
    _anchor_paths(values, path.resolve().parent)
    layer = _Layer(str(path), text, values)
    if base is None:
        return [layer]
    try:
        base_path = find_recipe(base, folder=path.parent)
    except RecipeError as error:
        raise RecipeError(f"{path}: its base: {error}") from None
    return [*_read_layers(base_path, (*seen, path.resolve())), layer]


def _parse_overrides(overrides: Sequence[str]) -> _Layer:
    values: dict[str, dict[str, Any]] = {}
    for override in overrides:
        match = re.fullmatch(r"(\w+)\.(\w+)=(.*)", override, flags=re.DOTALL)
        if match is None:
            raise RecipeError(f"--set {override}: write it as section.key=value, such as --set training.seed=2")
        section, key, text = match.groups()
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        group = values.setdefault(section, {})
        for rival in _rivals(key):
            group.pop(rival, None)
        group[key] = value
    _anchor_paths(values, Path.cwd())
    return _Layer(_SET, "", values)


def _anchor_paths(values: dict[str, Any], folder: Path) -> None:
    """Makes the paths of local corpora and models absolute; those in a recipe are relative to its file."""
    for section, key in (("data", "tokenizer"), ("data", "treebank"), ("training", "init")):
        if isinstance(values.get(section, {}).get(key), str):
            values[section][key] = str(folder / Path(values[section][key]).expanduser())
    data = values.get("data", {})
    if isinstance(data.get("silver_trees"), list):
        data["silver_trees"] = [str(folder / Path(str(place)).expanduser()) for place in data["silver_trees"]]
    for key in ("train", "valid", "test"):
        entries = data.get(key)
        for entry in entries if isinstance(entries, list) else []:
            for side in ("source", "target"):
                if isinstance(entry, dict) and isinstance(entry.get(side), str):
                    entry[side] = str(folder / Path(entry[side]).expanduser())


def _check_keys(layer: _Layer) -> None:
    for section, content in layer.values.items():
        if section not in SECTIONS:
            raise RecipeError(f"{layer.place(section)}: unknown section [{section}]{_nearest(section, list(SECTIONS))}")
        for key in content:
            if key in SECTIONS[section].model_fields:
                continue
            homes = [name for name, model in SECTIONS.items() if key in model.model_fields]
            if homes:
                hint = f"; it belongs into [{homes[0]}]"
            else:
                hint = _nearest(key, list(SECTIONS[section].model_fields))
            raise RecipeError(f"{layer.place(section, key)}: unknown key {section}.{key}{hint}")


def _rivals(key: str) -> list[str]:
    return [rival for group in EXCLUSIVE_KEYS if key in group for rival in group if rival != key]


def _merge(merged: dict[str, dict[str, Any]], values: dict[str, dict[str, Any]]) -> None:
    if "train" in values.get("data", {}):
        for key in ("valid", "test"):
            merged.get("data", {}).pop(key, None)
    for section, content in values.items():
        target = merged.setdefault(section, {})
        for key in content:
            for rival in _rivals(key):
                if rival not in content:
                    target.pop(rival, None)
        target.update(content)


def _nearest(word: str, candidates: list[str]) -> str:
    matches = difflib.get_close_matches(word, candidates, n=1, cutoff=0.5)
    return f"; did you mean {matches[0]}?" if matches else ""


def _explain(error: ValidationError, layers: list[_Layer]) -> str:
    """The first thing wrong, as one line with its place."""
    errors = error.errors(include_url=False)
    # An entry that may be a name or a pair of files is wrong in both ways; what is a table was meant as a pair.
    tables = {"LocalPair", "NamedCorpus"}
    meant = [e for e in errors if tables & {*e["loc"]} and e["type"] != "model_type"]
    first = next((e for e in meant if e["type"] == "extra_forbidden"), meant[0] if meant else errors[0])
    section, key = ([str(part) for part in first["loc"]] + ["", ""])[:2]
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "tuple_type":
        message = "must be a list, in [ ]"
    if first["type"] == "string_pattern_mismatch":
        message = _IN_WORDS[first["ctx"]["pattern"]]
    if not key:
        where = f"[{section}] " if section else ""
        return f"{_to_blame(first, layers)}: {where}{message}"
    if first["type"] == "missing" and len(first["loc"]) == 2:
        return f"{_to_blame(first, layers)}: {section}.{key} is missing; a recipe must state it"
    if tables & {*first["loc"]}:
        name = str(first["loc"][-1])
        if first["type"] == "extra_forbidden":
            message = f"unknown key{_nearest(name, [*LocalPair.model_fields, *NamedCorpus.model_fields])}"
        message = f"{name}: {message}"
    for layer in reversed(layers):
        if key in layer.values.get(section, {}):
            return f"{layer.place(section, key)}: {section}.{key} = {layer.values[section][key]!r}: {message}"
    return f"{layers[-1].name}: {section}.{key}: {message}"


def _to_blame(first: ErrorDetails, layers: Sequence[_Layer]) -> str:
    """The name of the layer with which something became wrong that no single value is."""
    for number in range(1, len(layers)):
        try:
            _merged("", layers[:number])
        except ValidationError as error:
            if (first["loc"], first["msg"]) in [(one["loc"], one["msg"]) for one in error.errors()]:
                return layers[number - 1].name
    return layers[-1].name


def differences(old: BaseModel, new: BaseModel) -> list[str]:
    """The keys whose values differ between two sections of the same kind, as ``key = new (was old)``; local corpora
    count as the same when their names are, models wherever they lie."""
    before, after = _comparable(old), _comparable(new)
    return [f"{key} = {after[key]!r} (was {before[key]!r})" for key in before if before[key] != after[key]]


def _comparable(section: BaseModel) -> dict[str, Any]:
    """A section's values; local corpora by name only, as they may lie anywhere (their text has a fingerprint), and so
    may models."""
    values = section.model_dump(mode="json")
    for key in ("tokenizer", "init"):
        if values.get(key) is not None:
            values[key] = "a model"
    if isinstance(section, DataConfig):
        values.pop("treebank")
        values["silver_trees"] = [place.name for place in section.silver_trees]
        for key in ("train", "valid", "test"):
            entries = getattr(section, key)
            if not isinstance(entries, int):
                values[key] = [_comparable_corpus(entry) for entry in entries]
    return values


def _comparable_corpus(entry: str | NamedCorpus | LocalPair) -> str:
    if isinstance(entry, str):
        return entry
    return (entry.corpus if isinstance(entry, NamedCorpus) else corpus_name(entry)) + in_mixture(entry)


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """All settings of a recipe by `section.key`, as they are compared: local corpora by name, models by path."""
    settings = {}
    for name in SECTIONS:
        section = getattr(recipe, name)
        stated = section.model_dump(mode="json", include={"tokenizer", "init"})
        for key, value in {**_comparable(section), **stated}.items():
            settings[f"{name}.{key}"] = value
    return settings


def changes_that_matter(old: TrainingConfig, new: TrainingConfig) -> list[str]:
    """The changed keys of [training] that could change what a run has done so far: it cannot go on with them."""
    harmless = ["keep_", "patience_", "validate_every_", "checkpoint_every_", "report_every_"]
    if new.schedule != "cosine":
        harmless.append("max_")
    return [change for change in differences(old, new) if not change.startswith(tuple(harmless))]
