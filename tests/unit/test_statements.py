"""The statements of our own: what is read, and what is refused with a next step."""

from __future__ import annotations

import pytest

from viewkeeper.errors import BadStatement, Unsupported, ViewkeeperError
from viewkeeper.model import types
from viewkeeper.model.row_names import match_names
from viewkeeper.model.schema import Column
from viewkeeper.syntax.alter import AddColumn, AlterView, DropColumn, Rename, RenameColumn
from viewkeeper.syntax.statements import (
    CreateTable,
    CreateView,
    Describe,
    DropTable,
    DropView,
    Explain,
    Show,
    parse,
    split,
)


def table(text: str) -> CreateTable:
    made = parse(text)
    assert isinstance(made, CreateTable)
    return made


def view(text: str) -> CreateView:
    made = parse(text)
    assert isinstance(made, CreateView)
    return made


def test_create_table_gives_columns_types_and_key() -> None:
    made = parse(
        "CREATE TABLE items (item_id BIGINT, category STRING NOT NULL, price DECIMAL(12, 2), PRIMARY KEY (item_id))"
    )
    assert made == CreateTable(
        "items",
        (
            Column("item_id", types.BIGINT, nullable=False),
            Column("category", types.STRING, nullable=False),
            Column("price", types.decimal(12, 2)),
        ),
        ("item_id",),
    )


def test_key_columns_are_not_null_and_spelled_as_declared() -> None:
    made = table("create table t (Shop int, `Item Id` string, n int, primary key (`item id`, SHOP))")
    assert made.key == ("Item Id", "Shop")
    assert [c.nullable for c in made.columns] == [False, False, True]


def test_the_key_may_be_written_at_its_column() -> None:
    assert table("CREATE TABLE t (a INT PRIMARY KEY, b INT)").key == ("a",)


def test_options_and_if_not_exists() -> None:
    made = table("CREATE TABLE IF NOT EXISTS t (a INT PRIMARY KEY) WITH (Image = 'off', parts = 4, wide = true)")
    assert made.if_not_exists
    assert made.options == {"image": "off", "parts": "4", "wide": "true"}


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("BOOLEAN", "boolean"),
        ("byte", "tinyint"),
        ("TINYINT", "tinyint"),
        ("SHORT", "smallint"),
        ("INT", "int"),
        ("Integer", "int"),
        ("BIGINT", "bigint"),
        ("LONG", "bigint"),
        ("REAL", "float"),
        ("FLOAT", "float"),
        ("DOUBLE", "double"),
        ("DOUBLE PRECISION", "double"),
        ("DECIMAL", "decimal(10,0)"),
        ("NUMERIC(7)", "decimal(7,0)"),
        ("dec(38, 38)", "decimal(38,38)"),
        ("STRING", "string"),
        ("VARCHAR", "string"),
        ("BINARY", "binary"),
        ("DATE", "date"),
        ("TIMESTAMP", "timestamp"),
        ("TIMESTAMP_LTZ", "timestamp"),
        ("TIMESTAMP_NTZ", "timestamp_ntz"),
    ],
)
def test_types_have_one_name(written: str, canonical: str) -> None:
    assert table(f"CREATE TABLE t (k INT PRIMARY KEY, c {written} NOT NULL)").columns[1] == Column(
        "c", types.parse_type(canonical), False
    )


def test_keywords_may_be_names_as_in_spark() -> None:
    made = table("CREATE TABLE order (date DATE, key INT, primary STRING, PRIMARY KEY (key))")
    assert (made.name, [c.name for c in made.columns]) == ("order", ["date", "key", "primary"])


def test_a_query_is_kept_as_it_was_written() -> None:
    query = "WITH x AS (SELECT 'a; -- é' AS s,  \"q\" FROM `t u`) /* why */\n  SELECT s\tFROM x WHERE s RLIKE r'\\d'"
    made = view(f"CREATE MATERIALIZED VIEW v AS -- the view\n {query} ; -- done")
    assert made == CreateView("v", query)


def test_create_view_with_key_and_options() -> None:
    made = view("create or replace materialized view V key (a, `b c`) with (strategy = 'SNI') as (select 1 as a)")
    assert made == CreateView("V", "(select 1 as a)", ("a", "b c"), {"strategy": "SNI"}, or_replace=True)
    assert view("CREATE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT 1").if_not_exists


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("DROP TABLE t", DropTable("t")),
        ("drop table if exists `t-1`;", DropTable("t-1", if_exists=True)),
        ("DROP MATERIALIZED VIEW v", DropView("v")),
        ("DROP MATERIALIZED VIEW IF EXISTS v", DropView("v", if_exists=True)),
        ("/* all */ show\n tables ;;", Show("tables")),
        ("SHOW VIEWS -- please", Show("views")),
        ("DESCRIBE items", Describe("items")),
        ("explain by_category", Explain("by_category")),
    ],
)
def test_small_statements(text: str, statement: object) -> None:
    assert parse(text) == statement


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("CREATE TABLE t (a INT)", "PRIMARY KEY"),
        ("CREATE TABLE t (a INT, A STRING, PRIMARY KEY (a))", "column A is there twice"),
        ("CREATE TABLE t (a INT, PRIMARY KEY (a, A))", "key column A is there twice"),
        ("CREATE TABLE t (a INT, PRIMARY KEY (b))", "key column b"),
        ("CREATE TABLE t (a INT PRIMARY KEY, PRIMARY KEY (a))", "more than one PRIMARY KEY"),
        ("CREATE TABLE t (a DOUBLE, PRIMARY KEY (a))", "DOUBLE"),
        ("CREATE TABLE t (a FLOAT PRIMARY KEY)", "FLOAT"),
        ("CREATE TABLE t (`¤w` INT, PRIMARY KEY (`¤w`))", "¤w"),
        ("CREATE TABLE t (k INT PRIMARY KEY, `¤x` INT)", "¤x"),
        ("CREATE TABLE t (k INT PRIMARY KEY, d DECIMAL(39,2))", "DECIMAL(39,2)"),
        ("CREATE TABLE t (k INT PRIMARY KEY, d DECIMAL(5,6))", "DECIMAL(5,6)"),
        ("CREATE TABLE t (k INT PRIMARY KEY, d DECIMAL(x))", "'x'"),
        ("CREATE TABLE t (k INT PRIMARY KEY, d)", "Column d has no type"),
        ("CREATE TABLE t (k INT UNIQUE, PRIMARY KEY (k))", "'UNIQUE'"),
        ("CREATE TABLE t (k INT PRIMARY KEY", "The end of the text"),
        ("CREATE TABLE t (k INT PRIMARY KEY) PARTITIONED BY (k)", "'PARTITIONED'"),
        ("CREATE TABLE a.t (k INT PRIMARY KEY)", "one part"),
        ("CREATE TABLE `` (k INT PRIMARY KEY)", "empty"),
        ("CREATE TABLE 't' (k INT PRIMARY KEY)", "'t'"),
        ("CREATE TABLE t (k INT PRIMARY KEY) WITH (a = 'x', A = 'y')", "Option a"),
        ("CREATE TABLE t (k INT PRIMARY KEY) WITH (a)", "="),
        ("ALTER SYSTEM t", "'ALTER'"),
        ("CREATE MATERIALIZED VIEW v", "AS"),
        ("CREATE MATERIALIZED VIEW v AS", "no query"),
        ("CREATE MATERIALIZED VIEW v AS DROP TABLE t", "'DROP TABLE t'"),
        ("CREATE MATERIALIZED VIEW v (a) AS SELECT 1", "list of columns"),
        ("CREATE MATERIALIZED VIEW v KEY (a, A) AS SELECT 1 AS a", "key column A"),
        ("CREATE OR REPLACE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT 1", "OR REPLACE"),
        ("CREATE VIEW v AS SELECT 1", "Plain views"),
        ("SELECT 1", "'SELECT'"),
        ("INSERT INTO t VALUES (1)", "'INSERT'"),
        ("SHOW TABLES t", "'t'"),
        ("DROP TABLE", "ends"),
        ("ALTER TABLE t ALTER COLUMN a", "not by the end of the text"),
        ("SHOW TABLES; SHOW VIEWS", "2 statements"),
        ("SELECT 'open", "unclosed"),
        (" -- nothing\n;", "no statement"),
        ("", "no statement"),
    ],
)
def test_malformed_statements_say_what_and_what_next(text: str, names: str) -> None:
    with pytest.raises(BadStatement) as caught:
        parse(text)
    assert names in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "type_", ["ARRAY<INT>", "MAP<STRING,INT>", "VARCHAR(10)", "CHAR(3)", "INTERVAL", "UUID", "INT(4)"]
)
def test_unsupported_types_are_named_with_what_to_use(type_: str) -> None:
    with pytest.raises(Unsupported) as caught:
        parse(f"CREATE TABLE t (k INT PRIMARY KEY, c {type_})")
    assert "Column c" in caught.value.message
    assert "STRING" in caught.value.hint


def test_an_unknown_statement_lists_the_known_ones() -> None:
    with pytest.raises(
        BadStatement, match="CREATE MATERIALIZED VIEW, ALTER MATERIALIZED VIEW, DROP MATERIALIZED VIEW, CREATE INDEX"
    ):
        parse("GRANT ALL TO me")


def test_split_keeps_each_statement_of_a_script() -> None:
    script = "-- the shop\nCREATE TABLE t (a INT PRIMARY KEY);\n\nSHOW  TABLES -- all\n; ; EXPLAIN `a;b`"
    assert split(script) == ["CREATE TABLE t (a INT PRIMARY KEY)", "SHOW  TABLES", "EXPLAIN `a;b`"]
    assert split("-- nothing") == []


@pytest.mark.parametrize(
    "text", ["CREATE", "CREATE TABLE t (", "DROP", "ALTER TABLE", "KEY", "((", "`", "\x00", "EXPLAIN"]
)
def test_no_text_escapes_as_another_error(text: str) -> None:
    with pytest.raises(ViewkeeperError):
        parse(text)


def test_a_column_is_added_or_dropped_and_a_view_suspended_or_resumed() -> None:
    assert parse("ALTER TABLE t ADD COLUMN c INT") == AddColumn("t", Column("c", types.INT))
    assert parse("alter table t add c decimal(9,2)") == AddColumn("t", Column("c", types.decimal(9, 2)))
    assert parse("ALTER TABLE t ADD c INT NOT NULL DEFAULT 3") == AddColumn(
        "t", Column("c", types.INT, nullable=False, default="3")
    )
    assert parse("ALTER TABLE t DROP COLUMN c") == DropColumn("t", "c")
    assert parse("ALTER TABLE t DROP COLUMN c RESTRICT") == DropColumn("t", "c")
    assert parse("ALTER TABLE t DROP IF EXISTS c CASCADE") == DropColumn("t", "c", if_exists=True, cascade=True)
    assert parse("alter table t drop if exists `a b`") == DropColumn("t", "a b", if_exists=True)
    assert parse("ALTER MATERIALIZED VIEW v RESUME") == AlterView("v", "resume")
    assert parse("ALTER MATERIALIZED VIEW v SUSPEND") == AlterView("v", "suspend")
    assert parse("ALTER MATERIALIZED VIEW v RENAME TO w") == Rename("v", "w", is_view=True)
    assert parse("ALTER TABLE t RENAME TO `u v`") == Rename("t", "u v", is_view=False)
    assert parse("ALTER TABLE t RENAME COLUMN a TO b") == RenameColumn("t", "a", "b")


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t ADD c INT NOT NULL",
        "ALTER TABLE t DROP",
        "ALTER TABLE t RENAME c",
        "ALTER TABLE t RENAME COLUMN a TO `¤b`",
        "ALTER TABLE t ADD c INT NOT NULL DEFAULT NULL",
        "ALTER TABLE t ADD c INT DEFAULT 3 PRIMARY KEY",
        "ALTER TABLE t ALTER COLUMN c SET",
        "ALTER TABLE t MODIFY c INT",
        "ALTER MATERIALIZED VIEW v PAUSE",
    ],
)
def test_other_alterations_are_refused(text: str) -> None:
    with pytest.raises(BadStatement):
        parse(text)


def test_of_many_tables_and_views_some_are_shown() -> None:
    assert parse("SHOW VIEWS LIKE 'sales_*'") == Show("views", "sales_*")
    assert parse("show tables") == Show("tables")
    names = ["a.b", "axb", "Sales_1", "sales_20", "presales_1"]
    assert match_names(names, "sales_*") == ["Sales_1", "sales_20"]
    assert match_names(names, "a.b|*sales_1") == ["a.b", "Sales_1", "presales_1"]
    assert match_names(names, "") == []
    for spelt in ("SHOW VIEWS LIKE", "SHOW TABLES LIKE *"):
        with pytest.raises(BadStatement, match="where a pattern should be") as refused:
            parse(spelt)
        assert refused.value.hint.startswith("Write LIKE 'pattern'")


def test_a_pattern_takes_the_wildcard_of_queries_too() -> None:
    names = ["sales_1", "presales_1", "100% wool", "salesx1"]
    assert match_names(names, "%sales_%") == ["sales_1", "presales_1"]
    assert match_names(names, "100%") == ["100% wool"]
    assert match_names(names, "100% wool|sales?1") == ["100% wool"]


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE {} (a INT PRIMARY KEY)",
        "CREATE MATERIALIZED VIEW {} AS SELECT 1 AS a",
        "CREATE MATERIALIZED VIEW {} CLUSTER BY (a) OF t, u",
        "CREATE INDEX {} ON t (a)",
        "ALTER TABLE t RENAME TO {}",
        "ALTER MATERIALIZED VIEW v RENAME TO {}",
        "ALTER INDEX i RENAME TO {}",
    ],
)
def test_new_names_have_at_most_200_bytes(text: str) -> None:
    parse(text.format("n" * 200))
    parse(text.format("ä" * 100))
    for long in ("n" * 201, "ä" * 101, "n" * 100_000):
        with pytest.raises(BadStatement, match=r"bytes, 200 is the most\.") as refused:
            parse(text.format(long))
        assert len(str(refused.value)) < 200


def test_what_has_a_longer_name_already_is_still_reached() -> None:
    long = "n" * 300
    assert parse(f"DROP TABLE {long}") == DropTable(long)
    assert parse(f"DESCRIBE {long}") == Describe(long)
    renamed = parse(f"ALTER TABLE {long} RENAME TO short")
    assert isinstance(renamed, Rename)


def test_materialized_views_are_shown_as_views_are() -> None:
    assert parse("show materialized views like 'a*'") == parse("SHOW VIEWS LIKE 'a*'") == Show("views", "a*")


def test_a_family_without_parameters_is_told_what_to_write() -> None:
    with pytest.raises(BadStatement, match="View v declares no parameter") as refused:
        parse("CREATE MATERIALIZED VIEW v PARAMETERS () AS SELECT 1 AS a")
    assert "leave PARAMETERS out" in refused.value.hint
