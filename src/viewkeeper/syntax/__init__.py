"""Our own statements: lexer, parser, and the statements as values. The text of a query passes through unread."""
