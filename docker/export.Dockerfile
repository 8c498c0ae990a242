# Converts a checkpoint into an artifact: docker run IMAGE CHECKPOINT ARTIFACT [--precision int8] [--prepacked]
# Holds only the exporter and its dependencies: no web server, no service code, no training code.
FROM python:3.12-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

WORKDIR /app
COPY requirements-export.lock pyproject.toml setup.py README.md LICENSE ./
RUN pip install --no-cache-dir --require-hashes -r requirements-export.lock \
    && useradd --system --uid 10001 --no-create-home bert \
    && install --directory --owner=10001 /artifacts
COPY bert_service bert_service
COPY model_export model_export
RUN pip install --no-cache-dir --no-deps .

USER 10001
WORKDIR /
ENTRYPOINT ["bert-export"]
CMD ["/app/model_export/sample", "/artifacts/model"]
