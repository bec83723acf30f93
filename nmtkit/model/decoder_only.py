"""A decoder alone, which reads source, separator and target as one sequence (T-D, and with other attention T-DMCA).

    source   s1 .. sn </s>          of a batch; its end symbol is not read
    target   <s> t1 .. tm           the begin symbol is the separator
    joined   s1 .. sn <s> t1 .. tm  which predicts s2 .. sn <s> t1 .. tm </s>

Without a source n is 0: a language model. Source: Liu et al. 2018 (arXiv 1801.10198), section 4.2.3.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from nmtkit.config.model_schema import ModelConfig
from nmtkit.errors import ModelError
from nmtkit.model.trajectory import DecisionTransformer
from nmtkit.model.transformer import Transformer


class Joined(NamedTuple):
    """Sequences of source and target.

    Attributes:
        target_states: at all positions of the targets.
        states, ids: of all positions; the sources come first, and what follows a target is padding.
    """

    target_states: Float[Tensor, "batch target width"]
    states: Float[Tensor, "batch joined width"]
    ids: Int[Tensor, "batch joined"]


class DecoderOnly(Transformer):
    """A decoder without encoder, with the interface of the Transformer."""

    def encode(
        self, source: Int[Tensor, "batch source"], source_lengths: Int[Tensor, " batch"]
    ) -> tuple[Int[Tensor, "batch source"], Int[Tensor, " batch"]]:
        """Return the ids of the sources, and their lengths without end symbols on their device: `decode` reads them."""
        return source, (source_lengths - 1).to(source.device, non_blocking=True)

    def decode(
        self,
        target_in: Int[Tensor, "batch target"],
        source: Int[Tensor, "batch source"],
        source_mask: Int[Tensor, " batch"] | None,
    ) -> Float[Tensor, "batch target width"]:
        """Return the states at all positions of the targets; ``source`` and ``source_mask`` are results of `encode`."""
        assert source_mask is not None
        return self.joined(target_in, source, source_mask).target_states

    def joined(
        self,
        target_in: Int[Tensor, "batch target"],
        source: Int[Tensor, "batch source"],
        lengths: Int[Tensor, " batch"],
    ) -> "Joined":
        """Compute whole sequences; ``lengths``: tokens of each source without end symbol, on the device."""
        batch, target = target_in.shape
        width = source.size(1) - 1 + target
        if self.positions is not None:  # what is cut is padding of every row
            width = min(width, self.config.max_positions)
        position = torch.arange(width, device=source.device)
        offset = position - lengths[:, None]  # position in the target, where it is not negative [batch, joined]
        # `gather` needs valid indices, hence the clamps. `where` takes only indices within a source, and what is past
        # the end of a target is hidden by causal attention.
        from_target = target_in.gather(1, offset.clamp(0, target - 1))
        from_source = source.gather(1, position.clamp(max=source.size(1) - 1).expand(batch, -1))
        ids = torch.where(offset < 0, from_source, from_target)
        x = self.dropout(self.embed_at(ids, position[None], lengths, width))
        prefix = lengths if self.config.source_attention == "full" else None
        for layer in self.decoder:
            x = layer(x, None, True, prefix)
        states = self.decoder_norm(x)
        of_target = (lengths[:, None] + torch.arange(target, device=source.device)).clamp(max=width - 1)
        return Joined(states.gather(1, of_target[:, :, None].expand(-1, -1, x.size(2))), states, ids)

    def label_output(
        self,
        states: Float[Tensor, "rows length width"],
        last: Int[Tensor, " rows"],
        example: Int[Tensor, " rows"],
        num_examples: int,
    ) -> Float[Tensor, "examples outputs"]:
        """Return the head's logits of the labels, or of the rows of each example (choice), or a number.

        The states at the last tokens of an example's rows are added, except for choice, where each row has a logit of
        its own and missing rows have -inf. Dropout is the same for all rows of an example.

        Source: Radford et al. 2018, section 3.3 and figure 1.

        Args:
            last: position of the last token of each row.
            example: index of the example of each row, in ascending order.
        """
        chosen = states.gather(1, last[:, None, None].expand(-1, -1, states.size(2)))[:, 0]
        # Dropout of ones gives its factors, which all rows of an example then share.
        mask = self.dropout(chosen.new_ones(num_examples, chosen.size(1)))
        if self.config.head != "choice":
            summed = chosen.new_zeros(num_examples, chosen.size(1)).index_add_(0, example, chosen)
            return self.head(summed * mask)
        scores = self.head(chosen * mask[example])[:, 0]
        first = torch.searchsorted(example, torch.arange(num_examples, device=example.device))
        number = torch.arange(len(example), device=example.device) - first[example]
        table = scores.new_full((num_examples, int(number.max()) + 1), -torch.inf)
        return table.index_put((example, number), scores)

    def embed_at(
        self,
        ids: Int[Tensor, "batch length"],
        positions: Int[Tensor, "#batch length"],
        source_lengths: Int[Tensor, " batch"],
        count: int,
    ) -> Float[Tensor, "batch length width"]:
        """Return embeddings at positions of the joined sequences, all below ``count``, without dropout."""
        if self.positions is not None:  # padding of a batch may reach further
            count = min(count, self.config.max_positions)
        x = F.embedding(ids, self.embeddings["shared" if "shared" in self.embeddings else "target"])
        if self.sides is not None:
            offset = positions - source_lengths[:, None]
            x = x + F.embedding((offset >= 0).long(), self.sides)
            positions = torch.where(offset < 0, positions, offset)
        return x * self.embedding_factor + self.position_rows("target", 0, count).to(x.dtype)[positions]


def build_model(config: ModelConfig, source_vocab: int, target_vocab: int) -> Transformer:
    """Return a model of the architecture that ``config`` states, with initial weights."""
    if config.has_actions:
        return DecisionTransformer(config, source_vocab, target_vocab)
    return (DecoderOnly if config.is_joined else Transformer)(config, source_vocab, target_vocab)


def shapes_of(config: ModelConfig, source_vocab: int, target_vocab: int) -> dict[str, torch.Size]:
    """Return the shapes of the model's parameters by name, each once however often it is used, without its values.

    Raises:
        ModelError: the sizes contradict each other, or a parameter is larger than any memory.
    """
    if config.share_embeddings == "all" and config.head == "none" and source_vocab != target_vocab:
        raise ModelError("a model with one embedding matrix has one vocabulary size, not two")
    try:
        with torch.device("meta"):  # takes neither memory nor random numbers
            model = build_model(config, source_vocab, target_vocab)
    except RuntimeError:  # its number of bytes exceeds 64 bits
        raise ModelError("the sizes in [model] are larger than any memory") from None
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def count_parameters(config: ModelConfig, source_vocab: int, target_vocab: int) -> int:
    """Count the parameters of the model."""
    return sum(shape.numel() for shape in shapes_of(config, source_vocab, target_vocab).values())
