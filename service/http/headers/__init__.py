"""What the headers of a request ask for: its key, the media type and the content coding of its response."""
