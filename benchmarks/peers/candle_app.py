"""`python candle_app.py MODEL PORT`: a small FastAPI application around BERT in candle, a framework of Rust, with MKL.

Runs in the environment of candle.txt, so it imports nothing of this project. The wheel takes ids of a hub only, and
looks into the hub's cache first: so the local folder stands in there as a snapshot.
"""

import os
import sys
from pathlib import Path

import embed_anything
import uvicorn
from embed_anything import EmbeddingModel, Pooling
from fastapi import FastAPI
from pydantic import BaseModel

REVISION = "0" * 40  # a commit, which the cache need not look up
SNAPSHOT = Path(os.environ["HF_HOME"]) / "hub" / "models--local--model" / "snapshots" / REVISION
SNAPSHOT.parent.mkdir(parents=True, exist_ok=True)
SNAPSHOT.unlink(missing_ok=True)
SNAPSHOT.symlink_to(sys.argv[1])

app = FastAPI()
model = EmbeddingModel.from_pretrained_hf(model_id="local/model", revision=REVISION, pooling=Pooling.Mean)


class Request(BaseModel):
    input: str


@app.post("/embed")
def embed(request: Request) -> dict[str, list[float]]:
    return {"embedding": embed_anything.embed_query([request.input], embedder=model)[0].embedding}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False)
