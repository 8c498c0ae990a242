"""`python sentence_transformers_app.py MODEL PORT`: a small FastAPI application around SentenceTransformer.encode.

Runs in the environment of sentence_transformers.txt, so it imports nothing of this project.
"""

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

app = FastAPI()
model = SentenceTransformer(sys.argv[1], device="cpu")


class Request(BaseModel):
    input: str


@app.post("/embed")
def embed(request: Request) -> dict[str, list[float]]:
    vector: list[float] = model.encode([request.input], normalize_embeddings=True, show_progress_bar=False)[0].tolist()
    return {"embedding": vector}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", access_log=False)
