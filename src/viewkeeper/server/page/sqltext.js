// SQL highlighting and keywords.

export const KEYWORDS = `SELECT FROM WHERE GROUP BY HAVING ORDER LIMIT JOIN LEFT RIGHT FULL OUTER INNER CROSS SEMI ANTI ON USING
AS AND OR NOT IN IS NULL LIKE BETWEEN CASE WHEN THEN ELSE END DISTINCT UNION ALL EXCEPT INTERSECT WITH VALUES INSERT UPSERT INTO
DELETE CREATE TABLE MATERIALIZED VIEW REPLACE DROP ALTER ADD COLUMN PRIMARY KEY IF EXISTS SHOW TABLES VIEWS DESCRIBE EXPLAIN
SUSPEND RESUME OVER PARTITION ROWS RANGE ASC DESC NULLS FIRST LAST DATE TIMESTAMP INTERVAL CAST TRUE FALSE STRING BIGINT INT
DOUBLE DECIMAL BOOLEAN BINARY SMALLINT TINYINT FLOAT`.split(/\s+/);
const WORDS = new Set(KEYWORDS);
const TOKEN = /(--[^\n]*|\/\*[\s\S]*?\*\/)|('(?:[^'\\]|\\.|'')*'?|"(?:[^"\\]|\\.)*"?)|(`[^`]*`?)|(\b\d[\w.]*)|([A-Za-z_]\w*)|(\s+|.)/g;

/** The tokens of the text: [text, kind, start]. */
export function pieces(text) {
  const found = [];
  for (const match of text.matchAll(TOKEN)) {
    const kind = match[1] ? "com" : match[2] ? "str" : match[4] ? "lit" : match[5] && WORDS.has(match[5].toUpperCase()) ? "kw" : "";
    found.push([match[0], kind, match.index]);
  }
  return found;
}

/** Fills an element with highlighted SQL; the text between `from` and `to` is marked as an error. */
export function coloured(element, text, from = -1, to = -1) {
  element.replaceChildren(...pieces(text).map(([piece, kind, start]) => {
    const wrong = start < to && start + piece.length > from && piece.trim();
    if (!kind && !wrong) return piece;
    const span = document.createElement("span");
    if (kind) span.classList.add(kind);
    if (wrong) span.classList.add("wrong");
    span.textContent = piece;
    return span;
  }));
}
