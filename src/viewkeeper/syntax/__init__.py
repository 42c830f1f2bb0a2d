"""Viewkeeper's own statements: lexer, parser, and the statements as values. The parser does not read a view's query."""
