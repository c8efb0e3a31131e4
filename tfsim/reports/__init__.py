"""Results as reports: words, Markdown, HTML."""
