"""The section [training] with the defaults of the paper's base model, and the whole recipe."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, model_validator

from nmtkit.config.cleaning_schema import CleaningConfig
from nmtkit.config.data_schema import LANGUAGE_MODEL, TRAJECTORIES, DataConfig, defaults_of_task
from nmtkit.config.decoding_schema import DecodingConfig
from nmtkit.config.label_kinds import LABEL_KINDS
from nmtkit.config.model_schema import ModelConfig
from nmtkit.config.section import MANY, Section, default_of

ENDING_SCHEDULES = ("cosine", "linear")
"""Learning rate schedules that depend on max_steps."""

EXCLUSIVE_KEYS = (
    ("validate_every_steps", "validate_every_epochs", "validate_every_minutes"),
    ("checkpoint_every_steps", "checkpoint_every_epochs", "checkpoint_every_minutes"),
    ("patience_epochs", "patience_validations"),
)
"""Groups of keys of [training] that exclude each other; the one stated last replaces the others."""


class TrainingConfig(Section):
    """Optimiser, schedule, batches, limits, validation and checkpoints."""

    seed: int = Field(default=1, ge=0, lt=2**63)
    """Random seed for initial weights, order of batches and dropout."""
    # About 25,000 target tokens: section 5.1 of the paper.
    tokens_per_update: int = Field(default=25000, ge=1, le=MANY)
    """Maximum number of target tokens, or of labels or actions, per update, over all devices, without padding."""
    sequences_per_update: int = Field(default=0, ge=0, le=MANY)
    """Number of pairs (or sequences) per update, in place of tokens_per_update; a multiple of lengths_per_update. 0:
    off."""
    lengths_per_update: int = Field(default=1, ge=1, le=1_000_000)
    """Number of groups of similar length per update. 1: all pairs of an update have about the same length, which
    minimises padding. More: updates differ less from each other."""
    tokens_per_pass: int = Field(default=0, ge=0, le=MANY)
    """Size of a micro-batch on one device: maximum number of tokens of the longer side, with padding; with a decoder
    alone, of both sides. 0: as many as fit into a CUDA device; 4,096 on a CPU, 16,384 on other devices."""
    optimizer: Literal["adam"] = "adam"
    """Optimiser."""
    # beta_1, beta_2 and epsilon: section 5.3 of the paper.
    adam_betas: tuple[float, float] = (0.9, 0.98)
    """Decay rates of the first and second moment."""
    adam_epsilon: float = Field(default=1e-9, ge=1e-30, le=1)
    """Constant added to the square root of the second moment."""
    gradient_clip_norm: float = Field(default=0.0, ge=0, le=MANY)
    """Maximum norm of the gradient. 0: no clipping."""
    schedule: Literal["noam", "inverse-sqrt", "cosine", "linear", "constant"] = "noam"
    """Learning rate schedule. All rise linearly to a peak over warmup_steps. noam: equation 3 of the paper.
    inverse-sqrt: the same with a peak of your choice. cosine, linear: fall to final_learning_rate at max_steps.
    constant: stays at the peak."""
    final_learning_rate: float = Field(default=0.0, ge=0, le=1_000)
    """For cosine and linear: learning rate at max_steps."""
    peak_learning_rate: float = Field(default=0.0, ge=0, le=1_000)
    """Highest learning rate. noam refuses it, as its peak is d_model^-0.5 * warmup_steps^-0.5; the others need it."""
    # Section 5.3 of the paper.
    warmup_steps: int = Field(default=4000, ge=0, le=MANY)
    """Number of updates until the peak is reached."""
    source_loss: float = Field(default=1.0, ge=0, le=1)
    """Decoder alone: weight of the loss of the source tokens (labels: of the language-model loss); 1 in Liu et al.
    2018. The reported nll (negative log-likelihood) is always that of the target."""
    # epsilon_ls: section 5.4 of the paper.
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    """Share of the target distribution that is spread evenly over the vocabulary."""
    # The 100,000 steps of the base model: section 5.2 of the paper.
    max_steps: int | None = Field(default=None, ge=1, le=MANY)
    """Stop after this number of updates; 100,000 if no max_* is given."""
    max_epochs: int | None = Field(default=None, ge=1, le=MANY)
    """Stop after this number of epochs."""
    max_minutes: float | None = Field(default=None, gt=0, le=MANY)
    """Stop after this number of minutes of training, validation and saving, including those before a resume."""
    patience_epochs: int | None = Field(default=None, ge=1, le=MANY)
    """Stop when best_metric has not improved for this number of whole epochs."""
    patience_validations: int | None = Field(default=None, ge=1, le=MANY)
    """Stop when best_metric has not improved for this number of validations."""
    best_metric: Literal["nll", "bleu"] = "nll"
    """Metric on the validation set that patience, keep_best and `average --best` compare."""
    validate_every_steps: int | None = Field(default=None, ge=1, le=MANY)
    """Validate every N updates; 1,250 if no validate_every_* is given."""
    validate_every_epochs: int | None = Field(default=None, ge=1, le=MANY)
    """Validate every N epochs."""
    validate_every_minutes: float | None = Field(default=None, gt=0, le=MANY)
    """Validate every N minutes of training."""
    validate_bleu: bool = True
    """Compute BLEU at each validation, not only nll. Must be false for language models, trees, labels and decisions."""
    checkpoint_every_steps: int | None = Field(default=None, ge=1, le=MANY)
    """Write a checkpoint every N updates; 1,250 if no checkpoint_every_* is given."""
    checkpoint_every_epochs: int | None = Field(default=None, ge=1, le=MANY)
    """Write a checkpoint every N epochs."""
    checkpoint_every_minutes: float | None = Field(default=None, gt=0, le=MANY)
    """Write a checkpoint every N minutes of training."""
    keep_last: int = Field(default=5, ge=1, le=1_000_000)
    """Number of latest checkpoints to keep; at least average_last."""
    keep_best: int = Field(default=1, ge=0, le=1_000_000)
    """Number of checkpoints with the best best_metric to keep in addition."""
    report_every_steps: int = Field(default=100, ge=1, le=MANY)
    """Write a line of metrics.jsonl every N updates, and at each validation."""
    compile: bool = False
    """Use torch.compile, for GPUs and long runs. Compiling takes minutes and, on a CPU, needs a C++ compiler and may
    train more slowly; compare target_tokens_per_second. Results differ by rounding and in dropout."""
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    """Precision of matrix multiplications; parameters and accumulators stay float32. auto: bf16 on CUDA devices of
    capability 8 or higher and on CPUs where a short trial shows it at least 1.2 times as fast (trajectories: never),
    else float32; chosen once per run or sweep. fp16: with an adaptive loss scale, for older GPUs."""
    weight_decay: float = Field(default=0.0, ge=0, le=1_000)
    """As in AdamW: each update subtracts learning rate x weight_decay x weight in matrices and embeddings, but not in
    biases and norms. 0: off."""
    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    """Decay of a moving average of the weights, such as 0.999 (lower in the first updates), which validation and
    checkpoints use. 0: off."""
    subword_sampling: float = Field(default=0.0, ge=0, le=1)
    """Sample new subwords in each epoch. bpe: share of merges that are left out, such as 0.1. unigram: exponent alpha,
    such as 0.2. 0: off. See data.md."""
    r_drop: float = Field(default=0.0, ge=0, le=1_000_000)
    """R-Drop: run each batch twice with different dropout and add the divergence to the loss, with this weight (alpha,
    such as 5). 0: off."""
    freeze: tuple[str, ...] = ()
    """Parts that are not trained, as beginnings of parameter names: "encoder", "decoder.0", "embeddings"."""
    init: Path | None = None
    """Model (run, model folder or checkpoint) from whose weights training starts; see fine-tuning.md."""
    init_layers: int | None = Field(default=None, ge=0, le=1_000)
    """With init: copy only embeddings, positions and the first N layers of encoder and decoder each."""
    init_vocab: Literal["same", "mapped"] = "same"
    """With init: mapped allows another vocabulary. Entries of both vocabularies keep their embeddings; a new piece
    begins at the mean of the old pieces into which its text is split; see fine-tuning.md."""

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
                values[group[0]] = 1250
        if not any(values.get(key) is not None for key in ("max_steps", "max_epochs", "max_minutes")):
            values["max_steps"] = 100_000
        return values

    @model_validator(mode="after")
    def _check(self) -> "TrainingConfig":
        if self.schedule == "noam" and self.peak_learning_rate:
            raise ValueError(
                "schedule noam has its own peak; leave peak_learning_rate out (over a base that states it: 0), or "
                "choose inverse-sqrt"
            )
        if self.schedule == "noam" and not self.warmup_steps:
            raise ValueError("schedule noam needs warmup_steps of at least 1")
        if self.schedule != "noam" and not self.peak_learning_rate:
            raise ValueError(f"schedule {self.schedule} needs a peak_learning_rate")
        highest = self.peak_learning_rate if self.schedule in ENDING_SCHEDULES else 0
        if self.final_learning_rate > highest:
            raise ValueError("final_learning_rate needs schedule = cosine or linear, and is at most peak_learning_rate")
        if not all(0 <= beta < 1 for beta in self.adam_betas):
            raise ValueError(f"adam_betas = {list(self.adam_betas)}: each must be at least 0 and less than 1")
        if self.sequences_per_update % self.lengths_per_update:
            raise ValueError(
                f"sequences_per_update = {self.sequences_per_update} is not a multiple of lengths_per_update = "
                f"{self.lengths_per_update}; change one of them"
            )
        if self.init_layers is not None and self.init is None:
            raise ValueError("init_layers needs init, the model whose layers are copied")
        if self.init_vocab != "same" and self.init is None:
            raise ValueError("init_vocab needs init, the model whose embeddings are copied")
        if self.best_metric == "bleu" and not self.validate_bleu:
            raise ValueError('best_metric = "bleu" needs validate_bleu = true')
        if self.schedule in ENDING_SCHEDULES and self.max_steps is None:
            raise ValueError(f"schedule {self.schedule} needs max_steps, the update at which it ends")
        return self


class Recipe(Section):
    """All settings that decide the result of a run."""

    name: str
    data: DataConfig
    cleaning: CleaningConfig = CleaningConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()

    KINDS_OF_ATTENTION: ClassVar = {
        "local_block": "local", "local_previous_block": "local", "compression": "compressed",
        "attention_window": "window",
    }  # fmt: skip
    """Keys of [model] that have an effect on layers of one kind of self-attention only."""

    @model_validator(mode="before")
    @classmethod
    def _of_task(cls, values: Any) -> Any:
        """Set what follows from the task: the head of the model, and defaults of [cleaning]."""
        if not isinstance(values, dict) or not isinstance(values.get("data"), dict):
            return values
        cleaning, task = values.get("cleaning") or {}, values["data"].get("task")
        # A list, as what stands there may be of a type that cannot be hashed, such as a list or a table.
        if task in [*LABEL_KINDS] and isinstance(model := values.get("model") or {}, dict):
            head = "number" if values["data"].get("label_type") == "number" else LABEL_KINDS[task].head
            values = {**values, "model": {"head": head, **model}}
        if task == TRAJECTORIES and isinstance(model := values.get("model") or {}, dict):
            head = f"{values['data'].get('actions', 'discrete')}-action"
            is_vector = values["data"].get("states") == "vector"
            values = {**values, "model": {"head": head, "vector_states": is_vector, **model}}
        if not isinstance(cleaning, dict):
            return values
        return {**values, "cleaning": {**defaults_of_task(task)["cleaning"], **cleaning}}

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> "Recipe":
        if fault := self.decoding.impossible_lengths:
            raise ValueError(f"[decoding] {fault}")
        if self.data.task_name == LANGUAGE_MODEL:
            if not self.model.is_joined:
                raise ValueError('[data] task = "language-model" needs [model] architecture = "decoder"')
            if self.training.validate_bleu:
                raise ValueError(
                    "[training] validate_bleu: BLEU cannot be computed for a text without a source; set it to false"
                )
            if self.training.subword_sampling:
                raise ValueError("[training] subword_sampling cannot be used for a language model")
        if self.data.task_name in (LANGUAGE_MODEL, *LABEL_KINDS):
            rules: tuple[str, ...] = CleaningConfig.OF_TRANSLATIONS
            rules += CleaningConfig.OF_PAIRS if self.data.task_name == LANGUAGE_MODEL else ()
            if stated := [key for key in rules if getattr(self.cleaning, key) != default_of(CleaningConfig, key)]:
                raise ValueError(
                    f'[cleaning] {" and ".join(stated)}: no effect with [data] task = "{self.data.task_name}"; '
                    "leave out, or if from the base, set to the default"
                )
        if self.model.head != self.data.head:
            raise ValueError(f'[model] head = "{self.model.head}" contradicts [data] task; leave head out')
        if self.model.vector_states != (self.data.states == "vector"):
            raise ValueError("[model] vector_states contradicts [data] states; leave vector_states out")
        if self.model.has_actions and self.cleaning != CleaningConfig():
            raise ValueError("[cleaning] is for text, not for episodes; leave it out")
        if not self.model.has_actions and (self.model.return_values or not self.model.returns):
            raise ValueError('[model] returns and return_values are for [data] task = "trajectories"; leave them out')
        if self.data.has_labels or self.model.has_actions:
            self._check_labels()
        elif self.model.is_joined and not self.data.share_vocab:
            raise ValueError('[model] architecture = "decoder" needs [data] share_vocab = true')
        if self.model.share_embeddings == "all" and not self.data.share_vocab and self.data.head == "none":
            raise ValueError('[model] share_embeddings = "all" needs [data] share_vocab = true; choose decoder or none')
        if not (info.context or {}).get("is_stored"):  # runs that were trained with such keys stay usable
            self._check_effects()
        if self.model.source_attention == "full" and self.training.source_loss:
            raise ValueError(
                '[model] source_attention = "full" needs [training] source_loss = 0: a token of the source that is '
                "seen cannot be predicted"
            )
        has_source = self.data.task_name != LANGUAGE_MODEL
        if has_source and self.decoding.coverage_penalty and not self.model.sees_source:
            raise ValueError(
                "[decoding] coverage_penalty needs a decoder layer with full or compressed self_attention, which sees "
                "the whole source; set it to 0"
            )
        if self.model.target_positions == "restarted" and (self.model.head != "none" or not has_source):
            raise ValueError(
                f'[model] target_positions = "restarted" is for texts with a source, not for [data] task = '
                f'"{self.data.task_name}"; state "continued"'
            )
        if self.model.is_joined and self.training.r_drop and self.training.source_loss and has_source:
            raise ValueError("[training] r_drop needs source_loss = 0")
        if self.training.keep_last < self.decoding.average_last:
            raise ValueError(
                f"[training] keep_last = {self.training.keep_last} is less than [decoding] average_last = "
                f"{self.decoding.average_last}; checkpoints would be deleted before they are averaged"
            )
        source_tokens, most = self.data.max_source_tokens, self.cleaning.max_tokens
        if source_tokens is not None and 0 < most < source_tokens:
            raise ValueError(
                f"[data] max_source_tokens = {source_tokens} is more than [cleaning] max_tokens = {most}, which would "
                "leave out all longer sources; raise max_tokens, or set it to 0"
            )
        if self.model.positions == "learned" and not self.model.has_actions:
            self._check_max_positions()  # those of actions are steps of an episode, which `prepare` counts
        if self.training.subword_sampling and self.data.subwords not in ("bpe", "unigram"):
            raise ValueError(
                f'[training] subword_sampling is for [data] subwords = "bpe" or "unigram", not "{self.data.subwords}"'
            )
        if self.data.has_trees and self.training.validate_bleu:
            raise ValueError("[training] validate_bleu: BLEU cannot be computed for trees; set it to false")
        if self.decoding.whole_trees and not self.data.has_trees:
            raise ValueError('[decoding] whole_trees needs [data] text = "trees" or "tagged-trees"')
        if self.decoding.whole_trees and self.data.subwords == "characters":
            raise ValueError(
                "[decoding] whole_trees needs subwords that hold a bracket and its label, such as [data] subwords = "
                '"bpe", not "characters"'
            )
        if self.data.context and self.data.context_sides == "both" and (keys := self.decoding.not_for_both_sides):
            raise ValueError(f'[decoding] {" and ".join(keys)} cannot be used with [data] context_sides = "both"')
        if not self.data.valid and (self.training.patience_epochs or self.training.patience_validations):
            raise ValueError("[training] patience_epochs and patience_validations need [data] valid")
        return self

    def _check_max_positions(self) -> None:
        most = self.model.max_positions
        # One position is for the end symbol.
        longest = most - 1
        if self.data.task_name == LANGUAGE_MODEL or self.data.has_labels:
            if self.data.sequence_length > most:
                raise ValueError(
                    f"[model] max_positions = {most} is less than [data] sequence_length = {self.data.sequence_length}"
                )
            if most < 2:
                raise ValueError(f"[model] max_positions = {most}: generating a token takes 2 positions")
        elif self.model.is_joined:
            if not 0 < 2 * self.cleaning.max_tokens <= longest:
                raise ValueError(
                    f"[model] max_positions = {most} holds source and target of {longest // 2} tokens each; "
                    + self._advice_on_lengths(longest // 2)
                )
        elif not 0 < self.cleaning.max_tokens <= longest:
            raise ValueError(
                f"[model] max_positions = {most} holds {longest} tokens and the end symbol; "
                + self._advice_on_lengths(longest)
            )

    def _check_effects(self) -> None:
        """Raise ValueError for a key of attention, of the loss of sources or of cleaning that has no effect."""
        kinds = {*self.model.self_attention} or {self.model.attention_kind(0)}
        if not self.model.is_joined:
            kinds.add("window")  # of the decoder
        for key, kind in self.KINDS_OF_ATTENTION.items():
            default = default_of(ModelConfig, key)
            if getattr(self.model, key) != default and kind not in kinds:
                unset = '""' if default is None else str(default).lower()
                raise ValueError(
                    f'[model] {key} needs a layer with self_attention = "{kind}"; leave it out, or set it to {unset}'
                )
        if not self.model.is_joined and self.training.source_loss != default_of(TrainingConfig, "source_loss"):
            raise ValueError(
                '[training] source_loss needs [model] architecture = "decoder"; leave it out, or set it to 1'
            )
        fixes = [key for key, action in self.cleaning if action == "fix" and key not in ("invalid_utf8", "bom")]
        if self.data.has_trees and fixes:
            raise ValueError(
                f'[cleaning] {fixes[0]} = "fix" would change the words of trees; set it to "drop" or "keep"'
            )

    def _advice_on_lengths(self, longest: int) -> str:
        """Return how source and target of up to ``longest`` tokens each fit into max_positions."""
        source_tokens = self.data.max_source_tokens or 0
        if source_tokens <= longest:
            return f"set [cleaning] max_tokens to at most {longest}"
        needed = (2 if self.model.is_joined else 1) * source_tokens + 1
        return (
            f"set [cleaning] max_tokens and [data] max_source_tokens, now {source_tokens}, to at most {longest}, or "
            f"max_tokens to {source_tokens} and max_positions to at least {needed}"
        )

    def _check_labels(self) -> None:
        """Raise ValueError for settings that contradict a task whose output is a label or an action."""
        task = f'[data] task = "{self.data.task_name}"'
        if not self.model.is_joined or self.model.source_attention != "causal":
            raise ValueError(f'{task} needs [model] architecture = "decoder" and source_attention = "causal"')
        if self.model.has_actions and self.model.positions != "learned":
            raise ValueError(f'{task} needs [model] positions = "learned": positions are steps of an episode')
        refused = [key for key in ("validate_bleu", "subword_sampling", "r_drop") if getattr(self.training, key)]
        if refused:
            raise ValueError(f"[training] {' and '.join(refused)}: not for {task}; set to false or 0")
        if self.model.has_actions and self.training.source_loss != default_of(TrainingConfig, "source_loss"):
            raise ValueError(f"[training] source_loss: not for {task}, which has no source tokens; leave it out")


SECTIONS: dict[str, type[Section]] = {
    "data": DataConfig,
    "cleaning": CleaningConfig,
    "model": ModelConfig,
    "training": TrainingConfig,
    "decoding": DecodingConfig,
}
