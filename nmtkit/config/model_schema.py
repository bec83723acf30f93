"""The section [model], with the defaults of the paper's base model."""

from typing import Literal

from pydantic import Field, model_validator

from nmtkit.config.section import Section


class ModelConfig(Section):
    """Size and structure of the Transformer, with what Table 3 of "Attention Is All You Need" (the paper) varies."""

    architecture: Literal["encoder-decoder", "decoder"] = "encoder-decoder"
    """encoder-decoder: the paper's Transformer. decoder: a decoder alone, which reads source and target as one sequence
    (T-D of Liu et al. 2018). It ignores encoder_layers, and needs share_vocab unless it predicts labels or actions."""
    source_attention: Literal["causal", "full"] = "causal"
    """Decoder alone: a position of the source sees itself and earlier ones, as in Liu et al. (causal), or the whole
    source (full). full needs [training] source_loss = 0."""
    target_positions: Literal["continued", "restarted"] = "continued"
    """Decoder alone: positions of the target follow those of the source, as in Liu et al. (continued), or begin at 0
    again (restarted); then two learned vectors, added to the embeddings, tell source from target (both as in the
    translation language model of Lample and Conneau 2019)."""
    # The sizes of the base model: sections 3.1 to 3.3 of the paper.
    encoder_layers: int = Field(default=6, ge=1, le=1_000)
    """Number of encoder layers."""
    decoder_layers: int = Field(default=6, ge=1, le=1_000)
    """Number of decoder layers."""
    d_model: int = Field(default=512, ge=2, le=32_768)
    """Width of the embeddings and of the output of every sub-layer."""
    d_ff: int = Field(default=2048, ge=1, le=1_048_576)
    """Inner width of the feed-forward sub-layers."""
    num_heads: int = Field(default=8, ge=1, le=4_096)
    """Number of attention heads."""
    d_k: int | None = Field(default=None, ge=1, le=65_536)
    """Width of the queries and keys of one head; by default d_model / num_heads."""
    d_v: int | None = Field(default=None, ge=1, le=65_536)
    """Width of the values of one head; by default d_model / num_heads."""
    self_attention: tuple[Literal["full", "local", "compressed", "window"], ...] = Field(default=(), max_length=1000)
    """Kinds of self-attention, one per layer of the encoder or of a decoder alone; a shorter list repeats. full: all
    positions. local: those of the same block. compressed: keys and values are compressed by a strided convolution (Liu
    et al. 2018). window: see attention_window. By default full, or window with attention_window."""
    local_block: int = Field(default=256, ge=1, le=1_000_000)
    """Local attention: number of positions in a block."""
    local_previous_block: bool = False
    """Local attention: also see the previous block, as in the code of Liu et al. but not in their paper."""
    compression: int = Field(default=3, ge=1, le=1_000)
    """Compressed attention: kernel size and stride of the convolution."""
    attention_window: int | None = Field(default=None, ge=1, le=1_000_000)
    """Restrict self-attention to a window of this number of positions, for long texts; see paper.md. If self_attention
    is stated, only its "window" layers and the decoder of an encoder-decoder are restricted."""
    norm: Literal["post", "pre"] = "post"
    """post: LayerNorm(x + Sublayer(x)), as in the paper. pre: x + Sublayer(LayerNorm(x)) and a norm after each
    stack."""
    positions: Literal["sinusoidal", "fairseq", "learned"] = "sinusoidal"
    """Position encodings: sinusoidal as in the paper, or learned (Table 3, row E). fairseq: sinusoidal as in fairseq
    and M2M-100, with slightly different frequencies and positions counted from 2."""
    max_positions: int = Field(default=1024, ge=1, le=1_000_000)
    """Number of learned positions. Sinusoidal positions have no limit."""
    activation: Literal["relu", "gelu", "silu"] = "relu"
    """Activation of the feed-forward sub-layers; gelu is its tanh approximation, as in GPT. silu: x * sigmoid(x), also
    called swish, as in OPUS-MT."""
    embedding_scale: bool = True
    """Multiply embeddings by sqrt(d_model) before positions are added, as in the paper."""
    output_bias: bool = False
    """Add a bias to the logit of each vocabulary entry, as Marian does; the paper has none."""
    decoder_start: Literal["bos", "eos"] = "bos"
    """Symbol whose embedding the decoder reads first: bos, the begin symbol; or eos, the end symbol, as in fairseq and
    M2M-100."""
    initialization: Literal["xavier", "normal"] = "xavier"
    """Initial weights. xavier: linear layers Xavier-uniform, embeddings N(0, 1/d_model). normal: all N(0, 0.02^2), as
    in GPT. Biases are 0."""
    # P_drop: section 5.4 of the paper.
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout after each sub-layer and on the sum of embedding and position."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the attention weights; 0 in the paper."""
    ffn_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout after the activation; 0 in the paper."""
    share_embeddings: Literal["all", "decoder", "none"] = "all"
    """all: source, target and output share one matrix. decoder: target and output share one. none: three matrices,
    with a decoder alone two."""
    head: Literal["none", "classes", "choice", "number", "discrete-action", "vector-action"] = "none"
    """Set by [data] task: linear layer for labels (classes, choice, number) or actions (discrete-action,
    vector-action)."""
    vector_states: bool = False
    """Trajectories: states are vectors; set by [data] states."""
    returns: bool = True
    """Trajectories: the model sees the return-to-go of each step. false: behaviour cloning."""
    return_values: int = Field(default=0, ge=0, le=10_000)
    """Trajectories: predict the return-to-go of each step, out of at most this number of different values; see
    decisions.md. 0: off."""

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        if self.d_model % self.num_heads and (self.d_k is None or self.d_v is None):
            raise ValueError(
                f"d_model = {self.d_model} is not a multiple of num_heads = {self.num_heads}; state d_k and d_v, "
                "or choose another number of heads"
            )
        if self.positions != "learned" and self.d_model % 2:
            raise ValueError(f"sinusoidal positions need an even d_model, not {self.d_model}")
        # The exponent of their frequencies is divided by d_model / 2 - 1; see fairseq_positions.
        if self.positions == "fairseq" and self.d_model < 4:
            raise ValueError('positions = "fairseq" needs a d_model of at least 4')
        layers = "decoder_layers" if self.is_joined else "encoder_layers"
        if len(self.self_attention) > getattr(self, layers):
            raise ValueError(
                f"self_attention has {len(self.self_attention)} entries, more than {layers} = {getattr(self, layers)}; "
                "shorten it"
            )
        if self.decoder_start == "eos" and self.is_joined:
            raise ValueError('decoder_start = "eos" needs architecture = "encoder-decoder"')
        if self.target_positions == "restarted" and not self.is_joined:
            raise ValueError('target_positions = "restarted" needs architecture = "decoder"')
        if self.source_attention == "full" and not self.is_joined:
            raise ValueError('source_attention = "full" needs architecture = "decoder"; an encoder sees all of it')
        if self.output_bias and self.has_actions:
            raise ValueError("output_bias is for models that generate text; leave it out")
        if "window" in self.self_attention and self.attention_window is None:
            raise ValueError('self_attention = "window" needs attention_window, the number of positions')
        if self.source_attention == "full" and "compressed" in self.self_attention:
            raise ValueError(
                'self_attention = "compressed" needs source_attention = "causal": a group of compressed positions may '
                "hold the end of the source and the beginning of the target"
            )
        return self

    @property
    def is_joined(self) -> bool:
        """True if source and target stand in one sequence."""
        return self.architecture == "decoder"

    @property
    def sees_source(self) -> bool:
        """True if a layer of the decoder sees the whole source, so that its attention says what was translated."""
        kinds = {self.attention_kind(layer) for layer in range(self.decoder_layers)}
        return not self.is_joined or not kinds.isdisjoint({"full", "compressed"})

    def embedding_sizes(self, source_vocab: int, target_vocab: int) -> dict[str, int]:
        """Return the entries of each embedding matrix."""
        if self.has_actions:
            return {}  # see trajectory.py
        if self.is_joined:
            vocab = target_vocab if self.head == "none" else source_vocab
            return {"shared": vocab} if self.share_embeddings != "none" else dict.fromkeys(("target", "output"), vocab)
        if self.share_embeddings == "all":
            return {"shared": target_vocab}
        sizes = {"source": source_vocab, "target": target_vocab}
        return sizes if self.share_embeddings == "decoder" else {**sizes, "output": target_vocab}

    def head_size(self, target_vocab: int) -> int:
        """Return the number of outputs of the head; the vocabulary of the target has four special entries."""
        if self.has_actions:
            return target_vocab - 4
        return {"none": 0, "classes": target_vocab - 4}.get(self.head, 1)

    def linear_columns(self, source_vocab: int, target_vocab: int) -> int:
        """Return the columns of all linear layers outside of the stacks, but for embeddings, per label or step."""
        own = self.head_size(target_vocab)
        if self.has_actions:
            own += self.return_values or int(self.returns)
            own += (source_vocab - 4) * self.vector_states + (target_vocab - 4) * (self.head == "vector-action")
        return own

    @property
    def has_actions(self) -> bool:
        """True if the model predicts actions from episodes."""
        return self.head.endswith("-action")

    def attention_kind(self, layer: int) -> Literal["full", "local", "compressed", "window"]:
        """Return the self-attention of a layer of the stack that reads the source."""
        if self.self_attention:
            return self.self_attention[layer % len(self.self_attention)]
        return "full" if self.attention_window is None else "window"

    @property
    def key_width(self) -> int:
        """d_k, by default d_model / num_heads."""
        return self.d_k if self.d_k is not None else self.d_model // self.num_heads

    @property
    def value_width(self) -> int:
        """d_v, by default d_model / num_heads."""
        return self.d_v if self.d_v is not None else self.d_model // self.num_heads
