"""Makes the golden checkpoints of JinaBERT v2, which transformers lacks: its BERT with the published layer in place.

    python tests/golden/makers/make_jina.py [FOLDER ...]

It needs what make.py needs, transformers 4 for `jina_bert-spans`. The layer is written from the formulas of the
published models (Guenther et al. 2023): attention with ALiBi to both sides, a gated feed-forward, and the names of
jinaai/jina-bert-implementation. Those for code (jinaai/jina-bert-v2-qk-post-norm) have more norms, other names, and
the halves of the gate in the other order.
"""

import json
import math
import sys
from pathlib import Path

import torch
import transformers
from checkpoints import BERT, NSP, Family, masked
from make import make
from tokenizers_of_families import byte_pairs, settings, word_piece
from torch import nn
from transformers.models.bert import modeling_bert as bert

JINA = BERT | {"num_hidden_layers": 2, "position_embedding_type": "alibi", "feed_forward_type": "geglu"}
SIX_HEADS = {"num_attention_heads": 6, "hidden_size": 36, "feed_forward_type": "reglu"}
ACTIVATIONS = {"geglu": nn.functional.gelu, "reglu": nn.functional.relu}


def roberta_byte_pairs(folder: Path) -> int:
    ids, file = byte_pairs(folder), folder / "tokenizer_config.json"
    settings(folder, **json.loads(file.read_text("utf-8")), tokenizer_class="RobertaTokenizer")
    return ids


def slopes(heads: int) -> list[float]:
    """ALiBi's, by the authors' code: if `heads` is no power of 2, every other slope of the next power follows."""
    power = 2 ** math.floor(math.log2(heads))
    start = 2.0 ** (-8.0 / power)
    found = [start ** (head + 1) for head in range(power)]
    return found if power == heads else found + slopes(2 * power)[::2][: heads - power]


class Embeddings(bert.BertEmbeddings):
    def __init__(self, config: object) -> None:
        super().__init__(config)
        del self.position_embeddings

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None = None, **_: object) -> torch.Tensor:
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        return self.LayerNorm(self.word_embeddings(input_ids) + self.token_type_embeddings(types))


class Layer(bert.BertLayer):
    for_code = False

    def __init__(self, config: object, layer_idx: int | None = None) -> None:
        super().__init__(config, layer_idx)
        del self.intermediate, self.output
        size, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.config, self.mlp = config, nn.Module()
        up, down = nn.Linear(size, 2 * inner, bias=False), nn.Linear(inner, size)
        if self.for_code:
            self.mlp.up_gated_layer, self.mlp.down_layer = up, down
            self.layer_norm_1, self.layer_norm_2 = nn.LayerNorm(size, eps), nn.LayerNorm(size, eps)
            of_heads = self.attention.self
            of_heads.layer_norm_q, of_heads.layer_norm_k = nn.LayerNorm(size, eps), nn.LayerNorm(size, eps)
        else:
            self.mlp.gated_layers, self.mlp.wo, self.mlp.layernorm = up, down, nn.LayerNorm(size, eps)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *_: object, **__: object) -> object:
        found = self.states(x, mask)
        return found if transformers.__version__ >= "5" else (found,)

    def states(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        attended = self.attention.output(self.context(x, mask), x)
        activation = ACTIVATIONS[self.config.feed_forward_type]
        if self.for_code:
            x = self.layer_norm_1(x + attended)
            value, gate = self.mlp.up_gated_layer(x).chunk(2, dim=-1)
            return self.layer_norm_2(x + self.mlp.down_layer(value * activation(gate)))
        gate, value = self.mlp.gated_layers(attended).chunk(2, dim=-1)
        return self.mlp.layernorm(attended + self.mlp.wo(activation(gate) * value))

    def context(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        of_heads, heads = self.attention.self, self.config.num_attention_heads
        query, key, value = of_heads.query(x), of_heads.key(x), of_heads.value(x)
        if self.for_code:
            query, key = of_heads.layer_norm_q(query), of_heads.layer_norm_k(key)
        query, key, value = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (query, key, value))
        places = torch.arange(x.shape[1])
        distance = (places[:, None] - places).abs()
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        scores = scores - torch.tensor(slopes(heads))[:, None, None] * distance
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(-2)


class CodeLayer(Layer):
    for_code = True


CHECKPOINTS = Family("Bert", JINA, word_piece, 2, pairs=NSP).checkpoints("jina_bert")
CHECKPOINTS["jina_bert_code"] = masked("Bert", JINA | SIX_HEADS, roberta_byte_pairs, segments=2)

if __name__ == "__main__":
    bert.BertEmbeddings = Embeddings
    for name in sys.argv[1:] or CHECKPOINTS:
        bert.BertLayer = CodeLayer if name == "jina_bert_code" else Layer
        make(name, CHECKPOINTS[name])
