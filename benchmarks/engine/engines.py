"""The engines that ours is compared with: each function opens a model and returns what runs one batch of texts.

They run in the environment of contenders.txt; a process imports only the engine that it opens. `threads` are divided
among `streams`: as many threads may call the returned function at the same time.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packbert.model_export.artifact.batch import Tokens, pack

Ids = NDArray[np.int32]  # [length]
Vectors = NDArray[np.float32]  # [texts, hidden], of [CLS]
Run = Callable[[Sequence[Ids]], Vectors]
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
CLS = "cls"


def pad(texts: Sequence[Ids]) -> dict[str, NDArray[np.int64]]:
    """A padded batch: arrays [texts, longest] by input name."""
    longest = max(map(len, texts))
    batch = {name: np.zeros((len(texts), longest), np.int64) for name in INPUTS}
    for i, ids in enumerate(texts):
        batch["input_ids"][i, : len(ids)] = ids
        batch["attention_mask"][i, : len(ids)] = 1
    return batch


def open_onnx_runtime(model: Path, threads: int, streams: int, options: Mapping[str, str]) -> Run:  # noqa: ARG001
    """ONNX Runtime on a padded graph."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads // streams
    settings.log_severity_level = 3
    session = ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    types = {i.name: np.int32 if "int32" in i.type else np.int64 for i in session.get_inputs()}

    def run(texts: Sequence[Ids]) -> Vectors:
        batch = pad(texts)
        hidden: Vectors = session.run(
            None, {name: batch[name].astype(kind, copy=False) for name, kind in types.items()}
        )[0]
        return hidden[:, 0]

    return run


def open_torch(model: Path, threads: int, streams: int, options: Mapping[str, str]) -> Run:
    """transformers on torch with torch's own fused attention."""
    import torch
    from transformers import AutoModel

    kind = getattr(torch, options["dtype"])
    bert = AutoModel.from_pretrained(model, attn_implementation="sdpa", dtype=kind).eval()

    def run(texts: Sequence[Ids]) -> Vectors:
        torch.set_num_threads(threads // streams)  # of the thread that calls
        with torch.inference_mode():
            hidden: Vectors = (
                bert(**{name: torch.from_numpy(array) for name, array in pad(texts).items()})
                .last_hidden_state.float()
                .numpy()
            )
        return hidden[:, 0]

    return run


def open_ctranslate2(model: Path, threads: int, streams: int, options: Mapping[str, str]) -> Run:
    """CTranslate2, with a worker for each stream."""
    import ctranslate2

    each = threads // streams
    encoder = ctranslate2.Encoder(str(model), device="cpu", inter_threads=streams, intra_threads=each, **options)

    def run(texts: Sequence[Ids]) -> Vectors:
        return np.array(encoder.forward_batch([ids.tolist() for ids in texts]).last_hidden_state)[:, 0]

    return run


def open_openvino(model: Path, threads: int, streams: int, options: Mapping[str, str]) -> Run:
    """OpenVINO on a padded graph or on our own one; each thread that calls has a request of its own.

    The model is compiled at each start: in bf16, a model from CACHE_DIR corrupted memory (2026.4.1).
    """
    import openvino

    core = openvino.Core()
    read = core.read_model(model)
    ragged = {i.any_name for i in read.inputs} != set(INPUTS)
    hint = "LATENCY" if streams == 1 else "THROUGHPUT"
    settings = {"PERFORMANCE_HINT": hint, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": streams}
    compiled = core.compile_model(read, "CPU", settings | dict(options))
    names = [i.any_name for i in compiled.inputs]
    of_thread = threading.local()

    def run(texts: Sequence[Ids]) -> Vectors:
        if not hasattr(of_thread, "request"):
            of_thread.request = compiled.create_infer_request()
        feeds: Mapping[str, Any] = pack(tokens_of(texts)).feeds if ragged else pad(texts)
        found: Vectors = np.array(of_thread.request.infer({name: feeds[name] for name in names})[0])
        return found if ragged else found[:, 0]

    return run


def tokens_of(texts: Sequence[Ids]) -> list[Tokens]:
    """The texts as sequences that ask for the vector of [CLS]."""
    return [Tokens(ids=ids, types=np.zeros_like(ids), outputs=frozenset({CLS})) for ids in texts]
