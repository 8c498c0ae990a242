"""BERT with both pre-training heads.

Several sequences share a row; each attends only to its own block. Knows nothing of text, files or schedules.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.model.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Rows of one fixed length, each holding several sequences."""

    ids: Tensor  # [rows, length] int64
    segments: Tensor  # [rows, length] 0 before the first [SEP], 1 after it
    positions: Tensor  # [rows, length] restarts with each sequence
    blocks: Tensor  # [rows, length] which sequence of its row a token belongs to
    masked: Tensor  # [masked] flat indices of the tokens to predict
    starts: Tensor  # [starts] flat indices of [CLS] for the next-sentence head


class Encoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary_size, shape.hidden)
        self.positions = nn.Embedding(shape.positions, shape.hidden)
        self.segments = nn.Embedding(2, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))

    def forward(self, packed: Packed) -> Tensor:
        hidden = self.words(packed.ids) + self.positions(packed.positions) + self.segments(packed.segments)
        hidden = self.norm(hidden)
        same_block = packed.blocks[:, None, :, None] == packed.blocks[:, None, None, :]
        for layer in self.layers:
            hidden = layer(hidden, same_block)
        return hidden


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.attention_norm = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)
        self.widen = nn.Linear(shape.hidden, shape.inner)
        self.narrow = nn.Linear(shape.inner, shape.hidden)
        self.norm = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)

    def forward(self, hidden: Tensor, same_block: Tensor) -> Tensor:
        hidden = self.attention_norm(hidden + self.attention(hidden, same_block))
        return self.norm(hidden + self.narrow(functional.gelu(self.widen(hidden))))


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query = nn.Linear(shape.hidden, shape.hidden)
        self.key = nn.Linear(shape.hidden, shape.hidden)
        self.value = nn.Linear(shape.hidden, shape.hidden)
        self.out = nn.Linear(shape.hidden, shape.hidden)

    def forward(self, hidden: Tensor, same_block: Tensor) -> Tensor:
        rows, length, width = hidden.shape
        query, key, value = (
            projection(hidden).view(rows, length, self.heads, -1).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        # in single operations: with a mask, scaled_dot_product_attention's backward took a third of the step on the CPU
        scores = query @ key.transpose(2, 3) * (width // self.heads) ** -0.5
        weights = scores.masked_fill(~same_block, -30000.0).softmax(-1, dtype=torch.float32)
        mixed = weights.to(value.dtype) @ value
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


class Bert(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.encoder = Encoder(shape)
        self.pooler = nn.Linear(shape.hidden, shape.hidden)
        self.transform = nn.Linear(shape.hidden, shape.hidden)
        self.transform_norm = nn.LayerNorm(shape.hidden, eps=shape.norm_eps)
        self.score_bias = nn.Parameter(torch.zeros(shape.vocabulary_size))
        self.next_sentence = nn.Linear(shape.hidden, 2)

    def forward(self, packed: Packed) -> tuple[Tensor, Tensor]:
        """Vocabulary scores [masked, vocabulary] and next-sentence scores [starts, 2]."""
        hidden = self.encoder(packed).flatten(0, 1)
        guess = self.transform_norm(functional.gelu(self.transform(hidden[packed.masked])))
        scores = functional.linear(guess, self.encoder.words.weight, self.score_bias)
        pooled = torch.tanh(self.pooler(hidden[packed.starts]))
        return scores, self.next_sentence(pooled)


def initialize_weights(model: Bert) -> None:
    """BERT's initialization: normal with deviation 0.02, biases 0, norms 1."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
