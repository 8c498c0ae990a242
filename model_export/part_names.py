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
BERT_HEADS = FINE_TUNED | {
    "mlm_dense": "cls.predictions.transform.dense",
    "mlm_norm": "cls.predictions.transform.LayerNorm",
    "mlm_decoder": "cls.predictions.decoder",
    "mlm_bias": "cls.predictions",
    "pair": "cls.seq_relationship",
}
ROBERTA_HEADS = FINE_TUNED | {
    "mlm_dense": "lm_head.dense",
    "mlm_norm": "lm_head.layer_norm",
    "mlm_decoder": "lm_head.decoder",
    "mlm_bias": "lm_head",
    "labels_dense": "classifier.dense",
    "labels": "classifier.out_proj",
}
ALBERT_PARTS = BERT_PARTS | {
    "projection": "encoder.embedding_hidden_mapping_in",
    "query": "encoder.albert_layer_groups.{i}.albert_layers.0.attention.query",
    "key": "encoder.albert_layer_groups.{i}.albert_layers.0.attention.key",
    "value": "encoder.albert_layer_groups.{i}.albert_layers.0.attention.value",
    "attention": "encoder.albert_layer_groups.{i}.albert_layers.0.attention.dense",
    "attention_norm": "encoder.albert_layer_groups.{i}.albert_layers.0.attention.LayerNorm",
    "intermediate": "encoder.albert_layer_groups.{i}.albert_layers.0.ffn",
    "output": "encoder.albert_layer_groups.{i}.albert_layers.0.ffn_output",
    "output_norm": "encoder.albert_layer_groups.{i}.albert_layers.0.full_layer_layer_norm",
    "pooler": "pooler",
}
ALBERT_HEADS = FINE_TUNED | {
    "mlm_dense": "predictions.dense",
    "mlm_norm": "predictions.LayerNorm",
    "mlm_decoder": "predictions.decoder",
    "mlm_bias": "predictions",
    "pair": "sop_classifier.classifier",
}
DISTILBERT_PARTS = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "query": "transformer.layer.{i}.attention.q_lin",
    "key": "transformer.layer.{i}.attention.k_lin",
    "value": "transformer.layer.{i}.attention.v_lin",
    "attention": "transformer.layer.{i}.attention.out_lin",
    "attention_norm": "transformer.layer.{i}.sa_layer_norm",
    "intermediate": "transformer.layer.{i}.ffn.lin1",
    "output": "transformer.layer.{i}.ffn.lin2",
    "output_norm": "transformer.layer.{i}.output_layer_norm",
}
DISTILBERT_HEADS = FINE_TUNED | {
    "mlm_dense": "vocab_transform",
    "mlm_norm": "vocab_layer_norm",
    "mlm_decoder": "vocab_projector",
    "labels_dense": "pre_classifier",
    "choices_dense": "pre_classifier",
}
ERNIE_PARTS = BERT_PARTS | {"task_type": "embeddings.task_type_embeddings"}
ELECTRA_PARTS = {part: name for part, name in BERT_PARTS.items() if part != "pooler"} | {
    "projection": "embeddings_project"
}
ELECTRA_HEADS = FINE_TUNED | {
    "mlm_dense": "generator_predictions.dense",
    "mlm_norm": "generator_predictions.LayerNorm",
    "mlm_decoder": "generator_lm_head",
    "labels_dense": "classifier.dense",
    "labels": "classifier.out_proj",
    "choices_dense": "sequence_summary.summary",
}
ROFORMER_PARTS = {part: name for part, name in ELECTRA_PARTS.items() if part != "position"} | {
    "turns": "encoder.embed_positions"
}
ROFORMER_HEADS = {part: name for part, name in BERT_HEADS.items() if part != "pair"} | {
    part: ELECTRA_HEADS[part] for part in ("labels_dense", "labels", "choices_dense")
}
MPNET_PARTS = BERT_PARTS | {
    "query": "encoder.layer.{i}.attention.attn.q",
    "key": "encoder.layer.{i}.attention.attn.k",
    "value": "encoder.layer.{i}.attention.attn.v",
    "attention": "encoder.layer.{i}.attention.attn.o",
    "attention_norm": "encoder.layer.{i}.attention.LayerNorm",
    "relative": "encoder.relative_attention_bias",
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
MODERNBERT_HEADS = FINE_TUNED | {
    "mlm_dense": "head.dense",
    "mlm_norm": "head.norm",
    "mlm_decoder": "decoder",
    "labels_dense": "head.dense",
    "choices_dense": "head.dense",
    "classifier_norm": "head.norm",
    "spans": "classifier",
}
NOMIC_PARTS = {
    "word": "embeddings.word_embeddings",
    "segment": "embeddings.token_type_embeddings",
    "embedding_norm": "emb_ln",
    "projections": "encoder.layers.{i}.attn.Wqkv",
    "attention": "encoder.layers.{i}.attn.out_proj",
    "attention_norm": "encoder.layers.{i}.norm1",
    "intermediate": "encoder.layers.{i}.mlp.fc12",
    "gate": "encoder.layers.{i}.mlp.fc11",
    "output": "encoder.layers.{i}.mlp.fc2",
    "output_norm": "encoder.layers.{i}.norm2",
    "pooler": "pooler.dense",
}
NOMIC_HEADS = CLASSIFIERS | {
    "mlm_dense": "cls.predictions.transform.dense",
    "mlm_norm": "cls.predictions.transform.layer_norm",
    "mlm_decoder": "cls.predictions.decoder",
    "mlm_bias": "cls.predictions",
}
GTE_PARTS = {
    "word": "embeddings.word_embeddings",
    "segment": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "projections": "encoder.layer.{i}.attention.qkv_proj",
    "attention": "encoder.layer.{i}.attention.o_proj",
    "attention_norm": "encoder.layer.{i}.attn_ln",
    "gated": "encoder.layer.{i}.mlp.up_gate_proj",
    "output": "encoder.layer.{i}.mlp.down_proj",
    "output_norm": "encoder.layer.{i}.mlp_ln",
    "pooler": "pooler.dense",
}
GTE_HEADS = CLASSIFIERS | {
    "mlm_dense": "lm_head.dense",
    "mlm_norm": "lm_head.norm",
    "mlm_decoder": "lm_head.decoder",
}
JINA_PARTS = {part: name for part, name in BERT_PARTS.items() if part not in ("position", "intermediate")} | {
    "gated": "encoder.layer.{i}.mlp.gated_layers",
    "output": "encoder.layer.{i}.mlp.wo",
    "output_norm": "encoder.layer.{i}.mlp.layernorm",
}
JINA_CODE_PARTS = JINA_PARTS | {
    "query_norm": "encoder.layer.{i}.attention.self.layer_norm_q",
    "key_norm": "encoder.layer.{i}.attention.self.layer_norm_k",
    "second_norm": "encoder.layer.{i}.layer_norm_1",
    "gated": "encoder.layer.{i}.mlp.up_gated_layer",
    "output": "encoder.layer.{i}.mlp.down_layer",
    "output_norm": "encoder.layer.{i}.layer_norm_2",
}
PROJECTIONS = {part: ("projections", i, 3) for i, part in enumerate(("query", "key", "value"))}
DEBERTA_PARTS = {part: name for part, name in BERT_PARTS.items() if part not in ("position", "segment", "pooler")} | {
    "query": "encoder.layer.{i}.attention.self.query_proj",
    "key": "encoder.layer.{i}.attention.self.key_proj",
    "value": "encoder.layer.{i}.attention.self.value_proj",
    "distances": "encoder.rel_embeddings",
    "distances_norm": "encoder.LayerNorm",
    "distance_query": "encoder.layer.{i}.attention.self.pos_query_proj",
    "distance_key": "encoder.layer.{i}.attention.self.pos_key_proj",
    "convolution": "encoder.conv.conv",
    "convolution_norm": "encoder.conv.LayerNorm",
}
DEBERTA_HEADS = {part: name for part, name in BERT_HEADS.items() if part != "pair"} | {
    "labels_dense": "pooler.dense",
    "choices_dense": "pooler.dense",
    # or that of the authors' code
    "mlm_dense": "cls.predictions.transform.dense|lm_predictions.lm_head.dense",
    "mlm_norm": "cls.predictions.transform.LayerNorm|lm_predictions.lm_head.LayerNorm",
    "mlm_bias": "cls.predictions|lm_predictions.lm_head",
}
