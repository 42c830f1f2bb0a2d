"""The awkward values and the SQL expressions over them, on which Spark and the renderer are compared.

A group is a small table and a list of expressions. In a list two spaces or a new line part the expressions.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from viewkeeper.model import types


@dataclass(frozen=True)
class Group:
    """`columns`: name, Spark type and values, dates and timestamps as numbers. The table is their cross product."""

    name: str
    columns: tuple[tuple[str, str, tuple[Any, ...]], ...]
    cases: tuple[str, ...]

    def data(self) -> pa.Table:
        rows = list(itertools.product(*(values for _, _, values in self.columns)))
        arrays = [_array([r[i] for r in rows], type_) for i, (_, type_, _) in enumerate(self.columns)]
        return pa.table(arrays, names=[name for name, _, _ in self.columns])


def _array(values: list[Any], type_: str) -> pa.Array:
    if type_ in ("date", "timestamp", "timestamp_ntz"):
        return pa.array(values, pa.int32() if type_ == "date" else pa.int64()).cast(
            types.arrow(types.parse_type(type_))
        )
    return pa.array(values, types.arrow(types.parse_type(type_)))


def cases(text: str) -> tuple[str, ...]:
    return tuple(re.split(r"\s{2,}|\n", text.strip()))


def both(type_: str, values: tuple[Any, ...], *expressions: str) -> Group:
    """Two columns x and y of one type."""
    return Group(type_, (("x", type_, values), ("y", type_, values)), expressions)


# --- Numbers ----------------------------------------------------------------------------------------------------------


def integers(bits: int) -> tuple[int | None, ...]:
    top = 2 ** (bits - 1)
    return (None, 0, 1, -1, 2, 3, -3, 7, 10, -10, 100, top - 1, -top, top - 2, 1 - top)


INTEGER_CASES = cases(
    r"""
    x + y  x - y  x * y  x / y  x div y  x % y  pmod(x, y)  -x  +x  abs(x)  x = y  x <> y  x < y  x <= y  x > y
    x >= y  x <=> y  x IS NULL  x IS NOT NULL  x IN (1, 2, y)  x IN (1, 10, 100)  x NOT IN (1, NULL)
    x BETWEEN 0 AND y  greatest(x, y)  least(x, y)  coalesce(x, y, 5)  nullif(x, y)  nvl2(x, y, 1)
    if(x > y, x, y)  CASE WHEN x > y THEN x WHEN x = y THEN 0 END
    CASE x WHEN 1 THEN 'one' WHEN 2 THEN 'two' ELSE 'many' END  x <> 0 AND 10 / x > 1  10 / x > 1 AND x <> 0
    x = 0 OR 10 / x > 1  10 / x > 1 OR x = 0  NOT (x <> 0 AND 10 / x > 1)  CASE WHEN x <> 0 THEN 1 / x END
    coalesce(x, 1 / y)  coalesce(1 / y, x)  if(y <> 0, x / y, 0)  x + 1 / y  1 / y + x  (x / y) / y
    x IN (1 / y, 2)  1 / y IN (x, 2)  x IS NULL AND y / 0 > 1  x + CAST(1 AS TINYINT)  x * 2 > y  try_add(x, y)
    try_subtract(x, y)  try_multiply(x, y)  try_divide(x, y)  CAST(x AS TINYINT)  CAST(x AS SMALLINT)
    CAST(x AS INT)  CAST(x AS BIGINT)  CAST(x AS FLOAT)  CAST(x AS DOUBLE)  CAST(x AS DECIMAL(5,2))
    CAST(x AS DECIMAL(20,0))  CAST(x AS STRING)  CAST(x AS BOOLEAN)  try_cast(x AS TINYINT)
    try_cast(x AS DECIMAL(3,1))
    """
)

BITS = cases(
    r"""
    x & y  x | y  x ^ y  ~x  bit_count(x)  hex(x)  round(x, -1)  bround(x, -1)  round(x, -2)  round(x, 2)
    floor(x)  ceil(x)  chr(x)  sign(x)  substring('héllo wörld', x, y)  repeat('ab', x % 5)
    lpad('abc', x % 7, '*')  date_add(DATE'2020-01-01', x % 1000)
    """
)

SHIFTS = cases(
    r"""
    shiftleft(x, y)  shiftright(x, y)  shiftrightunsigned(x, y)  x << 3  x >> 33  x >>> 1
    add_months(DATE'2020-01-31', x % 100)  make_date(2020, x, 1)  space(x % 9)  left('héllo', x % 9)
    right('héllo', x % 9)
    """
)

LONG_BITS = cases(
    """
    shiftleft(x, y)  shiftright(x, y)  shiftrightunsigned(x, y)  bit_count(x)  hex(x)  bin(x)  ~x  round(x, -3)
    bround(x, -18)  chr(x)  x & y
    """
)

_FLOATS = (
    None, 0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 0.1, 3.7, -3.7, 0.001, 0.0001, 123456.75, 10000000.0,
    -12345678.0, 127.5, -128.9, 2147483648.0, 9.223372036854776e+18, -9.223372036854776e+18, 1e+20, 3e+38, math.nan,
    math.inf, -math.inf,
)  # fmt: skip
DOUBLES = (*_FLOATS, 0.1 + 0.2, 1e16, 1e22, 1.7976931348623157e308, 2.2250738585072014e-308, 5e-324, 1e-7, 1e39)
# 2^31 is left out: Java 17 writes a float of it with one digit too many.
FLOATS = (*(v for v in _FLOATS if v != 2**31), 3.4028234663852886e38, 1.401298464324817e-45, 16777216.0)

FLOAT_CASES = cases(
    r"""
    x + y  x - y  x * y  x / y  x % y  pmod(x, y)  -x  abs(x)  x = y  x <> y  x < y  x <= y  x > y  x >= y
    x <=> y  x IN (0.0, y)  x IN (0, 1, 'NaN')  greatest(x, y)  least(x, y)  coalesce(x, y)  nullif(x, y)
    x BETWEEN y AND 1  CAST(x AS TINYINT)  CAST(x AS SMALLINT)  CAST(x AS INT)  CAST(x AS BIGINT)
    CAST(x AS FLOAT)  CAST(x AS DOUBLE)  CAST(x AS DECIMAL(5,2))  CAST(x AS DECIMAL(38,18))
    CAST(x AS DECIMAL(20,0))  CAST(x AS STRING)  CAST(x AS BOOLEAN)  try_cast(x AS INT)
    try_cast(x AS DECIMAL(5,1))
    """
)

FLOAT_MATHS = cases(
    r"""
    isnan(x)  nanvl(x, y)  sign(x)  sqrt(x)  rint(x)  x <> x  atan2(x, y) IS NULL  ln(x) IS NULL  log10(x) IS NULL
    log2(x) IS NULL  log(x, y) IS NULL  isnan(pow(x, y))  isnan(exp(x))  isnan(asin(x))  isnan(sin(x))
    round(x, 0)  round(x, 1)  round(x, 2)  round(x, 3)  bround(x, 0)  bround(x, 1)  bround(x, 2)  bround(x, 3)
    round(x)  floor(x)  ceil(x)
    """
)

DECIMAL_CASES = cases(
    """
    x + y  x - y  x * y  x / y  x div y  x % y  pmod(x, y)  x = y  x < y  x <=> y  -x  abs(x)  greatest(x, y)
    coalesce(x, y)  try_add(x, y)  try_divide(x, y)  try_multiply(x, y)  CAST(x AS TINYINT)  CAST(x AS INT)
    CAST(x AS BIGINT)  CAST(x AS FLOAT)  CAST(x AS DOUBLE)  CAST(x AS DECIMAL(5,2))  CAST(x AS DECIMAL(38,10))
    CAST(x AS STRING)  CAST(x AS BOOLEAN)  CAST(y AS DECIMAL(10,1))  try_cast(x AS DECIMAL(5,2))
    try_cast(x AS INT)  100.00 * x / y  x * (1 - y)  x / 3  x / 7.0  x + 1  x * 1.5
    """
)
ROUNDING = cases(
    """
    round(x)  round(x, 0)  round(x, 1)  round(x, 2)  round(x, 3)  bround(x, 0)  bround(x, 1)  bround(x, 2)  bround(x, 3)
    floor(x)  ceil(x)  round(x, -1)  bround(x, -2)  round(x, -5)  ceil(x, 1)  floor(x, 1)  floor(x, -1)  sign(x)
    """
)


def decimal_values(p: int, s: int) -> tuple[Decimal | None, ...]:
    top = 10**p - 1
    one = 10**s
    unscaled = {0, 1, 5, 15, 95, top, top // 2, top // 3, top // 7, one, 3 * one, 9 * one // 20, 10 ** (p // 2)}
    signed = sorted({sign * u for u in unscaled for sign in (1, -1) if u <= top})
    return (None, *(Decimal(f"{u}E-{s}") for u in signed))


def decimals(p1: int, s1: int, p2: int, s2: int) -> Group:
    left, right = f"decimal({p1},{s1})", f"decimal({p2},{s2})"
    columns = (("x", left, decimal_values(p1, s1)), ("y", right, decimal_values(p2, s2)[::2]))
    return Group(f"{left} and {right}", columns, DECIMAL_CASES)


def rounding(p: int, s: int) -> Group:
    return Group(f"rounding decimal({p},{s})", (("x", f"decimal({p},{s})", decimal_values(p, s)),), ROUNDING)


# --- Text -------------------------------------------------------------------------------------------------------------

TEXTS = (
    None, "", " ", "a", "abc", "ABC", "aBc dEf", "héllo", "日本語", "😀x", "a%b", "a_b", "a\\b", "  pad  ", "\t x \n",
    "straße", "ΑΣ", "İi", "ﬁ", "e\u0301a", "abcabc", "a,b,,c", "it's", "a\nb", "x" * 40, "a b  c",
)  # fmt: skip

TEXT_CASES = cases(
    r"""
    upper(s)  lower(s)  initcap(s)  length(s)  octet_length(s)  bit_length(s)  char_length(s)  reverse(s)
    ascii(s)  s || t  concat(s, '-', t)  concat_ws(',', s, t, 'z')  concat_ws(s, t, 'z', t)  trim(s)  ltrim(s)
    rtrim(s)  btrim(s, 'ab ')  trim(LEADING 'a' FROM s)  trim(TRAILING 'c' FROM s)  trim(BOTH t FROM s)
    replace(s, 'b', 'xx')  replace(s, t, '*')  replace(s, 'a')  instr(s, 'b')  instr(s, t)  locate('b', s)
    locate(t, s, 2)  locate('b', s, 3)  position(t IN s)  lpad(s, 5, 'xy')  rpad(s, 5, 'é')  lpad(s, 2)
    rpad(s, 5, t)  left(s, 2)  right(s, 2)  right(s, 0)  repeat(s, 2)  space(2) || s  translate(s, 'abc', 'xy')
    translate(s, t, 'xyz')  substring_index(s, 'b', 1)  substring_index(s, ',', -2)  substring_index(s, 'ab', 2)
    split_part(s, ',', 2)  split_part(s, t, -1)  md5(s)  sha1(s)  sha2(s, 256)  hex(s)  unhex(s)
    encode(s, 'UTF-8')  decode(encode(s, 'utf-8'), 'utf-8')  s LIKE 'a%'  s LIKE '%b%'  s LIKE '%c'  s LIKE 'a_c'
    s LIKE '_'  s LIKE 'a\%b'  s LIKE 'a%c%'  s NOT LIKE '%b_'  s LIKE 'a/%b' ESCAPE '/'  s LIKE t  s ILIKE 'A%'
    s LIKE ALL ('a%', '%c%')  s LIKE ANY ('a_b', '日%', '%x')  s NOT LIKE ALL ('a%', '_')  startswith(s, 'a')
    endswith(s, t)  contains(s, t)  s = t  s < t  s <=> t  s >= 'a'  s IN ('a', 'abc', t)  greatest(s, t)
    least(s, t, 'b')  coalesce(s, t)  nullif(s, t)  s BETWEEN 'a' AND 'b'  s RLIKE '^a.*c$'  s RLIKE '[0-9]|b+'
    s RLIKE '\\s'  s RLIKE '^.$'  s RLIKE 'a.b'  regexp_extract(s, '([a-c])(.)', 2)  regexp_extract(s, 'b(c)?', 1)
    s RLIKE '^(a|日)'  s RLIKE '[^a-z ]'  s RLIKE 'b{2,}|\\d+$'  s RLIKE 'a(?:b|c)*?c'  regexp_extract(s, '^(\\w+)', 1)
    regexp_replace(s, '\\W', '')  regexp_replace(s, '[ab]+', '<$0>')  regexp_replace(s, '(.)b', '$1-')
    CAST(s AS BINARY)  CAST(CAST(s AS BINARY) AS STRING)  if(s = 'a', s, t)  s IS NULL OR t = ''
    """
)

SUBSTRINGS = cases(
    """
    substring(s, i, n)  substring(s, i)  substr(s, 2, 2)  substring(s, -2)  substring(s, 0, 2)  left(s, n)
    locate('l', s, i)  lpad(s, i % 10, 'xy')
    """
)
ARRAYS = cases(
    """
    split(s, ',')[i]  split(s, ',')[0]  size(split(s, ','))  element_at(split(s, '[,;]'), i)  split_part(s, ',', i)
    split(s, '[,;]')[1]
    """
)

NUMBERS_IN_TEXT = (
    None, "", " ", "0", "1", "-1", "+7", " 42 ", "\t9\n", "127", "128", "-129", "32768", "2147483647", "2147483648",
    "9223372036854775807", "9223372036854775808", "1.0", "1.5", "-2.5", ".5", "5.", ".", "1e3", "1E-3", "1.5e2",
    "1e400", "-1e400", "1e-400", "1d", "1.5f", "0x10", "1_000", "NaN", "nan", "inf", "-Infinity", "+INF", "infinit",
    "abc", "1 2", "--1", "+", "12345678901234567890123456789012345678901", "0.00000000000000001e17", "99.995",
    "-99.995", "1e37", "1e38", "true", "F", " yes ", "No", "t", "on", "y", "0.1", "123456789.123456789", "１",
)  # fmt: skip
NUMBER_TYPES = [
    "BOOLEAN",
    "TINYINT",
    "SMALLINT",
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(5,2)",
    "DECIMAL(38,0)",
    "DECIMAL(38,18)",
]
NUMBER_READINGS = tuple(f"{cast}(s AS {type_})" for cast in ("CAST", "try_cast") for type_ in NUMBER_TYPES)

# --- Dates and times --------------------------------------------------------------------------------------------------

TIMES_IN_TEXT = (
    None, "", "2020", "2020-1", "2020-01-02", "2020-1-2", " 2020-01-02 ", "2020-01-02T", "2020-01-02 junk",
    "2020-01-02Tjunk", "2020-13-01", "2020-02-30", "2019-02-29", "2020-02-29", "0001-01-01", "0000-01-01",
    "-0001-01-01", "+2020-01-01", "10000-01-01", "99999-12-31", "999-01-01", "20-01-01", "2020/01/02",
    "2020-01-02 10", "2020-01-02 10:11", "2020-01-02 10:11:12", "2020-01-02T10:11:12.1",
    "2020-01-02 10:11:12.123456789", "2020-01-02 1:2:3", "2020-01-02 24:00:00", "2020-01-02 10:60:00",
    "2020-01-02 10:11:12Z", "2020-01-02 10:11:12 UTC", "2020-01-02 10:11:12+01:00", "2020-01-02 10:11:12-8:30",
    "2020-01-02 10:11:12.5+5", "2020-01-02 10:11:12GMT+3", "2020-01-02 10:11:12+19:00", "2020-01-02 10:11:12+18:00",
    "1969-12-31 23:59:59.999999", "2020-01-02 10:11:12.", "2020-01-02 10:", "2020-01-02 10:11:12 +01:00", "2020-01",
    "2020-01-", "2020-001-01", "2020-01-02 10:11:12+1:5", "2020-01-02 10:11:12+0530", "2020-01-02 10:11:12UTC+01",
    "1500-06-15", "epoch", "now", "2020-01-02 10:11Z", "2020-01-02 10Z", "T", "20200102",
)  # fmt: skip
TIME_READINGS = tuple(f"{c}(s AS {t})" for c in ("CAST", "try_cast") for t in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"))

PATTERNED = (
    None, "", "2020/01/02", "2020/1/2", "+12020/01/02", "12020/01/02", "0000/01/01", "0001/01/01", "2020/01/02 ",
    "2020/02/30", "2020/13/01", "20200102", "12:30", "24:00", "23:60", "2020-01-02 10:11:12.5",
    "2020-01-02 10:11:12.123", "2020-01-02 10:11:12.1234", "2020-01-02 10:11:12.", "2020-01-02T10:11:12",
    "2020-01-02 10:11:12", "-2020/01/02",
)  # fmt: skip
PATTERN_READINGS = cases(
    r"""
    to_date(s, 'yyyy/MM/dd')  to_timestamp(s, 'yyyy/MM/dd')  try_to_timestamp(s, 'yyyy/MM/dd')
    unix_timestamp(s, 'yyyy/MM/dd')  to_date(s, 'yyyyMMdd')  to_timestamp(s, 'HH:mm')
    to_timestamp(s, 'yyyy-MM-dd HH:mm:ss.SSS')  to_timestamp(s, "yyyy-MM-dd'T'HH:mm:ss")
    to_timestamp(s, 'yyyy-MM-dd HH:mm:ss')  unix_timestamp(s)
    """
)

DAYS = (
    None, 0, 1, -1, -719163, -719528, -800000, 2932897, 4000000, 11016, 18321, 18262, 18293, 19782, 17896, -719162,
    2932896, -141428, 20088, 19723, 18627, 16800, -25509,
)  # fmt: skip
DATE_CASES = cases(
    r"""
    year(d)  quarter(d)  month(d)  day(d)  dayofmonth(d)  dayofweek(d)  weekday(d)  dayofyear(d)  weekofyear(d)
    extract(YEAROFWEEK FROM d)  extract(WEEK FROM d)  date_part('dow', d)  date_add(d, 3)  date_sub(d, 40)  d + 1
    d - 1  datediff(d, e)  date_diff(e, d)  d - e > INTERVAL '10' DAY  add_months(d, 1)  add_months(d, -13)
    last_day(d)  next_day(d, 'MO')  next_day(d, 'sun')  trunc(d, 'YEAR')  trunc(d, 'quarter')  trunc(d, 'MM')
    trunc(d, 'week')  trunc(d, 'foo')  d + INTERVAL '1' MONTH  d - INTERVAL '2' YEAR  d + INTERVAL '3' DAY
    d + INTERVAL '3' HOUR  months_between(d, e)  d = e  d < e  d <=> e  greatest(d, e)
    d BETWEEN DATE'1999-01-01' AND e  d IN (DATE'2020-02-29', e)  CAST(d AS STRING)  CAST(d AS TIMESTAMP)
    CAST(d AS TIMESTAMP_NTZ)  unix_date(d)  date_from_unix_date(dayofyear(d))  date_format(d, 'yyyy-MM-dd')
    date_format(d, 'E dd MMM y')  make_date(year(d), month(d), 28)  make_date(year(d), 2, day(d))
    date_trunc('month', d)  timestampdiff(MONTH, d, e)  timestampdiff(DAY, d, e)  timestampadd(QUARTER, 1, d)
    to_date(CAST(d AS STRING))
    """
)

MICROS = (
    None, -70_000_000_000_000_001, 300_000_000_000_000_000, 0, 1, -1, -1500000, 1_577_934_672_123_456,
    1_582_934_400_000_000, 951_782_399_999_999, -62_135_596_800_000_000, 253_402_300_799_999_999,
    -12_219_292_800_000_001, 1_706_698_799_999_999, 1_709_164_800_000_000, 86_399_999_999,
)  # fmt: skip
TIME_CASES = cases(
    r"""
    year(x)  month(x)  day(x)  hour(x)  minute(x)  second(x)  extract(SECOND FROM x)  dayofweek(x)  weekofyear(x)
    CAST(x AS DATE)  CAST(x AS STRING)  date_trunc('YEAR', x)  date_trunc('quarter', x)  date_trunc('MON', x)
    date_trunc('week', x)  date_trunc('DD', x)  date_trunc('hour', x)  date_trunc('minute', x)
    date_trunc('second', x)  date_trunc('millisecond', x)  date_trunc('microsecond', x)  date_trunc('foo', x)
    x + INTERVAL '1' DAY  x - INTERVAL '36:30' HOUR TO MINUTE  x + INTERVAL '1' MONTH
    x + INTERVAL '1-2' YEAR TO MONTH  x - y > INTERVAL '5' DAY  x = y  x < y  x <=> y  least(x, y)  datediff(x, y)
    timestampdiff(MONTH, x, y)  timestampdiff(YEAR, x, y)  timestampdiff(QUARTER, x, y)  timestampdiff(HOUR, x, y)
    timestampdiff(WEEK, x, y)  timestampdiff(SECOND, x, y)  timestampadd(HOUR, 5, x)  timestampadd(MONTH, -1, x)
    timestampadd(WEEK, 1, x)  timestampadd(MILLISECOND, 7, x)  date_format(x, 'yyyy-MM-dd HH:mm:ss.SSS')
    date_format(x, 'd/M/yy h:m:s a')  date_format(x, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")
    date_format(x, 'EEEE, dd MMMM yyyy')  date_format(x, 'D H')  last_day(x)  add_months(x, 1)
    """
)
ZONED_CASES = cases(
    r"""
    CAST(x AS BIGINT)  CAST(x AS INT)  CAST(x AS DOUBLE)  CAST(x AS DECIMAL(20,6))  CAST(x AS TIMESTAMP_NTZ)
    unix_timestamp(x)  unix_seconds(x)  unix_millis(x)  unix_micros(x)  months_between(x, y)
    from_utc_timestamp(x, 'Europe/Berlin')  from_utc_timestamp(x, 'America/New_York')
    from_utc_timestamp(x, 'Asia/Kolkata')  from_utc_timestamp(x, 'Australia/Lord_Howe')  from_utc_timestamp(x, 'UTC')
    months_between(x, y, false)  from_unixtime(unix_timestamp(x))  from_unixtime(unix_seconds(x), 'yyyy/MM/dd')
    timestamp_micros(unix_micros(x))  timestamp_millis(unix_millis(x))  timestamp_seconds(unix_seconds(x))
    """
)

# --- The rest ---------------------------------------------------------------------------------------------------------

BOOLEANS = (None, True, False)
BOOLEAN_CASES = cases(
    r"""
    x AND y  x OR y  NOT x  x = y  x <=> y  x < y  CAST(x AS INT)  CAST(x AS DOUBLE)  CAST(x AS STRING)
    CAST(x AS DECIMAL(3,1))  greatest(x, y)  coalesce(x, y)  if(x, 1, 2)
    CASE WHEN x THEN 'a' WHEN y THEN 'b' ELSE 'c' END  x IS TRUE  x IS NOT FALSE  x IN (true, y)
    x AND 1 / CAST(y AS INT) > 0  x OR 1 / CAST(y AS INT) > 0  (x OR y) AND 1 / CAST(y AS INT) > 0 AND x
    bit_count(x)
    """
)
BYTES = (
    None, b"", b"a", b"\x00\xff", b"abc", "é".encode(), bytes(range(100)),
)  # fmt: skip
BYTES_CASES = cases(
    r"""
    x = y  x < y  x || y  length(x)  octet_length(x)  hex(x)  md5(x)  sha2(x, 0)  x IN (y)  base64(x)
    """
)

NESTED_CASES = cases(
    """
    round(x / y, 2) * (1 - x)  x / (y / (x / y))  ((x / y) / y) / y  CASE WHEN y <> 0 THEN x / y / y / y END
    coalesce(try_cast(s AS INT), length(s)) / y  upper(trim(lower(s))) || reverse(s)  CAST(CAST(s AS DATE) AS STRING)
    date_format(date_add(try_cast(s AS DATE), y), 'yyyy-MM')  y <> 0 AND (x / y > 1 OR CAST(s AS INT) / y > 1)
    if(s RLIKE '^[0-9]+$', CAST(s AS INT), y) % 7  greatest(CAST(x AS STRING), s, CAST(y AS STRING))
    coalesce(CAST(try_cast(s AS INT) AS DECIMAL(10,2)), x / y, x)  year(add_months(CAST(s AS DATE), y)) + 1
    CASE WHEN s = '12' THEN CAST(s AS INT) WHEN y = 0 THEN x WHEN y > 1 THEN x / y ELSE CAST(s AS INT) END
    (x > 1 AND CAST(s AS INT) > 1) OR (y <> 0 AND 1 / y > 0)  s IN ('12', CAST(1 / y AS STRING))  nullif(x, y)
    substring(upper(concat(s, s)), CAST(length(s) / 2 AS INT), y + 2)  x BETWEEN 1 / y AND CAST(s AS INT)
    CAST(CAST(x AS DOUBLE) AS STRING)  CAST(round(CAST(x AS DOUBLE) * 1.1, 2) AS DECIMAL(12,3))
    """
)

# Where Spark may not look at an operand: `F` stands for one that fails on some rows.
_PLACES = cases(
    r"""
    n + F  F + n  n - F  n * F  F * n  n / F  F / n  n div F  F div n  n % F  F % n  pmod(n, F)  pmod(F, n)  n & F
    n | F  n ^ F  n << F  F << n  n >> F  n = F  F = n  n <> F  n < F  F >= n  if(n <=> F, n, x)  NOT (n = F)
    n IN (F, 1)  n IN (1, F)  F IN (n, 1)  n BETWEEN F AND 1  n BETWEEN 1 AND F
    coalesce(n, F)  coalesce(F, n)  coalesce(n, x, F)  nvl2(n, F, 1)  nvl2(F, n, 1)  nullif(n, F)
    if(n = 1, F, 0)  if(n = 1, 0, F)  if(F = 1, n, 0)  CASE WHEN n = 1 THEN F END  CASE WHEN n = 1 THEN 0 ELSE F END
    CASE WHEN n = 1 THEN 0 WHEN F = 1 THEN 1 WHEN n = 0 THEN F END  CASE n WHEN F THEN 1 END  CASE F WHEN n THEN 1 END
    n = 1 AND F = 1  F = 1 AND n = 1  n = 1 OR F = 1  F = 1 OR n = 1  NOT (n = 1 AND F = 1)  n IS NULL OR F = 1
    n IS NOT NULL AND x = 1 AND F = 1  n = 1 OR x = 1 OR F = 1  (n = 1 OR F = 1) AND x = 1  x = 1 AND (n = 1 OR F = 1)
    greatest(n, F)  least(F, n, 0)  abs(n + F)  -(n * F)  sign(n) * F  pow(n, F)  log(n, F)  round(n / F, 1)
    try_add(n, F)  try_subtract(n, F)  try_multiply(n, F)  try_divide(n, F)  try_cast(n / F AS INT)
    F IS NULL  (n + F) IS NOT NULL  if(isnan(n / F), n, x)  length(CAST(n + F AS STRING))
    CAST(CAST(F AS STRING) AS DATE)  try_cast(CAST(F AS STRING) AS DATE)  to_date(CAST(F AS STRING), 'yyyy')
    decode(encode(CAST(F AS STRING), 'utf-8'), 'utf-8')  try_cast(CAST(F AS STRING) AS TIMESTAMP)
    nanvl(CAST(n AS DOUBLE), CAST(F AS DOUBLE))  substring(t, F, n)  substring(t, n, F)  left(t, F)  repeat(t, F)
    lpad(t, F, '*')  rpad(t, n, CAST(F AS STRING))  t || CAST(F AS STRING)  concat(t, CAST(F AS STRING), t)
    concat_ws(t, 'a', CAST(F AS STRING))  instr(t, CAST(F AS STRING))  locate(t, 'b', F)  locate('b', t, F)
    locate(t, CAST(F AS STRING))  locate(t, CAST(F AS STRING), n)  locate(CAST(F AS STRING), t)
    split_part(t, ',', F)  split(t, ',')[F]  element_at(split(t, ','), F)  replace(t, 'a', CAST(F AS STRING))
    translate(t, CAST(F AS STRING), 'x')  t LIKE CAST(F AS STRING)  contains(t, CAST(F AS STRING))
    date_add(d, F)  date_sub(d, F)  add_months(d, F)  make_date(n, F, 1)  make_date(2020, n, F)  timestampadd(DAY, F, d)
    datediff(d, date_add(d, F))  months_between(d, add_months(d, F))
    timestampdiff(DAY, d, date_add(d, F))  trunc(date_add(d, F), 'MM')  date_format(date_add(d, F), 'yyyy')  chr(n + F)
    n + n * F  (n + 1) / (n * F)  coalesce(n + F, x)  n + CASE WHEN x = 1 THEN F ELSE 0 END  if(n + F > 0, n, x)
    CAST(n AS DECIMAL(38,0)) + CAST(F AS DECIMAL(38,6))  CAST(n AS DECIMAL(12,2)) / F  CAST(n AS DECIMAL(38,6)) % F
    """
)
_FAILING = ("CAST(1 / x AS INT)", "((2147483647 + x) % 7)")
UNREACHED = tuple(re.sub(r"\bF\b", part, place) for part in _FAILING for place in _PLACES)

_SOME_DAYS = (None, 0, 18321, 18293, -719162, 19782)
_WORDS = ("", "abc", "héllo", None)
_STARTS = (None, 0, 1, 2, 9, -1, -2, -9, 2147483647, -2147483648)
_COUNTS = (None, 0, 1, 3, -1, 2147483647, -2147483648)
_LISTS = (None, "", "a", "a,b", "a,b,,c,", ",", "a;b,c")
_PIECES = (None, "", "a", "b", "abc", "é", "%", "\\a", ",")
_AMOUNTS = (None, Decimal("0.00"), Decimal("1.00"), Decimal("-12.34"), Decimal("9999999999.99"))

GROUPS: tuple[Group, ...] = (
    both("tinyint", integers(8), *INTEGER_CASES, *BITS),
    both("smallint", integers(16), *INTEGER_CASES),
    both("int", integers(32), *INTEGER_CASES, *BITS, *SHIFTS),
    both("bigint", integers(64), *INTEGER_CASES),
    Group("bigint and int", (("x", "bigint", integers(64)), ("y", "int", integers(32))), LONG_BITS),
    both("double", DOUBLES, *FLOAT_CASES, *FLOAT_MATHS),
    both("float", FLOATS, *FLOAT_CASES, *FLOAT_MATHS),
    *(decimals(*d) for d in ((12, 2, 12, 2), (15, 2, 4, 2), (18, 6, 18, 6), (38, 18, 38, 18), (38, 0, 38, 0))),
    *(decimals(*d) for d in ((38, 10, 38, 2), (38, 37, 38, 38), (20, 0, 10, 9), (36, 4, 36, 4), (5, 5, 3, 0))),
    *(decimals(*d) for d in ((38, 0, 38, 6), (38, 2, 10, 6), (34, 2, 38, 6), (20, 6, 38, 0))),
    *(rounding(*d) for d in ((12, 2), (38, 18), (38, 0), (5, 5), (18, 3))),
    both("boolean", BOOLEANS, *BOOLEAN_CASES),
    both("binary", BYTES, *BYTES_CASES),
    Group("text", (("s", "string", TEXTS), ("t", "string", _PIECES)), TEXT_CASES),
    Group("substrings", (("s", "string", _WORDS), ("i", "int", _STARTS), ("n", "int", _COUNTS)), SUBSTRINGS),
    Group("arrays", (("s", "string", _LISTS), ("i", "int", (None, 0, 1, 2, 3, -1, 9))), ARRAYS),
    Group("numbers in text", (("s", "string", NUMBERS_IN_TEXT),), NUMBER_READINGS),
    Group("times in text", (("s", "string", TIMES_IN_TEXT),), TIME_READINGS),
    Group("times by pattern", (("s", "string", PATTERNED),), PATTERN_READINGS),
    Group("date", (("d", "date", DAYS), ("e", "date", _SOME_DAYS)), DATE_CASES),
    both("timestamp", MICROS, *TIME_CASES, *ZONED_CASES),
    both("timestamp_ntz", MICROS, *TIME_CASES),
    Group(
        "nested",
        (
            ("x", "decimal(12,2)", _AMOUNTS),
            ("y", "int", (None, 0, 1, -3)),
            ("s", "string", (None, "", "12", " 7 ", "Straße", "2024-02-29")),
        ),
        NESTED_CASES,
    ),
    Group(
        "unreached",
        (
            ("n", "int", (None, 0, 1)),
            ("x", "int", (None, 0, 1)),
            ("t", "string", (None, "a,b")),
            ("d", "date", (None, 18321)),
        ),
        UNREACHED,
    ),
)
