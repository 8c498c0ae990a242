"""Requests to the heads that the bundled model lacks, on the golden checkpoints: small, with weights of no meaning."""

from typing import Any

from tests.contract.request import NPY, get, on

THE_CAT, PEKING = "The cat sat on the mat.", "我爱北京天安门。"
IN_PARIS = "The cat sat on the mat in Paris."
LONG = "The cat sat on the mat in Paris, and it was warm. " * 12
CONTEXT = "The cat sat on the mat in Paris, and it was warm. Unaffable dogs walked to London by the river."
ASKED = {"question": "Where did the cat sit?", "context": CONTEXT}
CHOICES = {"prompt": "The cat sat on", "choices": ["the mat.", "the river.", "London."]}
TWO_LABELS = ["tea", "the river"]


def tensors(*names: str, **more: Any) -> dict[str, Any]:
    texts = [THE_CAT, PEKING]
    return {"inputs": [{"name": one, "shape": [2], "datatype": "BYTES", "data": texts} for one in names]} | more


BASE = [  # an encoder with all of BERT's own heads
    *on(
        "/embed",
        ("as the artifact says", {"inputs": "a"}),
        ("truncate left", {"inputs": LONG, "truncate": True, "truncation_direction": "Left", "dimensions": 4}),
        ("windows of a stride", {"inputs": [LONG, "a"], "stride": 100, "dimensions": 4, "pooling": "mean"}),
        ("windows of a layer", {"inputs": LONG, "layers": [1], "stride": 0, "layer_pooling": "sum", "dimensions": 4}),
        ("layers summed", {"inputs": THE_CAT, "layers": [1, 2], "layer_pooling": "sum", "pooling": "mean"}),
        ("layers weighted", {"inputs": THE_CAT, "layers": [1, 2], "layer_pooling": [0.25, 0.75], "dimensions": 4}),
        ("all layers", {"inputs": "a", "layers": [0, 1, 2, 3]}),
        ("layers of tokens", {"inputs": "a", "layers": [-1], "pooling": "none"}),
        (
            "layers of words",
            {"inputs": "running", "layers": [1, 2], "layer_pooling": "mean", "pooling": "none", "words": True},
        ),
        ("layers concatenated in NPY", {"inputs": ["a", "b"], "layers": [1, 2], "layer_pooling": "concat"}, NPY),
    ),
    *on(
        "/embed_all",
        ("one text", {"inputs": "a"}),
        ("NPY of a list", {"inputs": ["a", "the cat"]}, NPY),
        ("truncate", {"inputs": "a", "truncate": True}),
    ),
    *on("/attention", ("all layers and heads", {"inputs": "a"})),
    *on("/nsp", ("truncate", {"inputs": ["a", LONG], "truncate": True})),
    *on("/fill-mask", ("a mask that is cut away", {"inputs": LONG + "[MASK]", "truncate": True})),
    *on(
        "/v1/embeddings",
        ("truncate", {"input": [LONG, "a"], "truncate": True, "dimensions": 4}),
        (
            "vLLM's truncation",
            {"input": LONG, "truncate_prompt_tokens": -1, "truncation_side": "left", "dimensions": 4},
        ),
    ),
    *on("/embed_sparse", ("force", {"inputs": "a", "force": True})),
    *on("/rerank", ("by cosine", {"query": THE_CAT, "texts": ["a dog", PEKING, THE_CAT], "return_text": True})),
    *on("/v1/rerank", ("by cosine", {"query": THE_CAT, "documents": ["a dog", {"text": PEKING}], "top_n": 1})),
    *on("/", ("a query", {"query": THE_CAT, "texts": ["a dog"]})),
]
LABELS = [
    *on(
        "/predict",
        ("one text", {"inputs": THE_CAT}),
        ("a pair", {"inputs": [THE_CAT, PEKING]}),
        ("a pair as an object", {"inputs": {"text": "The cat sat.", "text_pair": "It was warm."}}),
        ("a batch", {"inputs": [[THE_CAT], ["The cat sat.", "It was warm."], ["a"]]}),
        ("a list of three texts", {"inputs": ["a", "b", "c"]}),
        ("logits", {"inputs": THE_CAT, "raw_scores": True}),
        ("top_k", {"inputs": THE_CAT, "top_k": 1}),
        ("top_k 0", {"inputs": THE_CAT, "top_k": 0}),
        ("parameters", {"inputs": THE_CAT, "parameters": {}}),
        ("a function", {"inputs": THE_CAT, "parameters": {"function_to_apply": "sigmoid", "top_k": 2}}),
        ("no function", {"inputs": THE_CAT, "function_to_apply": "none"}),
        ("an unknown function", {"inputs": THE_CAT, "function_to_apply": "tanh"}),
        ("logits and a function", {"inputs": THE_CAT, "raw_scores": True, "function_to_apply": "softmax"}),
        ("too long", {"inputs": [[THE_CAT], [LONG]]}),
        ("truncate", {"inputs": LONG, "truncate": True}),
        ("windows", {"inputs": LONG, "long": "windows"}),
        ("windows by the largest", {"inputs": [[LONG], [THE_CAT]], "stride": 20, "window_scores": "max"}),
        ("window_scores alone", {"inputs": THE_CAT, "window_scores": "max"}),
        ("windows of a pair", {"inputs": [LONG, THE_CAT], "long": "windows"}),
        ("candidate labels", {"inputs": THE_CAT, "candidate_labels": TWO_LABELS}),
        ("an empty text", {"inputs": [["a"], [""]]}),
        ("no texts", {"inputs": []}),
        ("four texts in a list", {"inputs": [["a", "b", "c", "d"]]}),
        ("an unknown field", {"inputs": "a", "labels": 1}),
    ),
    *on(
        "/classify",
        ("infinity", {"input": [THE_CAT, PEKING], "model": "any"}),
        ("infinity's logits", {"input": THE_CAT, "raw_scores": True}),
        ("vLLM", {"input": [THE_CAT], "use_activation": True}),
        ("vLLM's logits", {"input": THE_CAT, "use_activation": False}),
        ("an empty text", {"input": ["a", ""]}),
        ("without input", {"inputs": "a"}),
    ),
    *on(
        "/pooling",
        ("labels", {"input": THE_CAT}),
        ("logits in base64", {"input": [THE_CAT], "use_activation": False, "encoding_format": "base64"}),
        ("vectors", {"input": THE_CAT, "task": "embed", "dimensions": 3}),
        ("dimensions of labels", {"input": THE_CAT, "dimensions": 3}),
    ),
    *on(
        "/",
        ("one text", {"inputs": THE_CAT}),
        ("a pair", {"inputs": [THE_CAT, PEKING]}),
        ("top_k", {"inputs": THE_CAT, "parameters": {"top_k": 1}}),
        ("a batch", {"inputs": [["a"], ["b"]]}),
        ("candidate labels", {"inputs": THE_CAT, "parameters": {"candidate_labels": TWO_LABELS}}),
    ),
    *on("/rerank", ("three labels", {"query": "a", "texts": ["b"]})),
    *on("/score", ("three labels", {"text_1": "a", "text_2": "b"}), ("a likelihood", {"inputs": "a"})),
    *on("/fill-mask", ("without the head", {"inputs": "[MASK]"})),
    *on("/nsp", ("without the head", {"inputs": ["a", "b"]})),
    *on("/embed_sparse", ("without the head", {"inputs": "a", "force": True})),
    *on("/embed", ("pooler", {"inputs": "a", "pooling": "pooler", "dimensions": 2})),
    *on(
        "/v2/models/bert-labels/infer",
        ("labels", tensors("text")),
        ("pairs in binary", tensors("text", "text_pair", parameters={"binary_data_output": True, "raw_scores": True})),
        ("a vector by name", tensors("text", outputs=[{"name": "embedding"}], parameters={"dimensions": 3})),
        ("labels and vectors", tensors("text", outputs=[{"name": "embedding"}, {"name": "label"}])),
        ("labels alone", tensors("text", outputs=[{"name": "label", "parameters": {"binary_data": True}}])),
        ("pairs without texts", tensors("text_pair")),
    ),
    get("/v2/models/bert-labels"),
    get("/models"),
    get("/info", compared="keys"),
]
ONE_LABEL = [
    *on(
        "/rerank",
        ("texts", {"query": THE_CAT, "texts": ["a dog", PEKING, THE_CAT]}),
        ("texts in the answer", {"query": THE_CAT, "texts": ["a dog", PEKING], "return_text": True, "top_n": 1}),
        ("logits", {"query": THE_CAT, "texts": ["a dog", PEKING], "raw_scores": True}),
        ("an empty text", {"query": THE_CAT, "texts": ["a", ""]}),
        ("no texts", {"query": THE_CAT, "texts": []}),
        ("an empty query", {"query": "", "texts": ["a"]}),
        ("too many texts", {"query": "a", "texts": ["b"] * 9}),
        ("too long", {"query": THE_CAT, "texts": ["a", LONG]}),
        ("truncate", {"query": THE_CAT, "texts": ["a", LONG], "truncate": True}),
    ),
    *on(
        "/v1/rerank",
        ("documents", {"query": THE_CAT, "documents": ["a dog", PEKING], "model": "any"}),
        (
            "objects in the answer",
            {"query": THE_CAT, "documents": ["a dog", {"text": PEKING}], "return_documents": "object"},
        ),
        ("texts in the answer", {"query": THE_CAT, "documents": ["a dog"], "return_documents": "string"}),
        ("return_documents true", {"query": THE_CAT, "documents": ["a dog"], "return_documents": True}),
        ("Voyage's fields", {"query": THE_CAT, "documents": ["a dog", LONG], "top_k": 1, "truncation": True}),
        ("a document without a text", {"query": THE_CAT, "documents": [{"title": "a"}]}),
    ),
    *on("/v2/rerank", ("documents", {"query": THE_CAT, "documents": ["a dog", PEKING], "top_n": 0})),
    *on(
        "/score",
        ("a pair", {"text_1": THE_CAT, "text_2": ["a dog", PEKING]}),
        ("logits", {"queries": THE_CAT, "items": "a dog", "use_activation": False}),
    ),
    *on("/predict", ("a pair", {"inputs": [THE_CAT, PEKING]})),
    *on("/classify", ("one text", {"input": THE_CAT})),
    *on("/", ("a query", {"query": THE_CAT, "texts": ["a dog"]}), ("a text", {"inputs": THE_CAT})),
    get("/v2/models/distilbert-labels"),
    get("/models"),
]
TAGS = [
    *on(
        "/tag",
        ("one text", {"inputs": IN_PARIS}),
        ("all tags", {"inputs": "a cat", "ignore_labels": []}),
        ("a list", {"inputs": [IN_PARIS, PEKING], "ignore_labels": ["O", "B-PER"]}),
        ("simple", {"inputs": IN_PARIS, "aggregation_strategy": "simple"}),
        ("first", {"inputs": "Unaffable RUNNING, walked", "aggregation_strategy": "first"}),
        ("average", {"inputs": "Unaffable RUNNING, walked", "parameters": {"aggregation_strategy": "average"}}),
        ("max", {"inputs": "Unaffable RUNNING, walked", "aggregation_strategy": "max"}),
        ("an unknown strategy", {"inputs": "a", "aggregation_strategy": "last"}),
        (
            "a strategy twice",
            {"inputs": "a", "aggregation_strategy": "max", "parameters": {"aggregation_strategy": "first"}},
        ),
        (
            "windows",
            {"inputs": LONG, "long": "windows", "aggregation_strategy": "max", "ignore_labels": ["O", "I-LOC"]},
        ),
        ("windows without a strategy", {"inputs": LONG, "long": "windows"}),
        ("too long", {"inputs": ["a", LONG]}),
        ("an empty text", {"inputs": ""}),
        ("a pair", {"inputs": [["a", "b"]]}),
    ),
    *on(
        "/",
        ("one text", {"inputs": IN_PARIS}),
        ("parameters", {"inputs": IN_PARIS, "parameters": {"ignore_labels": ["O", "B-PER"]}}),
        ("no aggregation", {"inputs": "a cat", "aggregation_strategy": "none"}),
    ),
    *on("/predict", ("without the head", {"inputs": "a"})),
]
SPANS = [
    *on(
        "/answer",
        ("a question", ASKED),
        ("inputs", {"inputs": ASKED}),
        ("a list", {"inputs": [ASKED, {"question": "What was warm?", "context": "It was warm."}]}),
        ("top_k", ASKED | {"top_k": 2}),
        ("parameters", ASKED | {"parameters": {"top_k": 1, "max_answer_len": 2}}),
        ("no whole words", ASKED | {"align_to_words": False}),
        ("an impossible answer", ASKED | {"handle_impossible_answer": True}),
        ("a long context", {"question": "What was warm?", "context": LONG, "max_seq_len": 60, "doc_stride": 20}),
        ("a question that is cut", {"question": LONG, "context": "a cat", "max_question_len": 8}),
        ("a question that is too long", {"question": LONG, "context": "a cat"}),
        ("a stride above a window", ASKED | {"max_seq_len": 30, "doc_stride": 30}),
        ("windows above the model's", ASKED | {"max_seq_len": 10_000}),
        ("top_k above the limit", ASKED | {"top_k": 100_000}),
        ("an empty context", {"question": "a", "context": ""}),
        ("no context", {"question": "a"}),
        ("both forms", ASKED | {"inputs": ASKED}),
        ("no questions", {"inputs": []}),
        ("an unknown field", ASKED | {"k": 1}),
    ),
    *on("/", ("a question", ASKED), ("inputs", {"inputs": ASKED}), ("a text", {"inputs": "a", "dimensions": 2})),
    *on("/predict", ("without the head", {"inputs": "a"})),
]
CHOICES_OF_A_PROMPT = [
    *on(
        "/choose",
        ("a prompt", CHOICES),
        ("inputs", {"inputs": CHOICES}),
        ("a text for inputs", {"inputs": CHOICES["prompt"], "choices": CHOICES["choices"]}),
        ("a list", {"inputs": [CHOICES, {"prompt": "a", "choices": ["b", "c"]}]}),
        ("one choice", {"prompt": "a", "choices": ["b"]}),
        ("the same choice twice", {"prompt": "a", "choices": ["b", "b"]}),
        ("no choices", {"prompt": "a", "choices": []}),
        ("an empty choice", {"prompt": "a", "choices": ["b", ""]}),
        ("too many choices", {"prompt": "a", "choices": ["b"] * 9}),
        ("too long", {"prompt": LONG, "choices": ["a", "b"]}),
        ("truncate", {"prompt": LONG, "choices": ["a", "b"], "truncate": True}),
        ("no prompt", {"choices": ["a"]}),
        ("both forms", {"inputs": CHOICES} | CHOICES),
    ),
    *on("/", ("a prompt", CHOICES), ("inputs", {"inputs": CHOICES})),
]
SPARSE = [
    *on(
        "/embed_sparse",
        ("one text", {"inputs": "a"}),
        ("a list", {"inputs": ["a", "the cat"]}),
        ("truncate", {"inputs": LONG, "truncate": True}),
        ("too long", {"inputs": LONG}),
        ("an empty text", {"inputs": ["a", ""]}),
        ("no texts", {"inputs": []}),
    ),
    get("/info", compared="keys"),
]
ZERO_SHOT = [
    *on(
        "/predict",
        ("labels", {"inputs": THE_CAT, "candidate_labels": TWO_LABELS}),
        ("labels in a text", {"inputs": THE_CAT, "candidate_labels": "tea, the river"}),
        ("two texts", {"inputs": [THE_CAT, PEKING], "candidate_labels": TWO_LABELS}),
        ("each label alone", {"inputs": THE_CAT, "parameters": {"candidate_labels": TWO_LABELS, "multi_label": True}}),
        ("one label", {"inputs": THE_CAT, "candidate_labels": ["tea"]}),
        ("a template", {"inputs": THE_CAT, "candidate_labels": TWO_LABELS, "hypothesis_template": "we like {}"}),
        ("a template without braces", {"inputs": "a", "candidate_labels": ["b"], "hypothesis_template": "we like"}),
        ("a template alone", {"inputs": "a", "hypothesis_template": "we like {}"}),
        ("no labels", {"inputs": "a", "candidate_labels": []}),
        ("a pair", {"inputs": [["a", "b"]], "candidate_labels": ["c"]}),
        ("top_k", {"inputs": "a", "candidate_labels": ["c"], "top_k": 1}),
        ("too many pairs", {"inputs": ["a"] * 3, "candidate_labels": ["b", "c", "d"]}),
    ),
    *on("/", ("labels", {"inputs": THE_CAT, "candidate_labels": TWO_LABELS})),
]
PROMPTS = [
    *on(
        "/embed",
        ("the default prompt", {"inputs": "the cat", "dimensions": 4}),
        ("a prompt by name", {"inputs": "the cat", "dimensions": 4, "prompt_name": "passage"}),
        ("an empty prompt by name", {"inputs": "the cat", "dimensions": 4, "prompt_name": "document"}),
        ("an unknown prompt", {"inputs": "the cat", "prompt_name": "title"}),
        ("a prompt twice", {"inputs": "the cat", "prompt_name": "query", "prompt": "a "}),
        ("a prompt in full", {"inputs": ["the cat", "a"], "prompt": "the river: ", "dimensions": 4}),
        ("pooling mean", {"inputs": "the cat", "pooling": "mean", "dimensions": 4}),
        ("windows with a prompt", {"inputs": LONG, "long": "windows", "dimensions": 4}),
    ),
    *on(
        "/v1/embeddings",
        ("Voyage's input_type", {"input": "the cat", "input_type": "document", "dimensions": 4}),
        ("Jina's task", {"input": "the cat", "task": "passage", "dimensions": 4}),
        ("an unknown input_type", {"input": "the cat", "input_type": "title"}),
    ),
    *on(
        "/tokenize",
        ("a prompt", {"inputs": ["a", ["a", "b"]], "prompt_name": "query"}),
        ("an unknown prompt", {"inputs": "a", "prompt_name": "title"}),
    ),
    *on("/similarity", ("the default prompt", {"inputs": {"source_sentence": "the cat", "sentences": ["a", "dog"]}})),
    *on("/embed_all", ("too long", {"inputs": LONG})),
    *on("/embed_sparse", ("a prompt by name", {"inputs": "a", "prompt_name": "title"})),
    get("/info", compared="keys"),
]
OTHER_DEFAULTS = [  # BERT_POOLING=mean, BERT_NORMALIZE=true, BERT_TRUNCATE=true, BERT_ROOT_TASK=nsp
    *on(
        "/embed",
        ("the defaults", {"inputs": "the cat", "dimensions": 4}),
        ("too long", {"inputs": LONG, "dimensions": 4}),
        ("too long, not to be cut", {"inputs": LONG, "truncate": False}),
    ),
    *on("/v1/embeddings", ("too long", {"input": LONG, "dimensions": 4})),
    *on("/fill-mask", ("too long", {"inputs": "[MASK] " + LONG, "top_k": 1})),
    *on("/", ("a pair", {"inputs": ["a", "b"]}), ("a text", {"inputs": "a"})),
    *on("/embed", ("the queue is too slow", {"inputs": "a"}, {"x-request-timeout-ms": "60000"})),
]
