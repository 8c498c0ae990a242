"""Builds the graph of a checkpoint, and checks that its tokenizer fits."""

from dataclasses import dataclass

from model_export.artifact.manifest import ModelBounds
from model_export.checkpoints.checkpoint import Checkpoint
from model_export.checkpoints.class_labels import Classifier, classifier_of
from model_export.checkpoints.lazy_weight import LazyWeight
from model_export.checkpoints.named_weights import NamedWeights
from model_export.checkpoints.sentence_modules import SentenceModel, sentence_model
from model_export.errors import ExportError
from model_export.graph.attention import Attention
from model_export.graph.attention_graph import build_attention
from model_export.graph.builder import GraphBuilder
from model_export.graph.channel_shift import taken_offsets
from model_export.graph.encoder import Encoder
from model_export.graph.heads.heads import Heads
from model_export.graph.heads.layers import name_states
from model_export.graph.heads.sentence import build_sentence
from model_export.graph.plain_attention import PLAIN_ATTENTION
from model_export.graph.precision import PRECISIONS
from model_export.tokenization.tokenizer_check import why_unusable
from model_export.tokenization.tokenizer_files import TokenizerFiles
from model_export.verification.reference import Reference

MAX_LISTED = 5  # weights in an error message


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A graph that is not written yet, and what is known about it."""

    graph: GraphBuilder
    plain: GraphBuilder | None  # the same model in standard operators, for CUDA; shares the weights of `graph`
    attention: GraphBuilder  # the graph of the attention probabilities, which shares the weights of `graph`
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
    kind = selected.attention[device]
    architecture, reference = parts.architecture, Reference(parts)
    shift = selected.shift(reference.channel_offsets, 2 * architecture.layers)
    classifier = classifier_of(checkpoint.config, parts)
    sentence = sentence_model(checkpoint, architecture.hidden, without_modules=without_modules)

    def build_model(kind: type[Attention]) -> tuple[GraphBuilder, Heads]:
        graph = GraphBuilder(selected.dtype, kind.opset)
        attention = kind(graph, architecture.heads, architecture.hidden)
        states = Encoder(graph, parts, selected.linear[device](), attention, shift).build()
        name_states(states)
        heads = Heads(graph, parts, classifier, selected.lm_head(), states[-1], sentence.sparse)
        heads.build()
        if sentence.pooling == "sentence":
            build_sentence(graph, heads.hidden, architecture.hidden, sentence)
            heads.present.append("sentence")
        return graph, heads

    graph, heads = build_model(kind)
    plain = build_model(PLAIN_ATTENTION[device])[0] if device in PLAIN_ATTENTION else None
    maps = GraphBuilder(selected.dtype)
    build_attention(maps, parts, selected.linear[device](), kind(maps, architecture.heads, architecture.hidden), shift)
    heads.present.append("attention")
    parts.ignore_known()
    _check_all_used(checkpoint)
    return BuiltModel(
        graph=graph,
        plain=plain,
        attention=maps,
        offsets=taken_offsets(shift, architecture.layers, architecture.hidden),
        layout=kind.layout,
        parts=parts,
        heads=heads,
        classifier=classifier,
        sentence=sentence,
        reference=reference,
    )


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
