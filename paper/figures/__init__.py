"""Figures from records that documents quote. There is one module per study, with functions that yield passages.

A passage is a document and a text with figures. paper/passages.py compares the figures with those in the document.
"""

Passage = tuple[str, str]  # path of a document, and text with figures from records
