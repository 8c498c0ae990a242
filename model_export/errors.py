"""What stops an export: one class, whose message is the sentence the user reads."""


class ExportError(Exception):
    """The checkpoint cannot be exported as asked. The message names what was found, what was expected and the way out."""
