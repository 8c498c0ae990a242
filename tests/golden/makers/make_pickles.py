"""Makes the golden pickles: what torch.save writes, in both of its formats, and the arrays that they hold.

    python tests/golden/makers/make_pickles.py

It needs torch; the tests do not. `arrays.npz` has each tensor as float32. `bert.bin` is the golden BERT's state_dict.
"""

import torch
from files import GOLDEN, write_arrays
from safetensors.torch import load_file

FOLDER = GOLDEN / "pickles"


def state_dict() -> dict[str, torch.Tensor]:
    """Every stored type, and what tensors can share: a storage, a part of it, transposed, with an offset."""
    torch.manual_seed(20181011)
    base = torch.randn(6, 5)
    module = torch.nn.Linear(5, 3)
    tensors = {f"linear.{name}": value for name, value in module.state_dict().items()}
    tensors |= {
        "base": base,
        "same": base,
        "part": base[2:4, 1:],
        "transposed": base.T,
        "expanded": base[0].expand(4, 5),
        "parameter": torch.nn.Parameter(torch.randn(4)),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "norm.gamma": torch.randn(5),
    }
    for kind in ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8"):
        tensors[kind] = (100 * torch.rand(2, 3)).to(getattr(torch, kind))
    tensors["bool"] = torch.tensor([True, False, True])
    found = module.state_dict()  # an OrderedDict with _metadata, as of every model
    found.clear()
    found.update(tensors)
    return found


tensors = state_dict()
write_arrays(FOLDER / "arrays.npz", {name: tensor.detach().float().numpy() for name, tensor in tensors.items()})
torch.save(tensors, FOLDER / "zip.bin")
torch.save(tensors, FOLDER / "legacy.bin", _use_new_zipfile_serialization=False)
torch.save(load_file(GOLDEN / "bert" / "model.safetensors"), FOLDER / "bert.bin")
