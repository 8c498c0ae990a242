"""All task routes, by path."""

from service.http.dialects import native, openai, tokens

TASKS = {**native.ROUTES, **openai.ROUTES, **tokens.ROUTES}
