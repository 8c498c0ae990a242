"""What writes the parts of the pages that come from code and from answers: `python -m docs.tools`."""
