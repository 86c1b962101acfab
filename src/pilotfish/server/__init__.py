"""The server: OpenAI's API over one engine, many requests at once."""
