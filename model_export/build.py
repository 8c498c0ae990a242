"""Builds the graphs of a checkpoint for a device in a precision."""

from collections.abc import Mapping
from dataclasses import dataclass

from .architecture import Architecture
from .artifact.cpu import BF16
from .checkpoint import Checkpoint, NamedWeights
from .errors import ExportError, PrecisionError
from .graph.attention import (
    Attention,
    Bf16PackedRows,
    CumulativeLengths,
    FusedPackedRows,
    PackedRows,
    PlainRows,
)
from .graph.builder import GraphBuilder, Value
from .graph.channel_shift import ChannelShift, NoShift, taken_offsets
from .graph.disentangled import DisentangledRows
from .graph.encoder import Encoder, PrenormEncoder, TwiceNormedEncoder, declare_states
from .graph.heads import ExactLogits, Heads, Int8Shortlist
from .graph.linear import CpuLinear, CudaLinear, Int8PerTokenLinear, Linear
from .graph.positions import AlibiRows, RelativeRows, RotaryRows
from .labels import classifier_of
from .lazy_weight import LazyWeight
from .sentence import embedding_model, sides
from .tokenizer import TokenizerFiles
from .tokenizer_check import ModelBounds, why_unusable
from .verification.reference import Reference

POSITIONAL: Mapping[str, type[PackedRows]] = {  # by `Architecture.positional`
    "alibi": AlibiRows,
    "disentangled": DisentangledRows,
    "relative": RelativeRows,
    "rotary": RotaryRows,
}
ENCODERS = {"after": Encoder, "before": PrenormEncoder, "twice": TwiceNormedEncoder}  # by `Architecture.norms`
# of both kernels of PackedMultiHeadAttention, flash (fp16) and memory-efficient (fp32), which read heads in place
PACKED_HEAD_STEP, PACKED_HEAD_LIMIT = 8, 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What a precision's graphs are made of; the defaults are those of fp32."""

    linear: Mapping[str, type[Linear]]  # by device: only those that have the kernels
    lm_head: type[ExactLogits] = ExactLogits
    is_shifted: bool = False  # whether the channels of activations are shifted and balanced
    dtype: str = "float32"  # of weights and activations, but for int8 products
    rows: type[PackedRows] = FusedPackedRows  # attention on the CPU


PRECISIONS = {
    "fp32": Precision(linear={"cpu": CpuLinear, "cuda": CudaLinear}),
    # the graph of fp32, whose products the runtime rounds; OpenVINO runs the encoder, ONNX Runtime the heads
    BF16: Precision(linear={"cpu": CpuLinear}, rows=Bf16PackedRows),
    "fp16": Precision(linear={"cuda": CudaLinear}, dtype="float16"),
    "int8": Precision(linear={"cpu": Int8PerTokenLinear}, lm_head=Int8Shortlist, is_shifted=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A graph that is not written yet, and what is known about it."""

    graph: GraphBuilder
    attention: GraphBuilder  # the graph of the attention probabilities, which shares the weights of `graph`
    cut_heads: GraphBuilder | None  # the heads alone, which share the weights of `graph`; in bf16
    offsets: LazyWeight  # [layers + 1, hidden]: what the channel shift took from the hidden states
    layout: str  # of the batch
    parts: NamedWeights
    heads: Heads
    reference: Reference


def build_graph(checkpoint: Checkpoint, precision: str, device: str, *, without_modules: bool = False) -> BuiltModel:
    """The graph of a checkpoint. Raises ExportError if a weight is missing, of another shape, or left over.

    Raises it also for a module of sentence-transformers that is not computed, unless `without_modules` leaves it out.
    """
    selected, parts = PRECISIONS[precision], NamedWeights(checkpoint)
    sizes, reference = parts.architecture, Reference(parts)
    sentence = embedding_model(checkpoint, sizes, without_modules=without_modules)
    parts.masks_keys = sentence.masks_keys
    kind = attention_for(precision, device, sizes, masks_keys=parts.masks_keys)
    shift = NoShift()
    if selected.is_shifted:
        shift = ChannelShift(reference.channel_offsets, reference.channel_balances, 2 * sizes.layers)
    classifier = classifier_of(checkpoint.config, parts)

    def encoder_in(graph: GraphBuilder) -> Encoder:
        linear = selected.linear[device](graph)
        return ENCODERS[sizes.norms](graph, parts, linear, kind(linear, parts), shift)

    def add_heads(graph: GraphBuilder, states: Value) -> Heads:
        """Adds the heads that read `states`, those after the last layer."""
        heads = Heads(graph, parts, classifier, selected.lm_head(), states, sentence)
        heads.build()
        return heads

    graph = GraphBuilder(selected.dtype, kind.opset)
    heads = add_heads(graph, encoder_in(graph).build())
    in_states = NoShift() if sizes.is_prenorm else shift
    offsets = taken_offsets(in_states, sizes.layers, sizes.hidden)
    cut = GraphBuilder(selected.dtype) if precision == BF16 else None
    if cut is not None:
        add_heads(cut, declare_states(cut, parts, offsets))
    maps = GraphBuilder(selected.dtype)
    encoder_in(maps).build_attention()
    heads.present.append("attention")
    parts.check_all_read()
    return BuiltModel(
        graph=graph,
        attention=maps,
        cut_heads=cut,
        offsets=offsets,
        layout=kind.layout,
        parts=parts,
        heads=heads,
        reference=reference,
    )


def attention_for(precision: str, device: str, sizes: Architecture, *, masks_keys: bool = False) -> type[Attention]:
    """The attention of a graph: on CUDA packed if its kernels take the heads and read all keys, else in rows.

    A family with positions in its attention has rows: with a bias the packed kernels pad every text to the longest.
    """
    if precision == BF16 and sizes.positional == "rotary":  # OpenVINO 2026.4 does not read ONNX Runtime's operator
        raise PrecisionError(f"precision {precision} is not built for family {sizes.family}: choose fp32 or int8")
    fits = not masks_keys and sizes.head_size % PACKED_HEAD_STEP == 0 and sizes.head_size <= PACKED_HEAD_LIMIT
    if device == "cuda" and fits and not sizes.positional:
        return CumulativeLengths
    rows = PRECISIONS[precision].rows if device == "cpu" else PlainRows
    if not sizes.positional:
        return rows
    of_family = POSITIONAL[sizes.positional]
    return type(f"{rows.__name__}Of{of_family.__name__}", (of_family, rows), {})


def check_tokenizer_fits(built: BuiltModel, tokenizer: TokenizerFiles) -> None:
    """Raises ExportError if the tokenizer cannot serve the model, whose limit of tokens may replace its own.

    That is: a masked-LM head has no mask token, a ColBERT no marker, the padding token has a position, or encoding a
    text fails, takes too much time or memory, or gives ids or types that the model does not have.
    """
    sizes, sentence = built.parts.architecture, built.heads.sentence
    tokenizer.max_tokens = min(sentence.max_tokens or tokenizer.max_tokens, sizes.positions)
    sides(sentence, tokenizer)
    padding = sizes.position_offset - 1  # positions start after the row for padding
    pad = padding if sentence.colbert else tokenizer.special_tokens.get("pad", padding)  # PyLate pads with masks
    if padding >= 0 and pad != padding:
        raise ExportError(
            f"config.json sets pad_token_id to {padding}, which has no position, but the tokenizer pads with {pad}"
        )
    if "fill_mask" in built.heads.present and "mask" not in tokenizer.special_tokens:
        raise ExportError("the checkpoint has a masked-LM head, but its tokenizer has no mask token")
    bounds = ModelBounds(vocabulary=sizes.vocabulary, segments=sizes.segments, max_tokens=tokenizer.max_tokens)
    if fault := why_unusable(tokenizer.tokenizer, bounds):
        raise ExportError(f"the tokenizer in {tokenizer.source} cannot be used: it {fault}")
    if sizes.segments == 1 and any(tokenizer.tokenizer.encode("a", "b").type_ids):
        tokenizer.assumed["single texts"] = "the model has one segment, and the tokenizer gives a pair two: no pairs"
