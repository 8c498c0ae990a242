"""What clients see: about 1,200 requests with their status, headers and body, over all routes, dialects and heads.

`python -m tests.contract.record` writes answers.jsonl anew, `python -m tests.contract.compare OLD NEW` compares two
checkouts byte for byte on one machine; test_answers compares this checkout with answers.jsonl on any machine.
"""
