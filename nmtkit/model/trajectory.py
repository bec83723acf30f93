"""The Decision Transformer: a decoder that reads returns-to-go, states and actions, and predicts the actions.

    step t   R_t s_t a_t     each with an embedding of its kind; the position of all three is t
    head     at s_t, which has seen R_t and s_t but not a_t

With `return_values` a step is s_t R_t a_t, returns have an embedding each, and a second head predicts R_t at s_t; then
a_t is predicted at R_t. Without `returns` a step is s_t a_t (behaviour cloning, and with `return_values` a critic).

Source: Chen et al. 2021 (arXiv 2106.01345), section 3 and appendix A.3. A layer norm follows the sum of embedding and
position, as in the authors' code; other than there, dropout follows it.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from nmtkit.config.model_schema import ModelConfig
from nmtkit.model.transformer import Transformer


class DecisionTransformer(Transformer):
    """A decoder over episodes.

    Attributes:
        inputs: embedding of each kind of token: "returns", "states", "actions".
    """

    def __init__(self, config: ModelConfig, source_vocab: int, target_vocab: int) -> None:
        """Args:
        source_vocab, target_vocab: special entries, and the number of states and of actions; for vectors their widths.
        """
        super().__init__(config, source_vocab, target_vocab)
        width = config.d_model

        def embedding(vocab: int, *, is_vector: bool) -> nn.Module:
            # Vectors have no special entries, of which `vocab` counts four.
            return nn.Linear(vocab - 4, width) if is_vector else nn.Embedding(vocab, width)

        self.inputs = nn.ModuleDict({"states": embedding(source_vocab, is_vector=config.vector_states)})
        self.inputs["actions"] = embedding(target_vocab, is_vector=config.head == "vector-action")
        values = config.return_values
        if config.returns:
            self.inputs["returns"] = nn.Embedding(values, width) if values else nn.Linear(1, width)
        if values:
            self.return_head = nn.Linear(width, values)
        self.input_norm = nn.LayerNorm(width)
        self.initialize()  # again, for the modules that the base class does not have

    @property
    def output_embedding(self) -> Float[Tensor, "actions width"]:
        return self.head.weight

    def predict(
        self,
        returns: Float[Tensor, "batch steps"] | Int[Tensor, "batch steps"],
        states: Int[Tensor, "batch steps"] | Float[Tensor, "batch steps state"],
        actions: Int[Tensor, "batch steps"] | Float[Tensor, "batch steps action"],
        timesteps: Int[Tensor, "batch steps"],
    ) -> tuple[Float[Tensor, "batch steps outputs"], Float[Tensor, "batch steps values"] | None]:
        """Return the logits of the actions, or the actions (vectors), and the logits of the returns if predicted.

        Returns are numbers, or their indices among the different ones if the model predicts them.

        Padding is at the end of a row, so no step sees it. The action of a row's last step is not seen either.
        """
        assert self.positions is not None
        position = F.embedding(timesteps, self.positions["target"])
        tokens = {"states": self.inputs["states"](states), "actions": self.inputs["actions"](actions)}
        if self.config.returns:
            tokens["returns"] = self.inputs["returns"](returns if self.config.return_values else returns[..., None])
        order = tokens_of_step(self.config)
        x = torch.stack([tokens[name] + position for name in order], 2).flatten(1, 2)
        x = self.dropout(self.input_norm(x))
        for layer in self.decoder:
            x = layer(x, None, True, None)
        x = self.decoder_norm(x).unflatten(1, (-1, len(order)))
        output = self.head(x[:, :, len(order) - 2])  # before the action
        values = self.return_head(x[:, :, 0]) if self.config.return_values else None
        return output.tanh() if self.config.head == "vector-action" else output, values


def tokens_of_step(config: ModelConfig) -> tuple[str, ...]:
    """Return the kinds of the tokens of a step, in their order."""
    if not config.returns:
        return ("states", "actions")
    return ("states", "returns", "actions") if config.return_values else ("returns", "states", "actions")
