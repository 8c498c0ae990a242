"""All task routes, by path."""

from service.http.dialects import native, openai, rerank, root, tei

TASKS = {**native.ROUTES, **openai.ROUTES, **tei.ROUTES, **rerank.ROUTES, **root.ROUTES}
