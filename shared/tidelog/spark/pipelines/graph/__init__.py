"""The graph of a pipeline: which topics, tables and outputs there are, and which gets its rows from which.

``parts.py`` makes the graph of a declaration, ``layers.py`` gives every part a place, and ``picture.py`` draws it as
SVG; ``texts.py`` writes it as lines, and for Mermaid. All of it is pure, and needs neither Spark nor Java.
"""
