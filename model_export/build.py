"""Builds the graphs of a checkpoint for a device in a precision."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from packbert.model_export.artifact.cpu import BF16
from packbert.model_export.artifact.manifest import ModelBounds
from packbert.model_export.checkpoint import Checkpoint, NamedWeights
from packbert.model_export.errors import ExportError
from packbert.model_export.families import Architecture
from packbert.model_export.graph.attention import (
    PLAIN_ATTENTION,
    Attention,
    Bf16PackedRows,
    CumulativeLengths,
    FusedPackedRows,
    PackedRows,
)
from packbert.model_export.graph.builder import GraphBuilder, Value
from packbert.model_export.graph.channel_shift import ChannelShift, NoShift, taken_offsets
from packbert.model_export.graph.disentangled import DISENTANGLED
from packbert.model_export.graph.encoder import Encoder
from packbert.model_export.graph.heads import ExactLogits, Heads, Int8Shortlist
from packbert.model_export.graph.linear import CpuLinear, CudaLinear, Int8PerTokenLinear, Linear
from packbert.model_export.graph.pooling import build_sentence
from packbert.model_export.graph.states import build_attention, declare_states, name_states
from packbert.model_export.labels import Classifier, classifier_of
from packbert.model_export.lazy_weight import LazyWeight
from packbert.model_export.sentence import SentenceModel, sentence_model
from packbert.model_export.tokenizer import TokenizerFiles
from packbert.model_export.tokenizer_check import why_unusable
from packbert.model_export.verification.reference import Reference

ATTENTION: Mapping[str, type[Attention]] = {"cpu": PackedRows, "cuda": CumulativeLengths}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    linear: Mapping[str, Callable[[], Linear]]  # by device: only those that have the kernels
    lm_head: type[ExactLogits] | type[Int8Shortlist]
    shift: type[ChannelShift] | type[NoShift]
    dtype: str  # of weights and activations, but for int8 products
    attention: Mapping[str, type[Attention]] = field(default_factory=lambda: ATTENTION)  # by device

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.linear)


PRECISIONS = {
    "fp32": Precision(
        linear={"cpu": CpuLinear, "cuda": CudaLinear}, lm_head=ExactLogits, shift=NoShift, dtype="float32"
    ),
    # the graph of fp32, whose products the runtime rounds; OpenVINO runs the encoder, ONNX Runtime the heads
    BF16: Precision(
        linear={"cpu": CpuLinear},
        lm_head=ExactLogits,
        shift=NoShift,
        dtype="float32",
        attention={"cpu": Bf16PackedRows},
    ),
    "fp16": Precision(linear={"cuda": CudaLinear}, lm_head=ExactLogits, shift=NoShift, dtype="float16"),
    "int8": Precision(
        linear={"cpu": Int8PerTokenLinear},
        lm_head=Int8Shortlist,
        shift=ChannelShift,
        dtype="float32",
        attention={"cpu": FusedPackedRows},
    ),
}


MAX_LISTED = 5  # weights in an error message


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A graph that is not written yet, and what is known about it."""

    graph: GraphBuilder
    plain: GraphBuilder | None  # the same model in standard operators, for CUDA; shares the weights of `graph`
    attention: GraphBuilder  # the graph of the attention probabilities, which shares the weights of `graph`
    cut_heads: GraphBuilder | None  # the heads alone, which share the weights of `graph`; only in bf16
    offsets: LazyWeight  # [layers + 1, hidden]: what the channel shift took from the hidden states
    layout: str  # of the batch
    parts: NamedWeights
    heads: Heads
    classifier: Classifier
    sentence: SentenceModel
    reference: Reference


def build_graph(checkpoint: Checkpoint, precision: str, device: str, *, without_modules: bool = False) -> BuiltModel:
    """The graph of a checkpoint. Raises ExportError where a weight is missing, of another shape, or left over.

    Also where a module of sentence-transformers is not computed, unless `without_modules` leaves it out.
    """
    selected, parts = PRECISIONS[precision], NamedWeights(checkpoint)
    architecture, reference = parts.architecture, Reference(parts)
    kind = attention_for(precision, device, architecture)
    shift = selected.shift(reference.channel_offsets, 2 * architecture.layers)
    classifier = classifier_of(checkpoint.config, parts)
    sentence = sentence_model(checkpoint, architecture.hidden, without_modules=without_modules)
    graphs = _Graphs(selected, selected.linear[device](), parts, shift, classifier, sentence)
    graph, heads = graphs.model(kind)
    plain = graphs.model(PLAIN_ATTENTION[device])[0] if device in PLAIN_ATTENTION else None
    offsets = taken_offsets(shift, architecture.layers, architecture.hidden)
    cut = GraphBuilder(selected.dtype) if precision == BF16 else None
    if cut is not None:
        graphs.heads(cut, declare_states(cut, parts, offsets))
    maps = graphs.attention(kind)
    heads.present.append("attention")
    parts.ignore_known()
    _check_all_used(checkpoint)
    return BuiltModel(
        graph=graph,
        plain=plain,
        attention=maps,
        cut_heads=cut,
        offsets=offsets,
        layout=kind.layout,
        parts=parts,
        heads=heads,
        classifier=classifier,
        sentence=sentence,
        reference=reference,
    )


@dataclass(frozen=True, slots=True)
class _Graphs:
    """Builds graphs of one model over the same weights."""

    selected: Precision
    linear: Linear
    parts: NamedWeights
    shift: ChannelShift | NoShift
    classifier: Classifier
    sentence: SentenceModel

    def model(self, kind: type[Attention]) -> tuple[GraphBuilder, Heads]:
        """The encoder, with attention of a `kind`, and its heads."""
        graph, sizes = GraphBuilder(self.selected.dtype, kind.opset), self.parts.architecture
        attention = kind.of(graph, sizes)
        states = Encoder(graph, self.parts, self.linear, attention, self.shift).build()
        name_states(states)
        return graph, self.heads(graph, states[-1])

    def heads(self, graph: GraphBuilder, states: Value) -> Heads:
        """Adds the heads that read `states`, those after the last layer."""
        heads = Heads(graph, self.parts, self.classifier, self.selected.lm_head(), states, self.sentence.sparse)
        heads.build()
        if self.sentence.pooling == "sentence":
            build_sentence(graph, heads.hidden, self.parts.architecture.hidden, self.sentence)
            heads.present.append("sentence")
        return heads

    def attention(self, kind: type[Attention]) -> GraphBuilder:
        """The attention probabilities."""
        graph, sizes = GraphBuilder(self.selected.dtype), self.parts.architecture
        build_attention(graph, self.parts, self.linear, kind.of(graph, sizes), self.shift)
        return graph


def attention_for(precision: str, device: str, sizes: Architecture) -> type[Attention]:
    kind = PRECISIONS[precision].attention[device]
    return kind if sizes.relative is None else DISENTANGLED[kind]


def _check_all_used(checkpoint: Checkpoint) -> None:
    """Raises ExportError where a weight is left over."""
    if unused := checkpoint.unused_weights():
        more = f" and {len(unused) - MAX_LISTED} more" if len(unused) > MAX_LISTED else ""
        raise ExportError(
            f"the checkpoint has weights that are not supported: {', '.join(unused[:MAX_LISTED])}{more}. "
            "The answers would not be the model's"
        )


def check_tokenizer_fits(built: BuiltModel, tokenizer: TokenizerFiles) -> None:
    """Raises ExportError where the tokenizer cannot serve the model.

    That is: a masked-LM head has no mask token, the padding token has a position, or encoding a text fails, takes too
    much time or memory, or gives ids or types that the model does not have.
    """
    sizes = built.parts.architecture
    padding = sizes.position_offset - 1  # positions start after the row for padding
    if padding >= 0 and (pad := tokenizer.special_tokens.get("pad", padding)) != padding:
        raise ExportError(
            f"config.json sets pad_token_id to {padding}, which has no position, but the tokenizer pads with {pad}"
        )
    if "fill_mask" in built.heads.present and "mask" not in tokenizer.special_tokens:
        raise ExportError("the checkpoint has a masked-LM head, but its tokenizer has no mask token")
    bounds = ModelBounds(
        vocabulary=sizes.vocabulary, segments=sizes.segments, max_tokens=tokenizer.max_tokens, layers=sizes.layers
    )
    if fault := why_unusable(tokenizer.tokenizer, bounds):
        raise ExportError(f"the tokenizer in {tokenizer.source} cannot be used: it {fault}")
