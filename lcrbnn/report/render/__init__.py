"""Turn the elements of a report into HTML, Markdown and SVG."""
