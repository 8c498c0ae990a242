"""Advice for a checkpoint that cannot be read as it is: the calls of transformers that convert it."""

import json
from pathlib import Path

from model_export.artifact.source import MAX_DESCRIPTION_BYTES, read_file

TENSORFLOW = {  # pattern of a TensorFlow checkpoint's files -> the class that reads it, "" for the config's own
    "*.ckpt*.index": "BertForPreTraining",
    "*.h5": "",
}


def convert(folder: Path) -> str:
    """The calls that store the checkpoint as safetensors: by the class that it was trained as, with its tokenizer.

    Another class would have heads with random weights instead of the checkpoint's.
    """
    return f'{_class_of(folder)}.from_pretrained("FOLDER").save_pretrained("NEW_FOLDER") {_tokenizer()} of transformers'


def convert_tensorflow(folder: Path, pattern: str) -> str:
    """The calls that convert the TensorFlow checkpoint in `folder`, whose files match `pattern`."""
    if pattern == "*.h5":
        call = f'{_class_of(folder)}.from_pretrained("FOLDER", from_tf=True)'
    else:
        config = 'config=BertConfig.from_json_file("FOLDER/bert_config.json")'
        call = f'{TENSORFLOW[pattern]}.from_pretrained("FOLDER/bert_model.ckpt.index", from_tf=True, {config})'
    return f'{call}.save_pretrained("NEW_FOLDER") {_tokenizer()}'


def _tokenizer() -> str:
    return 'and AutoTokenizer.from_pretrained("FOLDER").save_pretrained("NEW_FOLDER")'


def _class_of(folder: Path) -> str:
    """The class in config.json's architectures; "CLASS", explained, where it names none or several."""
    try:
        content = json.loads(read_file(folder / "config.json", MAX_DESCRIPTION_BYTES))
    except (OSError, ValueError, RecursionError):
        content = None
    stated = content.get("architectures") if isinstance(content, dict) else None
    if isinstance(stated, list) and len(stated) == 1 and str(stated[0]).isidentifier():
        return str(stated[0])
    return "CLASS (the class that saved the checkpoint)"
