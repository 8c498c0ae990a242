"""The names of a BERT's weights in each family's checkpoints: our name -> theirs; {i} is the stored layer.

Names of `*_PARTS` follow the family's prefix ("bert.") if the checkpoint also has heads; those of `*_HEADS` never do.
"""

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
BERT_HEADS = {
    "mlm_dense": "cls.predictions.transform.dense",
    "mlm_norm": "cls.predictions.transform.LayerNorm",
    "mlm_decoder": "cls.predictions.decoder",
    "mlm_bias": "cls.predictions",
    "pair": "cls.seq_relationship",
    "labels": "classifier",
    "tags": "classifier",
    "choices": "classifier",
    "spans": "qa_outputs",
}
ROBERTA_HEADS = {
    "mlm_dense": "lm_head.dense",
    "mlm_norm": "lm_head.layer_norm",
    "mlm_decoder": "lm_head.decoder",
    "mlm_bias": "lm_head",
    "labels_dense": "classifier.dense",
    "labels": "classifier.out_proj",
    "tags": "classifier",
    "choices": "classifier",
    "spans": "qa_outputs",
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
ALBERT_HEADS = {
    "mlm_dense": "predictions.dense",
    "mlm_norm": "predictions.LayerNorm",
    "mlm_decoder": "predictions.decoder",
    "mlm_bias": "predictions",
    "pair": "sop_classifier.classifier",
    "labels": "classifier",
    "tags": "classifier",
    "choices": "classifier",
    "spans": "qa_outputs",
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
DISTILBERT_HEADS = {
    "mlm_dense": "vocab_transform",
    "mlm_norm": "vocab_layer_norm",
    "mlm_decoder": "vocab_projector",
    "labels_dense": "pre_classifier",
    "choices_dense": "pre_classifier",
    "labels": "classifier",
    "tags": "classifier",
    "choices": "classifier",
    "spans": "qa_outputs",
}
ERNIE_PARTS = BERT_PARTS | {"task_type": "embeddings.task_type_embeddings"}
ELECTRA_PARTS = {part: name for part, name in BERT_PARTS.items() if part != "pooler"} | {
    "projection": "embeddings_project"
}
ELECTRA_HEADS = {
    "mlm_dense": "generator_predictions.dense",
    "mlm_norm": "generator_predictions.LayerNorm",
    "mlm_decoder": "generator_lm_head",
    "labels_dense": "classifier.dense",
    "labels": "classifier.out_proj",
    "tags": "classifier",
    "choices_dense": "sequence_summary.summary",
    "choices": "classifier",
    "spans": "qa_outputs",
}
