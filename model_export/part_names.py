"""The names of weights in the checkpoints of the families, by part of the model; {i} is the number of a layer."""

BERT_PARTS = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "segment": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "query": "encoder.layer.{i}.attention.self.query",
    "key": "encoder.layer.{i}.attention.self.key",
    "value": "encoder.layer.{i}.attention.self.value",
    "attention": "encoder.layer.{i}.attention.output.dense",
    "attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "intermediate": "encoder.layer.{i}.intermediate.dense",
    "output": "encoder.layer.{i}.output.dense",
    "output_norm": "encoder.layer.{i}.output.LayerNorm",
    "pooler": "pooler.dense",
}
CLASSIFIERS = {"labels": "classifier", "tags": "classifier"}
FINE_TUNED = CLASSIFIERS | {"choices": "classifier", "spans": "qa_outputs"}
BERT_MLM = {
    "mlm_dense": "cls.predictions.transform.dense",
    "mlm_norm": "cls.predictions.transform.LayerNorm",
    "mlm_decoder": "cls.predictions.decoder",
    "mlm_bias": "cls.predictions",
}
BERT_HEADS = FINE_TUNED | BERT_MLM | {"pair": "cls.seq_relationship"}
PROJECTIONS = {part: ("projections", i, 3) for i, part in enumerate(("query", "key", "value"))}
DENSE_CLASSIFIER = FINE_TUNED | {"labels_dense": "classifier.dense", "labels": "classifier.out_proj"}
# the substitutions that make a family's names of BERT's: pattern -> replacement
ROBERTA_RULES = {r"cls\.predictions(\.transform)?": "lm_head", "LayerNorm": "layer_norm"}
ALBERT_RULES = {
    r"layer\.{i}": "albert_layer_groups.{i}.albert_layers.0",
    r"attention\.(self|output)": "attention",
    r"intermediate\.dense": "ffn",
    r"output\.dense": "ffn_output",
    r"output\.LayerNorm": "full_layer_layer_norm",
    r"pooler\.dense": "pooler",
}
ALBERT_HEAD_RULES = {
    r"cls\.predictions(\.transform)?": "predictions",
    r"cls\.seq_relationship": "sop_classifier.classifier",
}
DISTILBERT_RULES = {
    "encoder": "transformer",
    r"self\.(q|k|v)\w+": r"\1_lin",
    r"attention\.output\.dense": "attention.out_lin",
    r"attention\.output\.LayerNorm": "sa_layer_norm",
    r"intermediate\.dense": "ffn.lin1",
    r"output\.dense": "ffn.lin2",
    r"output\.LayerNorm": "output_layer_norm",
}
DISTILBERT_HEADS = FINE_TUNED | {
    "mlm_dense": "vocab_transform",
    "mlm_norm": "vocab_layer_norm",
    "mlm_decoder": "vocab_projector",
    "labels_dense": "pre_classifier",
    "choices_dense": "pre_classifier",
}
ELECTRA_CLASSIFIERS = DENSE_CLASSIFIER | {"choices_dense": "sequence_summary.summary"}
ELECTRA_HEADS = ELECTRA_CLASSIFIERS | {
    "mlm_dense": "generator_predictions.dense",
    "mlm_norm": "generator_predictions.LayerNorm",
    "mlm_decoder": "generator_lm_head",
}
MPNET_RULES = {
    r"self\.(q|k|v)\w+": r"attn.\1",
    r"attention\.output\.dense": "attention.attn.o",
    r"attention\.output": "attention",
}
MODERNBERT_PARTS = {
    "word": "embeddings.tok_embeddings",
    "embedding_norm": "embeddings.norm",
    "projections": "layers.{i}.attn.Wqkv",
    "attention": "layers.{i}.attn.Wo",
    "attention_norm": "layers.{i}.attn_norm",  # not in the first layer
    "gated": "layers.{i}.mlp.Wi",
    "output": "layers.{i}.mlp.Wo",
    "output_norm": "layers.{i}.mlp_norm",
    "final_norm": "final_norm",
}
MODERNBERT_HEADS = {
    **dict.fromkeys(("labels", "tags", "choices", "spans"), "classifier"),
    **dict.fromkeys(("mlm_dense", "labels_dense", "choices_dense"), "head.dense"),
    **dict.fromkeys(("mlm_norm", "classifier_norm"), "head.norm"),
    "mlm_decoder": "decoder",
}
NOMIC_RULES = {
    r"embeddings\.LayerNorm": "emb_ln",
    "layer": "layers",
    r"attention\.output\.dense": "attn.out_proj",
    r"attention\.output\.LayerNorm": "norm1",
    r"intermediate\.dense": "mlp.fc12",
    r"output\.dense": "mlp.fc2",
    r"output\.LayerNorm": "norm2",
}
GTE_RULES = {
    r"attention\.output\.dense": "attention.o_proj",
    r"attention\.output\.LayerNorm": "attn_ln",
    r"output\.dense": "mlp.down_proj",
    r"output\.LayerNorm": "mlp_ln",
}
JINA_PARTS = {
    "gated": "encoder.layer.{i}.mlp.gated_layers",
    "output": "encoder.layer.{i}.mlp.wo",
    "output_norm": "encoder.layer.{i}.mlp.layernorm",
}
JINA_CODE_PARTS = {
    "query_norm": "encoder.layer.{i}.attention.self.layer_norm_q",
    "key_norm": "encoder.layer.{i}.attention.self.layer_norm_k",
    "second_norm": "encoder.layer.{i}.layer_norm_1",
    "gated": "encoder.layer.{i}.mlp.up_gated_layer",
    "output": "encoder.layer.{i}.mlp.down_layer",
    "output_norm": "encoder.layer.{i}.layer_norm_2",
}
DEBERTA_PARTS = {
    "distances": "encoder.rel_embeddings",
    "distances_norm": "encoder.LayerNorm",
    "distance_query": "encoder.layer.{i}.attention.self.pos_query_proj",
    "distance_key": "encoder.layer.{i}.attention.self.pos_key_proj",
    "convolution": "encoder.conv.conv",
    "convolution_norm": "encoder.conv.LayerNorm",
}
DEBERTA_HEADS = FINE_TUNED | {
    "labels_dense": "pooler.dense",
    "choices_dense": "pooler.dense",
    "mlm_decoder": "cls.predictions.decoder",
    # or that of the authors' code
    "mlm_dense": "cls.predictions.transform.dense|lm_predictions.lm_head.dense",
    "mlm_norm": "cls.predictions.transform.LayerNorm|lm_predictions.lm_head.LayerNorm",
    "mlm_bias": "cls.predictions|lm_predictions.lm_head",
}
