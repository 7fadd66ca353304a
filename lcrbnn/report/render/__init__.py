"""Turns report elements into HTML, Markdown and SVG."""
