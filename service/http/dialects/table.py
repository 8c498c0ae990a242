"""All task routes, by path."""

from service.http.dialects import native, openai

TASKS = {**native.ROUTES, **openai.ROUTES}
