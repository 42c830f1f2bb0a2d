SELECT * FROM t ORDER BY a;
SELECT B, a FROM T ORDER BY c DESC, a;
SELECT a, f FROM t ORDER BY b DESC NULLS FIRST, d, a LIMIT 3;
SELECT a, b FROM t WHERE b = 'Z' OR b IS NULL ORDER BY a;
SELECT count(*) FROM t;
SELECT count(*), sum(d), avg(d), min(e), max(f), count(DISTINCT b) FROM t;
SELECT j, count(*) AS n, sum(n) AS s, avg(n) AS m FROM t GROUP BY j ORDER BY j;
SELECT b, max(d) - min(d) AS span FROM t GROUP BY b HAVING count(*) > 2 ORDER BY span DESC, b;
SELECT t.a, u.k, u.m FROM t JOIN u ON t.a = u.a ORDER BY t.a, u.k;
SELECT t.a, u.k FROM t LEFT JOIN u ON t.a = u.a AND u.m > 1 ORDER BY a, k;
SELECT t.a AS x, u.k FROM t FULL JOIN u ON t.a = u.a WHERE u.m IS NULL ORDER BY x, k;
SELECT x.b, count(*) AS c FROM (SELECT b, a FROM t WHERE a < 20) x JOIN u ON x.a = u.a GROUP BY x.b ORDER BY 2 DESC, 1;
WITH q AS (SELECT j, sum(d) AS s FROM t GROUP BY j) SELECT j, s FROM q WHERE s > 0 ORDER BY j;
SELECT DISTINCT j, g FROM t ORDER BY j, g;
SELECT a FROM t WHERE e > '2010-01-01' AND e <= DATE '2025-01-01' ORDER BY a;
SELECT a FROM t WHERE f > '1970-01-01 00:00:00' ORDER BY a;
SELECT a FROM t WHERE i > TIMESTAMP '1970-01-01 00:00:00' ORDER BY a;
SELECT a FROM t WHERE d BETWEEN -10 AND 10.5 ORDER BY a;
SELECT a FROM t WHERE j IN (1, 2) AND NOT (n = 0) ORDER BY a;
SELECT a FROM t WHERE b LIKE 'A%' ORDER BY a;
SELECT a, CASE WHEN n > 0 THEN 'pos' WHEN n < 0 THEN 'neg' END AS sign FROM t ORDER BY a;
SELECT a, coalesce(j, 7) AS x, n + 1 AS y, n * a AS z, d + d AS w, d * 1.5 AS v FROM t ORDER BY a;
SELECT upper(b) AS u, length(b) AS l, year(e) AS y FROM t ORDER BY a;
SELECT a, c FROM t WHERE c > 1 ORDER BY a;
SELECT a, c FROM t WHERE c = 0 ORDER BY a;
SELECT a / 2 AS h FROM t;
SELECT n, j FROM v ORDER BY n, j;
SELECT t.a, v.s FROM t JOIN v ON t.j = v.j ORDER BY a;
SELECT a FROM t WHERE n > 9999999999 OR a = -1;
SELECT min(c), max(c) FROM t;
SELECT g, count(g) FROM t GROUP BY g ORDER BY g DESC;
SELECT a FROM t WHERE g ORDER BY a;
SELECT a FROM t WHERE NOT g ORDER BY a;
SELECT a b FROM t ORDER BY b LIMIT 4 OFFSET 2;
SELECT count(*) AS n FROM t WHERE 1 = 0;
SELECT j, count(*) AS n FROM t WHERE 1 = 0 GROUP BY j;
SELECT t.*, u.k FROM t, u WHERE t.a = u.k ORDER BY t.a;
SELECT a, n FROM t ORDER BY n + j, a;
SELECT n % 2 AS r FROM t;
SELECT j + n AS x, count(*) AS c FROM t GROUP BY j + n ORDER BY x;
SELECT j + n AS x, count(*) AS c FROM t GROUP BY x ORDER BY c, x;
SELECT sum(d) / count(*) AS m FROM t;
SELECT u.d AS x, t.d AS y FROM t JOIN u ON t.d > u.d ORDER BY x, y, k, t.a;
SELECT CAST(n AS STRING) AS s, CAST(d AS INT) AS i, CAST(a AS DOUBLE) AS r FROM t ORDER BY a;
SELECT a FROM t WHERE b <> 'a' ORDER BY 1 DESC;
SELECT a, 'x' AS s, 1 AS i, 1.50 AS d, 1e2 AS e, TRUE AS b FROM t ORDER BY a LIMIT 2;
SELECT max(n) + 1 AS m FROM t HAVING max(n) > 100;
SELECT a, d / 3 AS x, d / n AS y, d * n AS z, d + a AS w, 7 - d AS q FROM t WHERE n <> 0 ORDER BY a;
SELECT a, a % 3 AS x, n / 2 AS y, j - a AS z FROM t ORDER BY a;
SELECT sum(d) / count(*) AS m, sum(d * d) AS q, sum(n * 2) AS r, sum(CASE WHEN g THEN 1 ELSE 0 END) AS w FROM t;
SELECT a FROM t WHERE f >= TIMESTAMP '1970-03-04 05:06:07' AND f < '1980-01-01' ORDER BY a;
SELECT a FROM t WHERE e IN ('2001-02-02', DATE '2002-03-02') ORDER BY a;
SELECT year(e) AS y, count(*) AS n FROM t GROUP BY year(e) ORDER BY y;
SELECT u.b, sum(t.d * u.d) AS s, sum(t.d * u.d) / sum(u.m) AS r FROM t JOIN u ON t.a = u.a WHERE u.m > 0 GROUP BY u.b ORDER BY u.b;
SELECT a FROM t WHERE c > d ORDER BY a;
SELECT a FROM t WHERE a > d ORDER BY a;
SELECT a, CAST(d AS DECIMAL(20,5)) AS x, CAST(n AS BIGINT) AS y, CAST(e AS STRING) AS z FROM t ORDER BY a;
SELECT a FROM t WHERE trim(b) = '' OR lower(b) = 'ab' ORDER BY a;
SELECT count(b) AS n FROM t WHERE b NOT LIKE '%b' AND j IS NOT NULL;
SELECT a FROM t WHERE n NOT IN (0, 1) AND a NOT BETWEEN 3 AND 9 ORDER BY a DESC LIMIT 3;
SELECT r.a, r.k FROM (SELECT t.a, u.k FROM t JOIN u ON t.a = u.a) AS r WHERE r.k > 3 ORDER BY r.k;
SELECT x.a, y.a AS b FROM t x JOIN t y ON x.n = y.j WHERE x.a < y.a ORDER BY x.a, y.a;
SELECT count(*) AS n FROM (SELECT DISTINCT b, j FROM t) q;
SELECT place, q1 FROM t ORDER BY q1 DESC, place;
SELECT `r t` AS t, sum(`select`) AS `group` FROM `odd ``name` GROUP BY `r t` ORDER BY t;
SELECT T.A, V.n AS `N` FROM t AS T LEFT JOIN v AS V ON T.j = V.j ORDER BY a;
SELECT a FROM t WHERE b = "a" OR b = 'A\x62' ORDER BY a;
-- spark
SELECT u.d, t.d FROM t JOIN u ON t.d > u.d;
-- spark
SELECT avg(a) FROM t;
-- spark
SELECT sum(c) FROM t;
-- spark
SELECT c, count(*) FROM t GROUP BY c;
-- spark
SELECT a + 1 FROM t;
-- spark
SELECT a, a FROM t;
-- spark
SELECT a FROM t LIMIT 1 + 1;
-- spark
SELECT z FROM t;
-- spark
SELECT a FROM t LIMIT 99999999999999999999;
-- spark
SELECT a FROM t WHERE 1 / n > 0;
-- spark
SELECT a FROM t WHERE a = (SELECT max(a) FROM t);
-- spark
SELECT a, row_number() OVER (ORDER BY a) AS r FROM t;
-- spark
SELECT a FROM t UNION ALL SELECT k FROM u;
-- spark
SELECT a FROM t WHERE j = 'x';
-- spark
SELECT * FROM t JOIN u USING (a);
-- spark
SELECT DISTINCT c FROM t;
-- spark
SELECT a FROM t WHERE a = 1L;
-- spark
SELECT j, count(*) AS n FROM t GROUP BY ROLLUP (j);
-- spark
SELECT a, n FROM t HAVING n > 1;
-- spark
SELECT a, count(*) AS n FROM t;
-- spark
SELECT a FROM t WHERE n <=> j;
-- spark
SELECT a FROM t ORDER BY 99;
-- spark
SELECT 1 AS x;
-- spark
SELECT a FROM t WHERE e > '2020-1-1';
