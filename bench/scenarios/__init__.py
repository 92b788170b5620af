"""One module per question. Each has `run(context) -> list[Result]`."""
